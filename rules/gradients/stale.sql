/*
title = "Optimizer steps used gradients that were not computed in them"
severity = "critical"
proves = """
Over several consecutive steps the gradients were bit-identical while the loss was not: a backward over another batch
gives other gradients."""
cannot_prove = """
Why they were not renewed: a skipped backward, a detached copy, and a replayed graph that writes elsewhere look the same."""
message = "{who}: from step {step} on, {n_steps} steps in a row used gradients with the same norm ({grad_norm}) while the loss went on changing"
fix = "Check that backward runs before every optimizer step and writes to the .grad that the optimizer reads; zero gradients with set_to_none=True so that a missing backward is visible."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_steps]
value = 3
unit = "consecutive steps with the same gradient norm"
why = "two equal norms can be a repeated log line; three with changing losses cannot come from new batches"

[thresholds.min_digits]
value = 6
unit = "significant decimal digits of the norm"
why = "norms logged with fewer digits coincide by chance, and a clipped norm is a round number"

[variant.tensors]
needs = ["tensor"]
strength = "proof"

[variant.metrics]
needs = ["sample"]
strength = "strong"
says = "Norms stand for the gradients; equal norms of full precision over several steps are taken as equal gradients."
*/
-- variant: tensors
WITH
gradient AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        t.step,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns,
        count(*) AS n_tensors,
        list(coalesce(CAST(t.checksum AS VARCHAR), CAST(t.norm AS VARCHAR) || '/' || CAST(t.absmax AS VARCHAR)) ORDER BY t.name_id) AS content,
        sqrt(sum(t.norm * t.norm)) AS grad_norm
    FROM tensor AS t
    WHERE t.role = 'gradient' AND t.step IS NOT NULL AND t.norm > 0 AND isfinite(t.norm)
    GROUP BY t.artifact_id, t.proc_id, t.rank, t.step
),
run AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (PARTITION BY artifact_id, proc_id ORDER BY step) AS run_id
    FROM (
        SELECT
            *,
            coalesce(content <> lag(content) OVER (PARTITION BY artifact_id, proc_id ORDER BY step), TRUE) AS is_new
        FROM gradient
    )
)
SELECT
    artifact_id,
    min(row) AS row,
    proc_id,
    rank,
    min(step) + 1 AS step,
    min(ts_ns) AS ts_ns,
    count(*) - 1 AS n_steps,
    round(max(grad_norm), 6) AS grad_norm
FROM run
GROUP BY artifact_id, proc_id, rank, run_id
HAVING count(*) > $min_steps AND max(n_tensors) >= 1
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY min(step), artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: metrics
WITH
reading AS (
    SELECT
        g.artifact_id,
        g.row,
        g.line,
        g.proc_id,
        g.rank,
        g.step,
        g.ts_ns,
        g.value AS grad_norm,
        l.value AS loss,
        length(regexp_replace(regexp_replace(CAST(g.value AS VARCHAR), 'e.*$', ''), '[^0-9]|^[0.-]+', '', 'g')) AS n_digits
    FROM metric AS g
    JOIN metric AS l ON l.artifact_id = g.artifact_id AND l.proc_id = g.proc_id AND l.step = g.step AND l.name = 'loss'
    WHERE g.name = 'grad_norm' AND g.step IS NOT NULL AND isfinite(g.value) AND g.value > 0
),
run AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (PARTITION BY artifact_id, proc_id ORDER BY step, row) AS run_id
    FROM (
        SELECT
            *,
            coalesce(grad_norm <> lag(grad_norm) OVER (PARTITION BY artifact_id, proc_id ORDER BY step, row), TRUE) AS is_new
        FROM reading
    )
)
SELECT
    artifact_id,
    min(row) AS row,
    min(line) AS line,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    count(*) AS n_steps,
    max(grad_norm) AS grad_norm
FROM run
GROUP BY artifact_id, proc_id, rank, run_id
HAVING count(*) >= $min_steps AND count(DISTINCT loss) = count(*) AND max(n_digits) >= $min_digits
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY min(step), artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
