/*
title = "The loss scale fell to its floor"
severity = "high"
role = "symptom"
proves = """
The loss scale was reduced again and again without a step that succeeded in between, down to its floor or to less than
one. At such a scale no finite gradient overflows, so the values themselves are not finite."""
cannot_prove = """
Where these values come from."""
message = "{who}: the loss scale fell from {first_scale} to {last_scale} over {n_falls:# overflow|# overflows}{at_step}"
fix = "Find the operator that gives the first non-finite value (a recorder, or anomaly mode for one step); the scale is not at fault."
causes = [{ state = "weights-unmoved", of = "rank" }]
requires = [{ state = "value-nonfinite", of = "rank" }]

[thresholds.min_falls]
value = 8
unit = "reductions without a rise between"
measured = "n_falls"
why = "from 65536 a healthy fp16 run finds its scale within a few halvings"

[thresholds.floor]
value = 1.0
unit = "loss scale"
measured = "last_scale"
why = "at a scale of 1 the gradients are those of the loss itself"

[variant.metrics]
needs = ["sample"]
strength = "strong"

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: metrics
WITH
change AS (
    SELECT
        *,
        lag(value) OVER w AS before,
        sum(CASE WHEN value > before_value THEN 1 ELSE 0 END) OVER w AS run_id
    FROM (
        SELECT
            *,
            lag(value) OVER (PARTITION BY artifact_id, proc_id ORDER BY place) AS before_value
        FROM training_curve
        WHERE name = 'loss_scale'
    )
    WINDOW w AS (PARTITION BY artifact_id, proc_id ORDER BY place)
)
SELECT
    artifact_id,
    min_by(row, place) AS row,
    min_by(line, place) AS line,
    proc_id,
    rank,
    min_by(step, place) AS step,
    min(ts_ns) AS ts_ns,
    max(before) AS first_scale,
    min(value) AS last_scale,
    count(*) AS n_falls,
    'collapse' AS key
FROM change
WHERE value < before
GROUP BY artifact_id, proc_id, rank, run_id
HAVING count(*) >= $min_falls AND min(value) <= $floor
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY min(place), artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- against: metrics
SELECT
    artifact_id,
    max_by(row, place) AS row,
    max_by(line, place) AS line,
    proc_id,
    'The loss scale is ' || max_by(value, place) || ' at the end and was never below ' || min(value) AS says
FROM training_curve
WHERE name = 'loss_scale' AND preference = 1
GROUP BY artifact_id, proc_id
HAVING min(value) > $floor
ORDER BY artifact_id, proc_id;
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'its initial value' AS first_scale,
    'its minimum' AS last_scale,
    'repeated' AS n_falls,
    e.signature AS key
FROM log AS e
WHERE e.signature = 'loss-scale-at-minimum' AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
