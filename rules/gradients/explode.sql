/*
title = "Gradients left their band upwards"
severity = "critical"
proves = """
The gradient norm grew from step to step by large factors until values were no longer finite, or stayed beyond ten times
the 99th percentile of the run's own past while the loss rose."""
cannot_prove = """
Which setting is at fault: a rate that is too high, a missing warm-up and a batch of outliers diverge in the same way."""
message = "{who}: the gradient norm grew {growth}-fold, from {norm_before} to {norm}{at_step}{rate}{after}"
fix = "Lower the learning rate or lengthen its warm-up, and clip: clip_grad_norm_(parameters, {percentile_90}), the 90th percentile of this run's norms before."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.factor]
value = 10.0
unit = "norm / 99th percentile of the run's own past, or norm / norm of the step before"
measured = "growth"
why = "single spikes of a few times the usual norm are common and clipped away"

[thresholds.min_past]
value = 20
unit = "finite norms before"
why = "a percentile of fewer is the maximum"

[thresholds.min_lasting]
value = 3
unit = "norms in a row beyond the factor"
why = "one or two bad batches are no divergence"

[variant.metrics]
needs = ["sample"]
strength = "strong"
*/
-- variant: metrics
WITH
norm AS (
    SELECT
        *,
        lag(value) OVER w AS before,
        lag(value, 2) OVER w AS before_that,
        lag({'artifact_id': artifact_id, 'row': row, 'line': line, 'value': value}) OVER w AS before_at,
        lag({'artifact_id': artifact_id, 'row': row, 'line': line, 'value': value}, 2) OVER w AS before_that_at,
        quantile_cont(value, 0.99) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS percentile_99,
        quantile_cont(value, 0.9) OVER (w ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS percentile_90,
        min(value) OVER (w ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS least_of_next,
        count(*) OVER (w ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING) AS n_next
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1 AND isfinite(value) AND value > 0
    WINDOW w AS (PARTITION BY artifact_id, proc_id ORDER BY place)
),
bad AS (
    SELECT
        proc_id,
        min(place) FILTER (WHERE name = 'grad_norm') AS place,
        min(step) AS step
    FROM training_curve
    WHERE name IN ('grad_norm', 'loss') AND preference = 1 AND NOT isfinite(value)
    GROUP BY proc_id
),
loss AS (
    SELECT
        n.artifact_id,
        n.row,
        median(l.value) FILTER (WHERE l.step < n.step) AS past,
        median(l.value) FILTER (WHERE l.step >= n.step) AS future
    FROM norm AS n
    JOIN training_curve AS l ON l.proc_id IS NOT DISTINCT FROM n.proc_id AND l.name = 'loss' AND l.preference = 1
    WHERE isfinite(l.value) AND n.least_of_next > $factor * n.percentile_99
    GROUP BY n.artifact_id, n.row
),
left_band AS (
    SELECT
        n.*,
        b.step AS bad_step,
        CASE WHEN n.value > $factor * n.before AND n.before > $factor * n.before_that THEN n.before_that ELSE n.percentile_99 END AS norm_before,
        CASE WHEN n.value > $factor * n.before AND n.before > $factor * n.before_that THEN n.before_that_at ELSE n.before_at END AS at_before
    FROM norm AS n
    LEFT JOIN bad AS b ON b.proc_id IS NOT DISTINCT FROM n.proc_id
    LEFT JOIN loss AS l ON l.artifact_id = n.artifact_id AND l.row = n.row
    WHERE
        -- By a large factor twice in a row, and not finite within the next few: the end of a divergence.
        (n.value > $factor * n.before AND n.before > $factor * n.before_that AND b.place - n.place BETWEEN 1 AND 5)
        OR (
            n.place > $min_past AND n.n_next >= $min_lasting AND n.least_of_next > $factor * n.percentile_99
            AND l.future > l.past
        )
    QUALIFY row_number() OVER (PARTITION BY n.proc_id ORDER BY n.place) = 1
)
SELECT
    f.artifact_id,
    f.row,
    f.line,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    printf('%.4g', f.value) AS norm,
    printf('%.4g', f.norm_before) AS norm_before,
    printf('%.3g', f.value / f.norm_before) AS growth,
    printf('%.3g', coalesce(f.percentile_90, f.norm_before)) AS percentile_90,
    coalesce(', at a learning rate of ' || printf('%.3g', r.value), '') AS rate,
    coalesce('; values are not finite from step ' || f.bad_step || ' on', '') AS after,
    'the norm of ' || printf('%.4g', f.value) AS note,
    [{
        'artifact_id': f.at_before.artifact_id,
        'row': f.at_before.row,
        'line': f.at_before.line,
        'note': 'the norm of ' || printf('%.4g', f.at_before.value) || ' before'
            || CASE WHEN f.at_before.value = f.norm_before THEN '' ELSE '; of the run before, 99 in 100 are below ' || printf('%.4g', f.norm_before) END
    }] AS evidence,
    'explode' AS key
FROM left_band AS f
LEFT JOIN training_curve AS r ON r.artifact_id = f.artifact_id AND r.name = 'learning_rate' AND r.step = f.step
QUALIFY row_number() OVER (PARTITION BY f.artifact_id, f.row ORDER BY r.row) = 1
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- against: metrics
SELECT
    artifact_id,
    max_by(row, (value, -place)) AS row,
    max_by(line, (value, -place)) AS line,
    proc_id,
    'The largest gradient norm is ' || printf('%.3g', max(value)) || coalesce(', in step ' || max_by(step, (value, -place)), '') || '; the median of '
        || count(*) || ' is ' || printf('%.3g', median(value)) AS says
FROM training_curve
WHERE name = 'grad_norm' AND preference = 1
GROUP BY artifact_id, proc_id
HAVING count(*) > $min_past AND bool_and(isfinite(value)) AND max(value) < $factor * median(value)
ORDER BY artifact_id, proc_id;
