/*
title = "Gradients are not accumulated as the run says"
severity = "high"
cannot_prove = """
Without recorded operators, a wrong divisor of the loss: the size of the sum alone does not tell it from a larger
gradient. With them, that nothing divides the gradients after the backward, or that the rate was chosen for the sum."""
message = "{who}: gradients are to be accumulated over {n_micro:# micro-batch|# micro-batches}, but {what}{at_step}"
fix = "Call optimizer.step() and zero_grad() only when (micro_batch + 1) % accumulation_steps == 0, inside DDP with no_sync() around the others, and divide the loss by accumulation_steps."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_steps]
value = 8
unit = "micro-batches between samples"
why = "a few can be a warm-up without accumulation"

[thresholds.max_error]
value = 0.001
unit = "|derivative / loss scale - 1|"
why = "float32 and powers of two hold both exactly; with two micro-batches the right value is a half"

[variant.tensors]
needs = ["tensor", "sample"]
strength = "strong"
proves = """
The run says that gradients are accumulated over several micro-batches, and the version counters of the parameters
show a write in every one of them: the optimizer steps before the sum is complete."""

[variant.operators]
needs = ["tensor", "node"]
strength = "strong"
proves = """
The recorded backward enters the loss with a derivative of one, or of the loss scale, where a mean over the
micro-batches needs that divided by their number."""
says = "The derivative is that of the recorded step. Whether the gradients are divided later is not on record."
*/
-- variant: tensors
WITH
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
    'the parameters are written to ' || w.n_writes || ' times in ' || w.n_steps AS what,
    t.n_micro,
    'misaligned' AS key
FROM written AS w
JOIN accumulation_told AS t ON t.proc_id IS NOT DISTINCT FROM w.proc_id
-- Half as many writes as micro-batches are too many for an accumulation over three; at least one for each is needed here.
WHERE w.n_steps >= $min_steps AND w.n_writes >= w.n_steps
QUALIFY row_number() OVER (PARTITION BY w.proc_id ORDER BY w.artifact_id, w.row) = 1
ORDER BY w.ts_ns, w.artifact_id, w.row;
-- variant: operators
WITH
entered AS (
    -- The first operator of the loss that a recorded backward runs, and the derivative that it gets: its first operand.
    SELECT
        n.artifact_id,
        n.graph_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        d.row,
        d.absmax AS derivative,
        o.text AS operator
    FROM node AS n
    JOIN string AS o ON o.id = n.autograd_id
    JOIN tensor AS d ON d.artifact_id = n.artifact_id AND d.node_id = n.node_id AND d.step = n.step AND d.role = 'input'
    JOIN string AS h ON h.id = d.shape_id AND h.text = '[]'
    WHERE n.phase = 'backward'
      AND regexp_full_match(o.text, '(Nll|Mse|Smooth|Huber|BinaryCrossEntropy|KlDiv|SoftMargin|L1)\w*Backward\d*')
    QUALIFY row_number() OVER (PARTITION BY n.proc_id, n.step ORDER BY n.artifact_id, n.node_id, d.row) = 1
),
scaled AS (
    SELECT
        proc_id,
        step,
        max(value) AS scale
    FROM metric
    WHERE name = 'loss_scale' AND value > 0
    GROUP BY proc_id, step
)
SELECT
    e.artifact_id,
    e.row,
    'tensor' AS "table",
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.operator AS op,
    'the backward enters the loss (' || e.operator || ') with a derivative of ' || printf('%.6g', e.derivative)
        || CASE WHEN s.scale IS NULL THEN '' ELSE ', which is the loss scale' END
        || ': the loss is not divided by ' || t.n_micro || ', so the sum is ' || t.n_micro || ' times the mean' AS what,
    t.n_micro,
    'undivided' AS key
FROM entered AS e
JOIN accumulation_told AS t ON t.proc_id IS NOT DISTINCT FROM e.proc_id
LEFT JOIN scaled AS s ON s.proc_id IS NOT DISTINCT FROM e.proc_id AND s.step = e.step
WHERE abs(e.derivative / coalesce(s.scale, 1) - 1) <= $max_error
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.step, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
