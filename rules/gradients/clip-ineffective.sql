/*
title = "The clipping threshold is never or always reached"
severity = "info"
proves = """
The logged norms against the configured threshold: all of them lie far below it, so clipping never acts, or nearly all far
above it, so every step has the length of the threshold whatever its gradient."""
cannot_prove = """
Whether that is meant, and whether the logged norm is that before clipping."""
message = "{who}: {what}; the 90th percentile of the norms is {percentile_90}"
fix = "Set the threshold near the 90th percentile of the total norm, {percentile_90} here, so that it acts on outliers."
causes = []

[thresholds.min_points]
value = 50
unit = "logged norms"
why = "the start of a run has larger norms than the rest"

[thresholds.far]
value = 10.0
unit = "norm / threshold, or its inverse"
why = "an order of magnitude: the threshold belongs to another scale"

[variant.metrics]
needs = ["sample", "fact"]
strength = "indication"
*/
-- variant: metrics
WITH
threshold AS (
    SELECT
        max(f.number) AS threshold,
        min(f.artifact_id) AS artifact_id
    FROM fact AS f
    WHERE f.scope = 'option' AND f.number > 0
      AND list_contains(['max_grad_norm', 'grad_clip', 'gradient_clip_val', 'gradient_clipping', 'clip_grad', 'clip_grad_norm'],
        split_part(f.key, '.', -1))
    HAVING count(DISTINCT f.number) = 1
),
norm AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min(line) AS line,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n_points,
        max(value) AS largest,
        quantile_cont(value, 0.02) AS smallest,
        quantile_cont(value, 0.9) AS percentile_90
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1 AND isfinite(value)
    GROUP BY artifact_id, proc_id, rank
)
SELECT
    n.artifact_id,
    n.row,
    n.line,
    n.proc_id,
    n.rank,
    n.step,
    n.ts_ns,
    t.threshold,
    printf('%.3g', n.percentile_90) AS percentile_90,
    CASE WHEN n.largest * $far < t.threshold THEN 'no gradient norm comes near the clipping threshold of ' || t.threshold || ', the largest is ' || printf('%.3g', n.largest)
        ELSE 'nearly all gradient norms are far above the clipping threshold of ' || t.threshold END AS what,
    CASE WHEN n.largest * $far < t.threshold THEN 'info' ELSE 'medium' END AS severity,
    'clip' AS key
FROM norm AS n
CROSS JOIN threshold AS t
WHERE n.n_points >= $min_points AND (n.largest * $far < t.threshold OR n.smallest > $far * t.threshold)
ORDER BY n.ts_ns, n.artifact_id, n.row;
