/*
title = "The loss jumped out of its course"
severity = "high"
proves = """
A logged loss lies many robust deviations and a multiple above the run's own last values; whether it came back is said."""
cannot_prove = """
What made it jump, beyond what changed in the same step: the rate, the attempt, the loss scale."""
message = "{who}: the loss jumped from {before} to {loss}{at_step}{course}{changed}"
fix = "Look at the batch of that step (units, lengths, labels); skip batches whose gradient norm is far above its percentile, or lower the rate."
requires = [{ state = "gradient-invalid", of = "rank" }, { state = "value-nonfinite", of = "rank" }]

[thresholds.min_deviations]
value = 10.0
unit = "(loss - median of the last 20) / (1.4826 * median absolute deviation)"
why = "losses of small batches scatter by three to five deviations"

[thresholds.min_ratio]
value = 3.0
unit = "loss / median of the last 20, for a jump that comes back"
measured = "loss / before"
why = "a hard batch can double a loss"

[thresholds.min_far_ratio]
value = 100.0
unit = "loss / median of the last 20, for a jump that comes back and is more than a hard batch"
why = "one example with a wrong label raises the loss of its batch tens of times; a hundred times is another scale of data"

[thresholds.min_lasting_ratio]
value = 1.15
unit = "each of the next losses / median of the last 20"
why = "beyond the scatter of a trend; the deviations above hold as well"

[thresholds.min_lasting]
value = 3
unit = "logged losses in a row"
why = "one alone is a batch, three are the run"

[thresholds.min_past]
value = 8
unit = "logged losses before"
why = "fewer give no deviation"

[variant.metrics]
needs = ["sample"]
strength = "strong"
*/
-- variant: metrics
WITH
curve AS (
    SELECT
        *,
        list(value ORDER BY place) OVER (w ROWS BETWEEN 20 PRECEDING AND 1 PRECEDING) AS past,
        min(value) OVER (w ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) AS least_of_next,
        count(*) OVER (w ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING) AS n_next
    FROM training_curve
    WHERE name = 'loss' AND isfinite(value)
    WINDOW w AS (PARTITION BY artifact_id, series ORDER BY place)
),
scattered AS (
    SELECT
        *,
        list_median(past) AS before,
        1.4826 * list_median(list_transform(past, LAMBDA x: abs(x - list_median(past)))) AS deviation
    FROM curve
    WHERE len(past) >= $min_past
),
jump AS (
    SELECT
        *,
        n_next >= $min_lasting AND least_of_next > $min_lasting_ratio * before
            AND least_of_next > before + 0.5 * $min_deviations * deviation
            AND least_of_next > before + 0.3 * (value - before) AS is_lasting
    FROM scattered
    WHERE before > 0 AND value > before + $min_deviations * greatest(deviation, 0.001 * before)
      AND value > $min_lasting_ratio * before
)
SELECT
    j.artifact_id,
    j.row,
    j.line,
    j.proc_id,
    j.rank,
    j.step,
    j.ts_ns,
    printf('%.4g', j.before) AS before,
    printf('%.4g', j.value) AS loss,
    CASE
        WHEN j.is_lasting THEN ' and stayed up'
        WHEN j.n_next = 0 THEN ', the last that was logged'
        WHEN j.n_next < $min_lasting AND j.least_of_next > $min_lasting_ratio * j.before THEN ' and had not come back when the record ends'
        ELSE ' and came back'
    END AS course,
    CASE WHEN r.value > 1.5 * r.before_value THEN '; in the same step the learning rate rose to ' || printf('%.3g', r.value) ELSE '' END AS changed,
    CASE WHEN j.is_lasting THEN ['gradient-invalid'] ELSE [] END AS causes,
    CASE WHEN j.is_lasting OR j.value > $min_far_ratio * j.before THEN 'high' ELSE 'info' END AS severity,
    'spike' AS key
FROM jump AS j
LEFT JOIN (
    SELECT *, lag(value) OVER (PARTITION BY artifact_id, series ORDER BY place) AS before_value
    FROM training_curve WHERE name = 'learning_rate'
) AS r ON r.artifact_id = j.artifact_id AND r.step = j.step AND r.proc_id IS NOT DISTINCT FROM j.proc_id
WHERE (j.is_lasting OR j.value > $min_ratio * j.before)
  -- The last of losses that nothing counts is often that of a comparison, printed when all is done.
  AND (j.count_of_steps IS NOT NULL OR j.n_next > 0)
QUALIFY row_number() OVER (
    PARTITION BY j.proc_id
    ORDER BY j.preference, j.is_lasting OR j.value > $min_far_ratio * j.before DESC, j.place, r.row
) = 1
ORDER BY j.ts_ns, j.artifact_id, j.row;
-- against: metrics
WITH
curve AS (
    SELECT
        artifact_id,
        proc_id,
        row,
        line,
        step,
        place,
        value,
        value / median(value) OVER (PARTITION BY artifact_id, proc_id ORDER BY place ROWS BETWEEN 20 PRECEDING AND 1 PRECEDING) AS ratio
    FROM training_curve
    WHERE name = 'loss' AND preference = 1 AND isfinite(value)
)
SELECT
    artifact_id,
    max_by(row, (ratio, -place)) AS row,
    max_by(line, (ratio, -place)) AS line,
    proc_id,
    'The loss is never more than ' || printf('%.3g', max(ratio)) || ' times the median of the 20 before it' || coalesce(', most in step ' || max_by(step, (ratio, -place)), '') AS says
FROM curve
WHERE place > $min_past
  AND NOT EXISTS (
    SELECT 1 FROM training_curve AS b
    WHERE b.artifact_id = curve.artifact_id AND b.proc_id IS NOT DISTINCT FROM curve.proc_id AND b.name = 'loss' AND NOT isfinite(b.value)
  )
GROUP BY artifact_id, proc_id
HAVING min(value) > 0 AND max(ratio) < $min_ratio
ORDER BY artifact_id, proc_id;
