/*
title = "Clipping does not act, or acts on every step"
severity = "info"
proves = """
Gradients that the recorder saw as the optimizer was about to use them have norms above the configured threshold, which
clipping would have shortened. Or the logged norms against the configured threshold: all of them lie far below it, so clipping never acts, or nearly all far
above it, so every step has the length of the threshold whatever its gradient."""
cannot_prove = """
Whether that is meant, whether the logged norm is that before clipping, and whether clipping was to go by another norm
than the Euclidean one."""
message = "{who}: {what}; the 90th percentile of the norms is {percentile_90}"
fix = "{remedy}"
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_points]
value = 50
unit = "logged norms"
why = "the start of a run has larger norms than the rest"

[thresholds.far]
value = 10.0
unit = "norm / threshold, or its inverse"
why = "an order of magnitude: the threshold belongs to another scale"

[thresholds.over]
value = 3.0
unit = "norm that reaches the optimizer / threshold"
measured = "largest_norm / threshold"
why = "groups of parameters that are clipped each by itself have together a norm of a few times the threshold"

[thresholds.min_over]
value = 2
unit = "sampled steps with such a norm"
measured = "n_over"
why = "one can be a step before clipping sets in"

[thresholds.harm]
value = 10.0
unit = "largest loss after it / median loss"
why = "beyond a hard batch: steps were thrown"

[variant.tensors]
needs = ["tensor", "fact"]
strength = "strong"

[variant.metrics]
needs = ["sample", "fact"]
strength = "indication"
*/
-- variant: tensors
WITH
total AS (
    -- What the optimizer is about to use; steps in which it did not step hold gradients that are not clipped yet.
    SELECT
        artifact_id,
        proc_id,
        rank,
        step,
        min(row) AS row,
        min(ts_ns) AS ts_ns,
        sqrt(sum(gradient_norm * gradient_norm)) AS norm
    FROM gradient_reading AS g
    WHERE gradient_norm IS NOT NULL
      AND NOT EXISTS (
        SELECT 1 FROM metric AS w WHERE w.proc_id IS NOT DISTINCT FROM g.proc_id AND w.step = g.step AND w.name = 'optimizer_waited'
      )
    GROUP BY artifact_id, proc_id, rank, step
    HAVING isfinite(sum(gradient_norm * gradient_norm))
),
over AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        t.threshold,
        t.artifact_id AS settings_id,
        t.line AS settings_line,
        min_by(n.row, n.step) AS row,
        min(n.step) AS step,
        min(n.ts_ns) AS ts_ns,
        count(*) AS n_over,
        max(n.norm) AS largest,
        max_by(n.row, (n.norm, -n.step)) AS largest_row,
        max_by(n.step, (n.norm, -n.step)) AS largest_step,
        (SELECT count(*) FROM total AS a WHERE a.artifact_id = n.artifact_id AND a.proc_id IS NOT DISTINCT FROM n.proc_id) AS n_samples,
        (SELECT quantile_cont(a.norm, 0.9) FROM total AS a WHERE a.artifact_id = n.artifact_id AND a.proc_id IS NOT DISTINCT FROM n.proc_id) AS percentile_90
    FROM total AS n
    CROSS JOIN clip_threshold AS t
    WHERE n.norm > $over * t.threshold
    GROUP BY n.artifact_id, n.proc_id, n.rank, t.threshold, t.artifact_id, t.line
    HAVING count(*) >= $min_over
),
loss AS (
    SELECT
        proc_id,
        median(value) AS usual,
        max(value) AS largest,
        bool_or(NOT isfinite(value)) AS is_lost
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY proc_id
),
returned AS (
    SELECT
        proc_id,
        max(value) AS largest
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1
    GROUP BY proc_id
)
SELECT
    o.artifact_id,
    o.row,
    o.proc_id,
    o.rank,
    o.step,
    o.ts_ns,
    o.threshold,
    o.largest AS largest_norm,
    o.n_over,
    printf('%.3g', o.percentile_90) AS percentile_90,
    'clipping is set to ' || o.threshold || ', yet gradients of norms up to ' || printf('%.3g', o.largest)
        || ' reach the optimizer, above the threshold in ' || o.n_over || ' of ' || o.n_samples || ' sampled steps'
        || CASE WHEN r.largest = 0 THEN '; the norm that was logged is 0 in every step: clipping was given no parameters' ELSE '' END AS what,
    CASE
        WHEN r.largest = 0
            THEN 'Give clip_grad_norm_ a list: model.parameters() is a generator, and one that the optimizer has walked is empty.'
        ELSE 'Call clip_grad_norm_ on all parameters of the optimizer, after backward (and after scaler.unscale_) and before optimizer.step().'
    END AS remedy,
    CASE WHEN l.is_lost OR l.largest > $harm * l.usual THEN 'high' ELSE 'medium' END AS severity,
    [{
        'artifact_id': o.artifact_id, 'row': o.largest_row, 'line': NULL::INTEGER,
        'note': 'the first gradient of step ' || o.largest_step || ', whose gradients have the largest norm together'
    }] || CASE WHEN o.settings_line IS NOT NULL
        THEN [{'artifact_id': o.settings_id, 'row': NULL::BIGINT, 'line': o.settings_line::INTEGER, 'note': 'the threshold'}]
        ELSE []
    END AS evidence,
    'absent' AS key
FROM over AS o
LEFT JOIN loss AS l ON l.proc_id IS NOT DISTINCT FROM o.proc_id
LEFT JOIN returned AS r ON r.proc_id IS NOT DISTINCT FROM o.proc_id
ORDER BY o.ts_ns, o.artifact_id, o.row;
-- variant: metrics
WITH
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
    'Set the threshold near the 90th percentile of the total norm, ' || printf('%.3g', n.percentile_90) || ' here, so that it acts on outliers.' AS remedy,
    CASE WHEN n.largest * $far < t.threshold THEN 'info' ELSE 'medium' END AS severity,
    [] AS causes,
    'clip' AS key
FROM norm AS n
CROSS JOIN clip_threshold AS t
WHERE n.n_points >= $min_points AND n.largest > 0 AND (n.largest * $far < t.threshold OR n.smallest > $far * t.threshold)
ORDER BY n.ts_ns, n.artifact_id, n.row;
