/*
title = "Clipping does not act, or acts on every step"
severity = "info"
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

[thresholds.burst]
value = 10.0
unit = "largest gradient norm / 90th percentile of the run's norms"
measured = "burst"
why = "an order of magnitude: a threshold anywhere near the usual norms would have shortened it"

[thresholds.min_traced]
value = 2
unit = "traced steps with a backward and a step of the optimizer"
why = "the first and the last step of a trace can be cut"

[variant.tensors]
needs = ["tensor", "fact"]
strength = "strong"
proves = """
Gradients that the recorder saw as the optimizer was about to use them have norms above the configured threshold,
which clipping would have shortened."""

[thresholds.min_zeros]
value = 10
unit = "logged norms, all of them exactly zero"
why = "skipped steps and an adapter's first one give a few"

[variant.unseen]
needs = ["tensor", "sample"]
strength = "strong"
proves = "The norm that was logged is zero in every step, while the recorder saw gradients reach the optimizer."
says = "That clipping is called there is read from the norm, which is what it returns."

[variant.metrics]
needs = ["sample", "fact"]
strength = "indication"
proves = """
The logged norms lie all far below the configured threshold, so that clipping never acts, or nearly all far above it,
so that every step has the length of the threshold whatever its gradient."""

[variant.absent]
needs = ["sample", "fact|slice|tensor"]
strength = "indication"
proves = """
Nothing on record clips gradients, and gradient norms reached many times their own 90th percentile."""
says = "That clipping would have kept the run on its course does not follow from large norms."
*/
-- variant: tensors
WITH
over AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        t.threshold,
        t.artifact_id AS settings_id,
        t.line AS settings_line,
        min_by(n.row, n.step) AS row,
        min_by(n.norm, n.step) AS first_norm,
        min(n.step) AS step,
        min(n.ts_ns) AS ts_ns,
        count(*) AS n_over,
        max(n.norm) AS largest,
        max_by(n.row, (n.norm, -n.step)) AS largest_row,
        max_by(n.step, (n.norm, -n.step)) AS largest_step,
        (SELECT count(*) FROM reaching_gradient AS a WHERE a.artifact_id = n.artifact_id AND a.proc_id IS NOT DISTINCT FROM n.proc_id) AS n_samples,
        (SELECT quantile_cont(a.norm, 0.9) FROM reaching_gradient AS a WHERE a.artifact_id = n.artifact_id AND a.proc_id IS NOT DISTINCT FROM n.proc_id) AS percentile_90
    FROM reaching_gradient AS n
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
        max(value) AS largest,
        arg_max({'artifact_id': artifact_id, 'row': row, 'line': line}, (value, -place)) AS at
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
        || CASE WHEN r.largest = 0 THEN '; the norm that was logged is 0 in every step: clipping was given no parameters, or was called where they had no gradient' ELSE '' END AS what,
    CASE
        WHEN r.largest = 0
            THEN 'Give clip_grad_norm_ a list (model.parameters() is a generator, and one that the optimizer has walked is empty), after backward and before optimizer.step().'
        ELSE 'Call clip_grad_norm_ on all parameters of the optimizer, after backward (and after scaler.unscale_) and before optimizer.step().'
    END AS remedy,
    CASE WHEN l.is_lost OR l.largest > $harm * l.usual THEN 'high' ELSE 'medium' END AS severity,
    'the first gradient of step ' || o.step || ', whose gradients have a norm of ' || printf('%.3g', o.first_norm) || ' together' AS note,
    list_filter([
        {
            'artifact_id': o.artifact_id, 'row': o.largest_row, 'line': NULL,
            'note': 'the first gradient of step ' || o.largest_step || ', whose gradients have the largest norm together, ' || printf('%.3g', o.largest)
        },
        CASE WHEN o.settings_line IS NOT NULL
            THEN {'artifact_id': o.settings_id, 'row': NULL, 'line': o.settings_line, 'note': 'the threshold'}
        END,
        CASE WHEN r.largest = 0
            THEN {'artifact_id': r.at.artifact_id, 'row': r.at.row, 'line': r.at.line, 'note': 'the norm that was logged'}
        END
    ], LAMBDA e: e IS NOT NULL) AS evidence,
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
-- variant: unseen
WITH
logged AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min(line) AS line,
        count(*) AS n_norms
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1
    GROUP BY artifact_id, proc_id, rank
    HAVING count(*) >= $min_zeros AND min(value) = 0 AND max(value) = 0
),
reaching AS (
    SELECT
        proc_id,
        min(artifact_id) AS artifact_id,
        min_by(row, step) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n_samples,
        max(norm) AS largest,
        quantile_cont(norm, 0.9) AS percentile_90
    FROM reaching_gradient
    WHERE norm > 0
    GROUP BY proc_id
    HAVING count(*) >= $min_over
),
loss AS (
    SELECT
        proc_id,
        NOT bool_and(isfinite(value)) OR max(value) > $harm * median(value) FILTER (WHERE isfinite(value)) AS is_harmed
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY proc_id
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    g.rank,
    r.step,
    r.ts_ns,
    r.largest AS largest_norm,
    printf('%.3g', r.percentile_90) AS percentile_90,
    'the norm that was logged is exactly 0 in all ' || g.n_norms || ' steps, yet the recorder saw gradients of norms up to '
        || printf('%.3g', r.largest) || ' reach the optimizer: the norm is taken, and whatever clips by it acts, where there are no gradients' AS what,
    'Call clip_grad_norm_ after backward (and after scaler.unscale_) and before optimizer.step(), with a list of parameters: before backward, or given a generator that was walked already, it sees none.' AS remedy,
    CASE WHEN l.is_harmed THEN 'high' ELSE 'medium' END AS severity,
    CASE WHEN l.is_harmed THEN ['gradient-invalid'] ELSE [] END AS causes,
    [{'artifact_id': g.artifact_id, 'row': g.row, 'line': g.line::INTEGER, 'note': 'the first of the norms that were logged'}] AS evidence,
    'unseen' AS key
FROM logged AS g
JOIN reaching AS r ON r.proc_id IS NOT DISTINCT FROM g.proc_id
LEFT JOIN loss AS l ON l.proc_id IS NOT DISTINCT FROM g.proc_id
ORDER BY r.ts_ns, r.artifact_id, r.row;
-- variant: absent
WITH
norm AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        max_by(row, (value, -place)) AS row,
        max_by(line, (value, -place)) AS line,
        max_by(step, (value, -place)) AS step,
        max_by(ts_ns, (value, -place)) AS ts_ns,
        max(value) AS largest,
        quantile_cont(value, 0.9) AS percentile_90
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1 AND isfinite(value)
    GROUP BY artifact_id, proc_id, rank
    HAVING count(*) >= $min_points AND max(value) > $burst * quantile_cont(value, 0.9)
),
-- Clipping that any settings switch on, by norm, by value or under a name of the job's own.
switched AS (
    SELECT
        min_by({'artifact_id': artifact_id, 'line': line}, (artifact_id, line)) FILTER (WHERE is_off) AS place,
        coalesce(bool_or(NOT is_off), FALSE) AS is_on
    FROM (
        SELECT
            artifact_id,
            line,
            coalesce(number = 0, FALSE) OR lower(value) IN ('none', 'null', 'false', 'off', 'inf', 'no') AS is_off
        FROM fact
        WHERE scope IN ('option', 'command')
          AND regexp_matches(lower(split_part(key, '.', -1)), '(^|_)(clip|clipping)(_|$)|^max_(grad_)?norm$')
    )
),
scaling (name) AS (
    VALUES ('aten::_foreach_mul_'), ('aten::mul_'), ('aten::_foreach_clamp_min_'), ('aten::_foreach_clamp_max_'), ('aten::clamp_'), ('aten::_foreach_div_'), ('aten::div_')
),
called AS (
    SELECT
        s.artifact_id,
        s.proc_id,
        s.step,
        max(s.ts_ns) FILTER (WHERE n.text LIKE '%AccumulateGrad%') AS accumulated_ns,
        min(s.ts_ns) FILTER (WHERE n.text LIKE 'Optimizer.step#%') AS stepped_ns,
        min(s.row) FILTER (WHERE n.text LIKE 'Optimizer.step#%') AS row
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.step IS NOT NULL AND (n.text LIKE '%AccumulateGrad%' OR n.text LIKE 'Optimizer.step#%')
    GROUP BY s.artifact_id, s.proc_id, s.step
    HAVING accumulated_ns < stepped_ns
),
traced AS (
    SELECT
        c.proc_id,
        min(c.artifact_id) AS artifact_id,
        min_by(c.row, (c.artifact_id, c.step)) AS row,
        count(*) AS n_steps
    FROM called AS c
    GROUP BY c.proc_id
    HAVING count(*) >= $min_traced AND NOT bool_or(EXISTS (
        SELECT 1 FROM slice AS s JOIN string AS n ON n.id = s.name_id JOIN scaling AS k ON k.name = n.text
        WHERE s.artifact_id = c.artifact_id AND s.ts_ns > c.accumulated_ns AND s.ts_ns < c.stepped_ns
    ))
),
reaching AS (
    SELECT
        proc_id,
        min(artifact_id) AS artifact_id,
        max_by(row, (norm, -step)) AS row,
        max(norm) AS total
    FROM reaching_gradient
    GROUP BY proc_id
),
loss AS (
    SELECT
        proc_id,
        NOT bool_and(isfinite(value)) OR max(value) > $harm * median(value) FILTER (WHERE isfinite(value)) AS is_harmed
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY proc_id
)
SELECT
    n.artifact_id,
    n.row,
    n.line,
    n.proc_id,
    n.rank,
    n.step,
    n.ts_ns,
    n.largest / n.percentile_90 AS burst,
    printf('%.3g', n.percentile_90) AS percentile_90,
    'a gradient norm of ' || printf('%.3g', n.largest) || ' at step ' || coalesce(n.step::VARCHAR, 'unknown') || ' is '
        || printf('%.0f', n.largest / n.percentile_90) || ' times what nine in ten stay below, and gradients are not clipped: '
        || CASE
            WHEN s.place IS NOT NULL THEN 'the settings switch it off'
            WHEN r.total > $burst * n.percentile_90 THEN 'the recorder saw gradients of norm ' || printf('%.3g', r.total) || ' reach the optimizer'
            ELSE 'nothing scales them between backward and the optimizer in ' || t.n_steps || ' traced steps'
        END AS what,
    'If single batches make such gradients, clip the total norm near its 90th percentile, ' || printf('%.3g', n.percentile_90) || ' here: clip_grad_norm_(parameters, '
        || printf('%.3g', n.percentile_90) || ') after backward (and after scaler.unscale_).' AS remedy,
    CASE WHEN l.is_harmed THEN 'medium' ELSE 'info' END AS severity,
    [] AS causes,
    CASE
        WHEN s.place IS NOT NULL
            THEN [{'artifact_id': s.place.artifact_id, 'row': NULL::BIGINT, 'line': s.place.line::INTEGER, 'note': 'the setting'}]
        WHEN r.total > $burst * n.percentile_90
            THEN [{'artifact_id': r.artifact_id, 'row': r.row, 'line': NULL::INTEGER, 'note': 'the first of the gradients that reached the optimizer'}]
    END AS evidence,
    'absent' AS key
FROM norm AS n
CROSS JOIN switched AS s
LEFT JOIN traced AS t ON t.proc_id IS NOT DISTINCT FROM n.proc_id
LEFT JOIN reaching AS r ON r.proc_id IS NOT DISTINCT FROM n.proc_id
LEFT JOIN loss AS l ON l.proc_id IS NOT DISTINCT FROM n.proc_id
WHERE NOT s.is_on AND (s.place IS NOT NULL OR t.n_steps IS NOT NULL OR r.total > $burst * n.percentile_90)
ORDER BY n.ts_ns, n.artifact_id, n.row;
