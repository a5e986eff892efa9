/*
title = "The optimizer's steps were skipped"
severity = "medium"
role = "symptom"
proves = """
A loss scaler skipped the named share of the optimizer's steps because gradients were not finite."""
cannot_prove = """
Why they were not."""
message = "{who}: {n_skipped} of {n_steps:# optimizer step was|# optimizer steps were} skipped{at_step} and later, because gradients were not finite"
fix = "A few skips at the start are how a scaler finds its scale. If they go on, look for the first non-finite value; schedules that count steps run ahead of the optimizer meanwhile."
requires = [{ state = "value-nonfinite", of = "rank" }, { state = "weights-unmoved", of = "rank" }]

[thresholds.min_skipped]
value = 6
unit = "skipped steps"
measured = "n_skipped"
why = "from an initial scale of 65536 up to five halvings are usual"

[thresholds.min_share]
value = 0.05
unit = "skipped / all steps"
measured = "n_skipped / n_steps"
why = "a scaler that grows every 2000 steps overflows once in as many"

[variant.metrics]
needs = ["sample"]
strength = "strong"
*/
-- variant: metrics
SELECT
    artifact_id,
    min_by(row, place) FILTER (WHERE value > 0) AS row,
    min_by(line, place) FILTER (WHERE value > 0) AS line,
    proc_id,
    rank,
    min_by(step, place) FILTER (WHERE value > 0) AS step,
    min(ts_ns) FILTER (WHERE value > 0) AS ts_ns,
    count(*) FILTER (WHERE value > 0) AS n_skipped,
    count(*) AS n_steps,
    'skipped' AS key
FROM training_curve
WHERE name = 'optimizer_skipped' AND preference = 1
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE value > 0) >= $min_skipped
   AND count(*) FILTER (WHERE value > 0) >= $min_share * count(*)
ORDER BY ts_ns, artifact_id, row;
