/*
title = "A replayed CUDA graph writes gradients that the optimizer does not read"
severity = "critical"
proves = """
Backward was captured in a CUDA graph and is replayed, and at the optimizer's step the gradients of most captured
parameters lie at other addresses than those the graph writes to, or are None."""
cannot_prove = """
That nothing copies them over: code that moves the graph's gradients into other buffers by itself looks the same."""
message = "{who} replays a captured backward, but from step {step} on {n_lost} of {n_captured:# gradient is|# gradients are} {how}: the graph writes to the old buffers"
fix = "Keep the captured buffers: optimizer.zero_grad(set_to_none=False) after the capture, no assignment to .grad, and set gradients to None only before the capture, so that backward allocates them in the graph's pool."
causes = [{ state = "gradient-invalid", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"]

[thresholds.min_ratio]
value = 0.5
unit = "captured gradients that the optimizer does not find / captured gradients"
measured = "n_lost / n_captured"
why = "a few parameters may be left out by design; when it is most of them, the step does not train"

[thresholds.min_samples]
value = 2
unit = "sampled steps with replays"
why = "the first step after a capture may still be set up"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
*/
-- variant: tensors
WITH
captured AS (
    SELECT DISTINCT
        proc_id,
        name_id,
        addr,
        min(step) OVER (PARTITION BY proc_id) AS capture_step
    FROM tensor
    WHERE role = 'captured-gradient' AND addr IS NOT NULL
),
replayed AS (
    SELECT
        proc_id,
        step
    FROM metric
    WHERE name = 'graph_replays' AND value > 0
),
seen AS (
    SELECT
        t.artifact_id,
        t.row,
        t.proc_id,
        t.rank,
        t.step,
        t.ts_ns,
        t.role = 'missing-gradient' AS is_missing,
        NOT EXISTS (
            SELECT 1 FROM captured AS c WHERE c.proc_id = t.proc_id AND c.name_id = t.name_id AND c.addr = t.addr
        ) AS is_elsewhere
    FROM tensor AS t
    JOIN replayed AS r ON r.proc_id = t.proc_id AND r.step = t.step
    WHERE t.role IN ('gradient', 'missing-gradient')
      AND EXISTS (
        SELECT 1 FROM captured AS c WHERE c.proc_id = t.proc_id AND c.name_id = t.name_id AND c.capture_step < t.step
    )
),
sampled AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        step,
        min(row) FILTER (WHERE is_elsewhere) AS row,
        min(ts_ns) AS ts_ns,
        count(*) AS n_captured,
        count(*) FILTER (WHERE is_elsewhere) AS n_lost,
        count(*) FILTER (WHERE is_missing) AS n_missing
    FROM seen
    GROUP BY artifact_id, proc_id, rank, step
    HAVING n_lost >= $min_ratio * n_captured
)
SELECT
    artifact_id,
    row,
    'tensor' AS "table",
    proc_id,
    rank,
    step,
    ts_ns,
    n_captured,
    n_lost,
    CASE WHEN n_missing = n_lost THEN 'None' WHEN n_missing = 0 THEN 'elsewhere' ELSE 'None or elsewhere' END AS how
FROM sampled
QUALIFY count(*) OVER (PARTITION BY proc_id) >= $min_samples
    AND row_number() OVER (PARTITION BY proc_id ORDER BY step, artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
