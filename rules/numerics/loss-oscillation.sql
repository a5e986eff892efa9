/*
title = "The loss swings from step to step more than it used to"
severity = "info"
proves = """
From one step on the loss scatters about its own course several times as much as before, turns back and forth, and goes
nowhere on the whole. Where the spread of the losses within each batch was logged, it is also told whether whole batches
or single examples differ."""
cannot_prove = """
What makes them differ: augmentation, labels, order and source of the data look the same in the loss."""
message = "{who}: from step {step} on the loss swings by about {swing} from one step to the next, {times} times as much as before, around {level} (before: {past_level}){reason}{changed}"
fix = "Compare what the input pipeline gives from that step on with what it gave before: augmentation and its strength, source and order of the data, labels; look at the batches with the largest losses."
requires = [{ state = "gradient-invalid", of = "rank" }, { state = "value-nonfinite", of = "rank" }]

[thresholds.min_times]
value = 3.0
unit = "scatter of the next 20 losses, and of all later ones, / scatter of the 40 before; medians of |loss - mean of its neighbours|"
measured = "times"
why = "medians over 20 random values differ by less than half; a batch nine times as small scatters three times as much"

[thresholds.min_past]
value = 40
unit = "logged losses before"
why = "what is usual for a run has to be known"

[thresholds.min_later]
value = 20
unit = "logged losses from there on"
why = "a few are a hard stretch of data"

[thresholds.min_turns]
value = 0.5
unit = "turning points / losses"
why = "independent values turn at two of three; a slow wave, or growth, turns seldom"

[thresholds.min_share]
value = 0.1
unit = "scatter / median of the loss; or / what it had fallen until then, where that is less, and ten times its scatter"
why = "less does not show in a curve, whose height is what the loss fell"

[thresholds.max_drift]
value = 1.0
unit = "change of the median from the first to the second half of the later losses / their standard deviation"
why = "more is a trend, which the scatter comes with"

[thresholds.min_loss_ratio]
value = 1.15
unit = "mean loss from there on / mean of the 40 losses before"
why = "beyond the scatter of a trend: steps are lost. Below it the swing is told and not judged"

[thresholds.min_between]
value = 3.0
unit = "standard deviation of the loss / (spread within batches / sqrt(batch size))"
why = "batches of examples drawn at random give one"

[variant.metrics]
needs = ["sample"]
strength = "strong"
*/
-- variant: metrics
WITH
whole AS (
    -- Medians over NaN fail, and a loss that is lost does not oscillate.
    SELECT *
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    QUALIFY bool_and(isfinite(value)) OVER (PARTITION BY artifact_id, proc_id)
),
curve AS (
    SELECT
        *,
        abs(value - (lag(value) OVER w + lead(value) OVER w) / 2) AS bend,
        CAST((value - lag(value) OVER w) * (lead(value) OVER w - value) < 0 AS INTEGER) AS turn
    FROM whole
    WINDOW w AS (PARTITION BY artifact_id, proc_id ORDER BY place)
),
scattered AS (
    -- The losses before a place and from it on; bends beside it belong to both and are left out of the past.
    SELECT
        *,
        median(bend) OVER (w ROWS BETWEEN 41 PRECEDING AND 2 PRECEDING) AS past_bend,
        median(bend) OVER (w ROWS BETWEEN CURRENT ROW AND 19 FOLLOWING) AS next_bend,
        median(value) OVER (w ROWS BETWEEN 40 PRECEDING AND 1 PRECEDING) AS past_median,
        median(value) OVER (w ROWS BETWEEN 10 PRECEDING AND 1 PRECEDING) AS recent_median,
        avg(value) OVER (w ROWS BETWEEN 40 PRECEDING AND 1 PRECEDING) AS past_mean,
        max(value) FILTER (WHERE place <= 5) OVER (PARTITION BY artifact_id, proc_id) AS first_value
    FROM curve
    WINDOW w AS (PARTITION BY artifact_id, proc_id ORDER BY place)
),
beside AS (
    -- A loss of seven digits that no longer moves scatters by less than its last one tells.
    SELECT * REPLACE (greatest(past_bend, 1e-6 * abs(past_median)) AS past_bend)
    FROM scattered
),
change AS (
    -- The first loss from which on they scatter and which lies three standard deviations off the course. Of independent
    -- values of one standard deviation, half of the bends are above 0.826.
    SELECT *
    FROM beside
    WHERE place > 10 AND next_bend >= $min_times * past_bend AND past_bend > 0
      AND abs(value - recent_median) >= $min_times * past_bend / 0.826
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY place) = 1
),
later AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        median(l.bend) AS bend,
        median(l.value) AS level,
        avg(l.value) AS mean,
        avg(l.turn) AS turns,
        median(l.value) FILTER (WHERE 2 * l.place >= c.place + c.n) - median(l.value) FILTER (WHERE 2 * l.place < c.place + c.n) AS drift,
        median(l.bend) / 0.826 AS deviation
    FROM change AS c
    JOIN curve AS l ON l.artifact_id = c.artifact_id AND l.proc_id IS NOT DISTINCT FROM c.proc_id AND l.place >= c.place
    GROUP BY c.artifact_id, c.proc_id
),
spread AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        median(s.value) FILTER (WHERE s.step < c.step) AS before,
        median(s.value) FILTER (WHERE s.step >= c.step) AS after,
        median(s.value / sqrt(b.value)) FILTER (WHERE s.step >= c.step) AS expected
    FROM change AS c
    JOIN metric AS s ON s.proc_id IS NOT DISTINCT FROM c.proc_id AND s.name = 'loss_std' AND s.step >= c.step - 40
    LEFT JOIN metric AS b ON b.artifact_id = s.artifact_id AND b.step = s.step AND b.name = 'batch_size' AND b.value > 0
    GROUP BY c.artifact_id, c.proc_id
),
setting AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        max_by(m.value, m.step) FILTER (WHERE m.name = 'batch_size' AND m.step < c.step) AS old_batch,
        min_by(m.value, m.step) FILTER (WHERE m.name = 'batch_size' AND m.step >= c.step) AS new_batch
    FROM change AS c
    JOIN metric AS m ON m.proc_id IS NOT DISTINCT FROM c.proc_id AND m.name = 'batch_size'
    GROUP BY c.artifact_id, c.proc_id
),
rate AS (
    -- Where the rate last rose by half and more, up to 40 steps before: what is too large for the valley grows out of
    -- a course that did not scatter only by and by.
    SELECT
        c.artifact_id,
        c.proc_id,
        max(m.step) AS step,
        max_by(m.value, m.step) AS value
    FROM change AS c
    JOIN (
        SELECT
            *,
            lag(value) OVER (PARTITION BY artifact_id, proc_id ORDER BY step, row) AS before
        FROM metric
        WHERE name = 'learning_rate'
    ) AS m ON m.proc_id IS NOT DISTINCT FROM c.proc_id AND m.step BETWEEN c.step - 40 AND c.step
    WHERE m.value > 1.5 * m.before
    GROUP BY c.artifact_id, c.proc_id
)
SELECT
    c.artifact_id,
    c.row,
    c.line,
    c.proc_id,
    c.rank,
    c.step,
    c.ts_ns,
    printf('%.3g', l.deviation) AS swing,
    printf('%.3g', l.bend / c.past_bend) AS times,
    printf('%.3g', l.level) AS level,
    printf('%.3g', c.past_median) AS past_level,
    CASE
        WHEN s.expected IS NULL THEN '; how far the losses within a batch lie apart is not on record'
        WHEN l.deviation >= $min_between * s.expected
            THEN '; whole batches differ, ' || printf('%.3g', l.deviation / s.expected)
                || ' times as much as examples drawn at random let expect'
        WHEN s.after >= 1.5 * s.before
            THEN '; the losses within a batch lie further apart as well (' || printf('%.3g', s.after) || ', before '
                || printf('%.3g', s.before) || '): single examples differ, as with wrong labels'
        ELSE ''
    END AS reason,
    coalesce(CASE WHEN a.step < c.step THEN '; ' || (c.step - a.step) || ' steps before, the learning rate rose to ' ELSE '; there the learning rate rose to ' END
            || printf('%.3g', a.value), '')
        || CASE WHEN t.new_batch < 0.7 * t.old_batch THEN '; there the batch shrank to ' || printf('%.3g', t.new_batch) ELSE '' END AS changed,
    CASE WHEN a.step IS NOT NULL
        THEN 'Go back to the rate of before, or warm up longer: beyond twice the inverse of the curvature every step overshoots. If that changes nothing, compare the batches.'
    END AS fix,
    CASE WHEN l.mean > $min_loss_ratio * c.past_mean THEN 'high' ELSE 'info' END AS severity,
    CASE WHEN s.expected IS NULL AND a.step IS NULL THEN 'indication' ELSE 'strong' END AS strength,
    'oscillation' AS key
FROM change AS c
JOIN later AS l ON l.artifact_id = c.artifact_id AND l.proc_id IS NOT DISTINCT FROM c.proc_id
LEFT JOIN spread AS s ON s.artifact_id = c.artifact_id AND s.proc_id IS NOT DISTINCT FROM c.proc_id
LEFT JOIN rate AS a ON a.artifact_id = c.artifact_id AND a.proc_id IS NOT DISTINCT FROM c.proc_id
LEFT JOIN setting AS t ON t.artifact_id = c.artifact_id AND t.proc_id IS NOT DISTINCT FROM c.proc_id
WHERE c.place > $min_past AND c.n - c.place + 1 >= $min_later AND l.bend >= $min_times * c.past_bend
  AND l.turns >= $min_turns AND l.bend >= $min_share * CASE WHEN c.first_value - c.past_median > 10 * c.past_bend THEN least(abs(l.level), c.first_value - c.past_median) ELSE abs(l.level) END AND abs(l.drift) <= $max_drift * l.deviation
ORDER BY c.ts_ns, c.artifact_id, c.row;
