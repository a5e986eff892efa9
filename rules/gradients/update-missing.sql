/*
title = "Parameters do not change although they have gradients"
severity = "critical"
cannot_prove = """
Where the parameters or the rate went missing in the code. Contents are compared by a checksum over a sample of them."""
message = "{who}: {what}{at_step}{since}: {why}"
fix = "{remedy}"
causes = [{ state = "weights-unmoved", of = "rank" }]
requires = [{ state = "weights-unmoved", of = "rank" }]

[thresholds.min_samples]
value = 3
unit = "sampled steps in a row, the last one included"
why = "a scaler skips a step now and then, and a warm-up starts at a rate of zero"

[thresholds.min_share]
value = 0.05
unit = "parameters that stay the same / parameters with a gradient"
measured = "n_still / n_parameters"
why = "single parameters may sit at a bound or a minimum"

[thresholds.min_logged]
value = 10
unit = "logged steps with a rate of zero, at the end"
why = "schedules end at zero, for the last step"

[thresholds.min_gradient]
value = 1e-6
unit = "gradient norm / largest of the step"
why = "a bias in front of a normalisation has no gradient but rounding"

[thresholds.resolution]
value = 6e-8
unit = "rate * largest gradient / largest weight"
why = "half a unit in the last place of float32, relative to the weight"

[thresholds.min_evaluations]
value = 3
unit = "evaluations with the same loss, the first and the last included"
why = "two can be of one state: at the end of an epoch and of the run"

[thresholds.max_still_range]
value = 0.005
unit = "(largest - smallest loss) / median, of all logged losses"
why = "a run that learns, or diverges, moves by percents; batches of a model that stays the same scatter by tenths of a percent when averaged over an epoch"

[thresholds.min_still]
value = 6
unit = "logged losses"
why = "fewer can be a warm-up"

[variant.tensors]
needs = ["tensor"]
strength = "proof"
proves = """
Over several sampled steps the contents of parameters are the same while their gradients are finite and not zero. The
version counter says whether anything wrote to them: an optimizer that does not hold them never does."""

[variant.metrics]
needs = ["sample"]
strength = "indication"
proves = """
The logged learning rate is 0, from the named step to the end: an optimizer whose rate is 0 changes no parameter."""
says = "Only the logged rate is known; that parameters stay the same follows from it unless a group has a rate of its own."

[variant.evaluations]
needs = ["sample"]
strength = "strong"
proves = """
Evaluations between which the run trained give one and the same loss, to the last digit."""
says = "That the weights are the same follows from the loss; whether gradients arrive is not in the metrics."

[variant.settings]
needs = ["sample", "fact"]
strength = "indication"
proves = """
The loss does not move in any logged step of a run whose settings let wrapping replace the parameters that an optimizer
was made for."""
says = "The loss shows that nothing is learned; that the optimizer holds parameters from before the wrapping is the setting's known trap, and not on record."
*/
-- variant: tensors
WITH
reading AS (
    SELECT
        *,
        coalesce(checksum <> lag(checksum) OVER w OR norm <> lag(norm) OVER w, FALSE) AS has_changed,
        gradient_norm / nullif(max(gradient_norm) OVER (PARTITION BY artifact_id, proc_id, step), 0) AS gradient_share,
        max(step) OVER (PARTITION BY artifact_id, proc_id) AS last_step
    FROM gradient_reading
    WHERE checksum IS NOT NULL
    WINDOW w AS (PARTITION BY artifact_id, proc_id, name ORDER BY step)
),
tail AS (
    -- From its last change on.
    SELECT r.*
    FROM reading AS r
    WHERE NOT EXISTS (
        SELECT 1 FROM reading AS c
        WHERE c.artifact_id = r.artifact_id AND c.proc_id IS NOT DISTINCT FROM r.proc_id AND c.name = r.name
          AND c.has_changed AND c.step > r.step
    )
),
course AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(version) - min(version) AS n_writes,
        max(dtype) AS dtype,
        max(gradient_absmax / nullif(absmax, 0)) AS relative_gradient,
        count(*) >= $min_samples AND max(step) = max(last_step) AND min(gradient_norm) > 0
            AND min(gradient_share) > $min_gradient AND bool_and(isfinite(gradient_norm)) AND coalesce(sum(n_nonfinite), 0) = 0 AS is_still
    FROM tail
    WHERE gradient_norm IS NOT NULL
    GROUP BY artifact_id, proc_id, rank, name
),
still AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        c.rank,
        min(c.row) FILTER (WHERE c.is_still) AS row,
        max(c.step) FILTER (WHERE c.is_still) AS sampled_from,
        min(c.ts_ns) FILTER (WHERE c.is_still) AS ts_ns,
        count(*) FILTER (WHERE c.is_still) AS n_still,
        count(*) AS n_parameters,
        coalesce(max(c.n_writes) FILTER (WHERE c.is_still), 0) AS n_writes,
        bool_and(c.dtype IN ('bfloat16', 'float16')) FILTER (WHERE c.is_still) AS is_half,
        max(c.relative_gradient) FILTER (WHERE c.is_still) AS relative_gradient,
        min_by(c.name, c.row) FILTER (WHERE c.is_still) AS first_name
    FROM course AS c
    GROUP BY c.artifact_id, c.proc_id, c.rank
    HAVING count(*) FILTER (WHERE c.is_still) >= greatest(1, $min_share * count(*))
),
rate AS (
    SELECT
        s.artifact_id,
        max(r.value) FILTER (WHERE r.step > s.sampled_from) AS rate,
        min(r.step) FILTER (WHERE r.value = 0 AND r.step >= coalesce(x.last_moving, -1)) AS zero_from
    FROM still AS s
    JOIN training_curve AS r ON r.proc_id IS NOT DISTINCT FROM s.proc_id AND r.name = 'learning_rate' AND r.preference = 1
    LEFT JOIN (
        SELECT proc_id, max(step) AS last_moving FROM training_curve
        WHERE name = 'learning_rate' AND preference = 1 AND value <> 0 GROUP BY proc_id
    ) AS x ON x.proc_id IS NOT DISTINCT FROM s.proc_id
    GROUP BY s.artifact_id
),
judged AS (
    SELECT
        s.*,
        r.zero_from,
        CASE
            WHEN r.rate = 0 THEN 'rate-zero'
            WHEN s.n_writes = 0 THEN 'not-held'
            WHEN s.is_half OR r.rate * s.relative_gradient < $resolution THEN 'rounded-away'
            ELSE 'written-back'
        END AS reason
    FROM still AS s
    LEFT JOIN rate AS r ON r.artifact_id = s.artifact_id
    -- A scaler that skips these steps is told by its own rules.
    WHERE NOT EXISTS (
        SELECT 1 FROM training_curve AS k
        WHERE k.proc_id IS NOT DISTINCT FROM s.proc_id AND k.name = 'optimizer_skipped' AND k.step > s.sampled_from
        HAVING count(*) > 0 AND min(k.value) = 1
    )
)
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    CASE reason WHEN 'rate-zero' THEN coalesce(zero_from, sampled_from) ELSE sampled_from END AS step,
    ts_ns,
    n_still,
    n_parameters,
    n_writes,
    reason,
    n_still || ' of ' || n_parameters || CASE WHEN n_parameters = 1 THEN ' parameter stays' ELSE ' parameters stay' END || ' the same' AS what,
    ' and in all later samples although they have gradients' AS since,
    first_name AS module,
    CASE reason
        WHEN 'rate-zero' THEN 'the learning rate is 0'
        WHEN 'not-held' THEN 'nothing ever writes to them, so no optimizer holds them; the first is ' || first_name
        WHEN 'rounded-away' THEN 'the optimizer writes to them, and the update is less than half a unit in the last place of their type'
        ELSE 'they are written to and come out the same'
    END AS why,
    CASE reason
        WHEN 'rate-zero' THEN 'Check the number of steps that the schedule was made for, and how often scheduler.step() is called.'
        WHEN 'not-held' THEN 'Make the optimizer after the model is complete (adapters, tied weights, wrappers), or add_param_group the new parameters.'
        WHEN 'rounded-away' THEN 'Keep float32 weights and compute in bfloat16 under autocast, or use stochastic rounding or a larger rate.'
        ELSE 'Look for code that copies weights back after the step (averaging, clamping, a restored state).'
    END AS remedy,
    CASE reason WHEN 'rounded-away' THEN 'high' ELSE 'critical' END AS severity,
    'its gradient' AS note,
    (
        SELECT list({'artifact_id': e.artifact_id, 'row': e.row, 'table': e.of_table, 'note': e.note} ORDER BY e.place)
        FROM (
            SELECT 0 AS place, t.artifact_id, min_by(t.row, t.step) AS row, 'tensor' AS of_table, 'its contents from there on' AS note
            FROM tensor AS t JOIN string AS n ON n.id = t.name_id
            WHERE t.artifact_id = j.artifact_id AND t.role = 'parameter' AND n.text = j.first_name AND t.step >= j.sampled_from
            GROUP BY t.artifact_id
            UNION ALL
            SELECT 1, t.artifact_id, max_by(t.row, t.step), 'tensor', 'the same in the last sample'
            FROM tensor AS t JOIN string AS n ON n.id = t.name_id
            WHERE t.artifact_id = j.artifact_id AND t.role = 'parameter' AND n.text = j.first_name AND t.step >= j.sampled_from
            GROUP BY t.artifact_id
            UNION ALL
            SELECT 2, r.artifact_id, min_by(r.row, r.step), 'sample', 'the learning rate'
            FROM training_curve AS r
            WHERE j.reason = 'rate-zero' AND r.proc_id IS NOT DISTINCT FROM j.proc_id AND r.name = 'learning_rate'
              AND r.preference = 1 AND r.value = 0 AND r.step >= coalesce(j.zero_from, j.sampled_from)
            GROUP BY r.artifact_id
        ) AS e
    ) AS evidence,
    reason AS key
FROM judged AS j
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY n_still DESC, artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- against: tensors
WITH
course AS (
    SELECT
        artifact_id,
        proc_id,
        name,
        count(*) AS n_samples,
        count(DISTINCT checksum) AS n_contents,
        max_by(row, step) AS row
    FROM gradient_reading
    WHERE checksum IS NOT NULL
    GROUP BY artifact_id, proc_id, name
)
SELECT
    artifact_id,
    min_by(row, name) AS row,
    'tensor' AS "table",
    proc_id,
    'The contents of all ' || count(*) || ' parameters changed over ' || max(n_samples) || ' sampled steps' AS says
FROM course
GROUP BY artifact_id, proc_id
HAVING bool_and(n_contents > 1)
ORDER BY artifact_id, proc_id;
-- variant: metrics
WITH
moving AS (
    SELECT
        artifact_id,
        series,
        max(place) FILTER (WHERE value > 0) AS last_moving
    FROM training_curve
    WHERE name = 'learning_rate' AND source = 'metrics'
    GROUP BY artifact_id, series
)
SELECT
    c.artifact_id,
    min_by(c.row, c.place) AS row,
    min_by(c.line, c.place) AS line,
    c.proc_id,
    c.rank,
    min_by(c.step, c.place) AS step,
    min(c.ts_ns) AS ts_ns,
    'all' AS n_still,
    'all' AS n_parameters,
    'rate-zero' AS reason,
    'the parameters stay the same' AS what,
    '' AS since,
    'the learning rate is 0 in the last ' || count(*) || ' logged steps' AS why,
    'Check the number of steps that the schedule was made for, and how often scheduler.step() is called.' AS remedy,
    'rate-zero' AS key
FROM training_curve AS c
JOIN moving AS m ON m.artifact_id = c.artifact_id AND m.series = c.series
WHERE c.name = 'learning_rate' AND c.value = 0 AND c.place > coalesce(m.last_moving, 0) AND c.preference = 1
GROUP BY c.artifact_id, c.proc_id, c.rank, c.n
HAVING count(*) >= $min_logged AND count(*) >= 0.2 * c.n
ORDER BY ts_ns, artifact_id, row;
-- variant: evaluations
WITH
course AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        series,
        min(row) AS row,
        min(line) AS line,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(row) AS last_row,
        count(*) AS n_evaluations,
        min(value) AS value
    FROM training_curve
    WHERE name = 'eval_loss' AND preference = 1
    GROUP BY artifact_id, proc_id, rank, series
    -- Values that are printed with three digits can be the same by rounding.
    HAVING count(*) >= $min_evaluations AND min(value) = max(value) AND isfinite(min(value)) AND min(value) <> 0
        AND abs(min(value) * 1000 - round(min(value) * 1000)) > 1e-6
),
-- Losses of training between the first and the last evaluation.
trained AS (
    SELECT
        c.artifact_id,
        c.row,
        count(*) AS n_losses
    FROM course AS c
    JOIN training_curve AS t ON t.artifact_id = c.artifact_id AND t.proc_id IS NOT DISTINCT FROM c.proc_id
    WHERE t.name = 'loss' AND t.row > c.row AND t.row < c.last_row
    GROUP BY c.artifact_id, c.row
)
SELECT
    c.artifact_id,
    c.row,
    c.line,
    c.proc_id,
    c.rank,
    c.step,
    c.ts_ns,
    'all' AS n_still,
    'all' AS n_parameters,
    'same-evaluation' AS reason,
    'the parameters stay the same' AS what,
    '' AS since,
    c.n_evaluations || ' evaluations give exactly the same loss (' || c.value || '), although ' || t.n_losses || ' training losses lie between the first and the last' AS why,
    'Compare a parameter before and after optimizer.step(): make the optimizer after the model is complete (device, adapters, wrappers such as FSDP), look for requires_grad, a rate of 0, a scaler that skips every step, and an evaluation that loads or uses another copy of the model.' AS remedy,
    'same-evaluation' AS key
FROM course AS c
JOIN trained AS t ON t.artifact_id = c.artifact_id AND t.row = c.row
QUALIFY row_number() OVER (PARTITION BY c.proc_id ORDER BY c.n_evaluations DESC, c.artifact_id, c.row) = 1
ORDER BY c.ts_ns, c.artifact_id, c.row;
-- variant: settings
WITH
course AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min(line) AS line,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n_losses,
        median(value) AS middle,
        (max(value) - min(value)) / median(value) AS span
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY artifact_id, proc_id, rank
    HAVING count(*) >= $min_still AND bool_and(isfinite(value)) AND min(value) > 0
),
rate AS (
    SELECT proc_id, max(value) AS rate FROM training_curve WHERE name = 'learning_rate' GROUP BY proc_id
),
flattened AS (
    SELECT artifact_id, line, key
    FROM fact
    WHERE lower(key) SIMILAR TO '(.*[._])?(fsdp_)?use_orig_params' AND lower(value) = 'false'
    QUALIFY row_number() OVER (ORDER BY artifact_id, line, key) = 1
)
SELECT
    c.artifact_id,
    c.row,
    c.line,
    c.proc_id,
    c.rank,
    c.step,
    c.ts_ns,
    'all' AS n_still,
    'all' AS n_parameters,
    'flattened' AS reason,
    'nothing is learned' AS what,
    '' AS since,
    'the loss stays within ' || printf('%.2g', 100 * c.span) || ' % of ' || printf('%.4g', c.middle) || ' in all ' || c.n_losses
        || ' logged steps at rates up to ' || printf('%.2g', r.rate) || ', and FSDP replaces the parameters by flat ones (' || f.key
        || ' = false): an optimizer made before the model was wrapped holds the old ones' AS why,
    'Wrap or prepare the model first and make the optimizer from its parameters after that, or set use_orig_params to true. Check: the parameters in optimizer.param_groups have a gradient after the backward.' AS remedy,
    [{'artifact_id': f.artifact_id, 'line': f.line, 'note': 'the setting'}] AS evidence,
    'flattened' AS key
FROM course AS c
JOIN rate AS r ON r.proc_id IS NOT DISTINCT FROM c.proc_id
CROSS JOIN flattened AS f
WHERE c.span <= $max_still_range AND r.rate > 0
QUALIFY row_number() OVER (PARTITION BY c.proc_id ORDER BY c.n_losses DESC, c.artifact_id, c.row) = 1
ORDER BY c.ts_ns, c.artifact_id, c.row;
