/*
title = "The optimizer steps in every micro-batch of an accumulation"
severity = "high"
proves = """
The run says that gradients are accumulated over several micro-batches, and the version counters of the parameters show a
write in every one of them: the optimizer steps before the sum is complete."""
cannot_prove = """
A wrong divisor of the loss: the size of the sum alone does not tell it from a larger gradient."""
message = "{who}: gradients are to be accumulated over {n_micro} micro-batches, but the parameters are written to {n_writes} times in {n_steps}{at_step}"
fix = "Call optimizer.step() and zero_grad() only when (micro_batch + 1) % accumulation_steps == 0, inside DDP with no_sync() around the others, and divide the loss by accumulation_steps."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_steps]
value = 8
unit = "micro-batches between samples"
why = "a few can be a warm-up without accumulation"

[variant.tensors]
needs = ["tensor", "sample"]
strength = "strong"
*/
-- variant: tensors
WITH
told AS (
    SELECT
        proc_id,
        min(value) AS n_micro
    FROM training_curve
    WHERE name = 'accumulation_steps'
    GROUP BY proc_id
    HAVING min(value) > 1
),
written AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(version) - min(version) AS n_writes,
        max(step) - min(step) AS n_steps
    FROM gradient_reading
    WHERE version IS NOT NULL
    GROUP BY artifact_id, proc_id, rank, name
)
SELECT
    w.artifact_id,
    w.row,
    w.proc_id,
    w.rank,
    w.step,
    w.ts_ns,
    w.name AS module,
    w.n_writes,
    w.n_steps,
    CAST(t.n_micro AS INTEGER) AS n_micro,
    'misaligned' AS key
FROM written AS w
JOIN told AS t ON t.proc_id IS NOT DISTINCT FROM w.proc_id
-- Half as many writes as micro-batches are too many for an accumulation over three; at least one for each is needed here.
WHERE w.n_steps >= $min_steps AND w.n_writes >= w.n_steps
QUALIFY row_number() OVER (PARTITION BY w.proc_id ORDER BY w.artifact_id, w.row) = 1
ORDER BY w.ts_ns, w.artifact_id, w.row;
