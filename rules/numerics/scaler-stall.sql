/*
title = "The loss scale stays where it is while every step overflows"
severity = "critical"
proves = """
Over several steps in a row the gradients overflowed and the loss scale was the same: a scaler whose update() runs
halves it each time."""
cannot_prove = """
Whether update() is missing, or is given a fixed scale, or a hysteresis swallows the overflows."""
message = "{who}: the loss scale stays at {scale}{at_step} and over {n_steps:# step|# steps} in a row that overflow; none of them changes a weight"
fix = "Call scaler.update() without an argument after each scaler.step(optimizer); start from a smaller init_scale, and keep hysteresis at 1 until training is stable."
causes = [{ state = "weights-unmoved", of = "rank" }, { state = "value-nonfinite", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling"]

[thresholds.min_steps]
value = 5
unit = "overflowing steps in a row at one scale"
measured = "n_steps"
why = "a hysteresis of 2 (DeepSpeed, Megatron) may hold the scale for one or two overflows"

[variant.metrics]
needs = ["sample"]
strength = "strong"
*/
-- variant: metrics
WITH
overflow AS (
    SELECT
        s.artifact_id,
        s.row,
        s.line,
        s.proc_id,
        s.rank,
        s.step,
        s.ts_ns,
        s.place,
        s.value AS scale,
        coalesce(bool_or(NOT isfinite(n.value)), FALSE) OR coalesce(max(k.value), 0) > 0 AS is_overflow
    FROM training_curve AS s
    LEFT JOIN training_curve AS n ON n.artifact_id = s.artifact_id AND n.proc_id IS NOT DISTINCT FROM s.proc_id
        AND n.name = 'grad_norm' AND n.step = s.step
    LEFT JOIN training_curve AS k ON k.artifact_id = s.artifact_id AND k.proc_id IS NOT DISTINCT FROM s.proc_id
        AND k.name = 'optimizer_skipped' AND k.step = s.step
    WHERE s.name = 'loss_scale' AND s.step IS NOT NULL
    GROUP BY s.artifact_id, s.row, s.line, s.proc_id, s.rank, s.step, s.ts_ns, s.place, s.value
),
-- Skipping lines name the scale that is tried next.
told AS (
    SELECT
        artifact_id,
        row,
        line,
        proc_id,
        rank,
        step,
        ts_ns,
        row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY row) AS place,
        CAST(fields ->> 'next_loss_scale' AS DOUBLE) AS scale,
        TRUE AS is_overflow
    FROM log
    WHERE class = 'numerics.overflow' AND fields ->> 'next_loss_scale' IS NOT NULL
),
run AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (PARTITION BY artifact_id, proc_id ORDER BY place) AS run_id
    FROM (
        SELECT
            *,
            coalesce(scale <> lag(scale) OVER w OR is_overflow <> lag(is_overflow) OVER w, TRUE) AS is_new
        FROM (SELECT * FROM overflow UNION ALL SELECT * FROM told)
        WINDOW w AS (PARTITION BY artifact_id, proc_id ORDER BY place)
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
    max(scale) AS scale,
    count(*) AS n_steps,
    'stall' AS key
FROM run
WHERE is_overflow
GROUP BY artifact_id, proc_id, rank, run_id
-- At the scale's floor it cannot fall: that is numerics-scaler-collapse.
HAVING count(*) >= $min_steps AND max(scale) > 1
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY min(place), artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
