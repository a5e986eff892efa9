/*
title = "A non-finite value was born"
severity = "critical"
cannot_prove = """
Why the operands were what they were: bad data, a diverging run and a wrong formula give the same first operator."""
message = "{who}: {what}{at_step}{place}"
fix = "Look at what {op} read in that step on this rank, and at the batch; record the operators of the steps up to it (forensics_recorder), which tells the values that went in."
causes = [{ state = "value-nonfinite", of = "rank" }, { state = "rank-failed", of = "rank" }]
requires = [{ state = "gradient-invalid", of = "rank" }, { state = "value-nonfinite", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"]

[thresholds.min_nonfinite_steps]
value = 3
unit = "logged steps with a non-finite gradient norm while the loss is finite"
why = "a loss scaler overflows now and then by design and skips that step; a defect stays"

[thresholds.min_halvings]
value = 8
unit = "reductions of the loss scale, without a rise between"
why = "a healthy float16 run finds its scale within a few, far above one"

[variant.reduction]
needs = ["tensor.reduced"]
strength = "proof"
proves = "Gradients were finite on every recorded rank before they were reduced over the ranks, and not after."
says = "What a communication hook does to the gradients before it sums them, and in which type, is not on record: only what it was given and what it gave."

[variant.tensors]
needs = ["tensor", "node"]
strength = "proof"
proves = """
The operator named is the first of the recorded steps, over all recorded ranks, whose output is not finite although
its inputs are, or are masks, and what it gave reached the end of the forward or a gradient."""

[variant.anomaly]
needs = ["log_event"]
strength = "strong"
proves = "The backward named is the first whose result was NaN, as anomaly mode found."
says = "Anomaly mode names the first backward whose result was NaN. It does not look at infinities, nor at the forward: the birth can lie in the forward of the same operator or before it."

[variant.message]
needs = ["log_event"]
strength = "indication"
proves = "A check in the job or a library met a value that was not finite."
says = "A check in the job or a library found the value; where it was born lies before that check."

[variant.metrics]
needs = ["sample"]
strength = "indication"
proves = "From the step named on, a loss, a norm or a flag of the job says that values are not finite."
says = "Metrics name the step and the rank, not the operator. A loss that is averaged over several steps or filtered may show it later."

[variant.scale]
needs = ["sample"]
strength = "indication"
proves = """
The loss scale was reduced again and again, down to less than one, and never rose: gradients overflowed at each of
these scales."""
says = "Gradients overflowed at every loss scale down to less than one, where no finite gradient does: values of the forward or the derivative itself are not finite. Which operator gave them is not on record."

[thresholds.min_passing]
value = 10
unit = "logged losses"
why = "fewer show no course"

[thresholds.max_passing]
value = 0.2
unit = "losses that are not finite / all"
why = "more is how a run ends, with a few good values between"

[variant.passing]
needs = ["sample"]
strength = "indication"
proves = "Single losses of the run are not finite, and those after them are finite again."
says = "Steps that a loss scaler or a check in the loop skipped look the same."

[variant.report]
needs = ["log_event"]
strength = "indication"
proves = "A log says that a value was not finite."
says = "The log reports a value that was not finite; whether it came first, and from where, it does not say."
*/
-- variant: reduction
SELECT
    b.artifact_id,
    b.row,
    b.proc_id,
    b.rank,
    b.step,
    b.ts_ns,
    b.name AS module,
    'the reduction over the ranks' AS op,
    b.total,
    b.n_ranks,
    b.explained_by AS cause,
    'the reduction of gradients over the ranks gave the first value that is not finite' AS what,
    ', in ' || b.name || CASE WHEN b.n_parameters = 1 THEN '' ELSE ' and ' || (b.n_parameters - 1) || ' more' END
        || coalesce(' (by ' || h.value || ')', '') || ': what ' || CASE
            WHEN b.n_ranks < b.world_size OR b.world_size IS NULL THEN 'the ' || b.n_ranks || ' recorded ranks'
            WHEN b.n_ranks = 2 THEN 'both ranks'
            ELSE 'all ' || b.n_ranks || ' ranks' END
        || ' brought was finite, and the largest absolute values of that add up to ' || printf('%.6g', b.total) || CASE b.explained_by
            WHEN 'type' THEN ', beyond the ' || printf('%.6g', b.ends_at) || ' at which ' || b.handed_over_in || ' ends'
            WHEN 'float16' THEN ': far from the end of ' || coalesce(b.handed_over_in, 'its type') || ', and beyond the 65504 of float16, should they be summed in that'
            WHEN 'unrecorded' THEN '; what the other ranks brought is not on record'
            ELSE ', which no type is too small for: the sum itself does not explain it'
        END AS place,
    CASE WHEN b.n_ranks = b.world_size THEN 'proof' ELSE 'indication' END AS strength,
    CASE b.explained_by
        WHEN 'nothing' THEN 'Look at what the communication hook does besides summing: what it divides by (a count of samples or tokens that is 0), buffers that it sends before they are written, scaling. If there is none of its own, suspect the transport: compare checksums of a known buffer before and after an all_reduce over the same links.'
        WHEN 'unrecorded' THEN 'Record the buckets of all ranks (forensics_recorder: rec.watch_buckets(ddp)): one of the others may have brought the value.'
        ELSE 'Divide by the number of ranks before the sum, not after it; or sum in bfloat16 or float32; or lower the loss scale.'
    END AS fix,
    [{'artifact_id': o.artifact_id, 'row': o.row, 'note': 'what rank ' || o.rank || ' brought: up to ' || printf('%.6g', o.absmax)} FOR o IN (
        SELECT list({'artifact_id': t.artifact_id, 'row': t.row, 'rank': t.rank, 'absmax': t.absmax} ORDER BY t.rank, t.artifact_id, t.row)
        FROM tensor AS t JOIN proc AS q ON q.id = t.proc_id
        WHERE q.attempt = b.attempt AND t.role = 'bucket' AND t.step = b.step AND t.name_id = b.name_id
    )[1:8]] AS evidence,
    'reduction' AS key
FROM bad_reduction AS b
LEFT JOIN (SELECT proc_id, min(value) AS value FROM fact WHERE key = 'communication_hook' GROUP BY proc_id) AS h ON h.proc_id = b.proc_id
ORDER BY b.step, b.rank, b.artifact_id, b.row;
-- variant: tensors
SELECT
    z.artifact_id,
    z.row,
    'tensor' AS "table",
    z.proc_id,
    z.rank,
    coalesce(z.since, z.step) AS step,
    z.ts_ns,
    z.op,
    z.operator,
    z.module,
    z.phase,
    z.kind,
    z.cause,
    z.n_nan AS n_nan_out,
    z.n_inf AS n_inf_out,
    z.input_absmax,
    z.reaches_loss,
    z.first_parameter,
    z.n_parameters,
    z.n_reached,
    z.called_in AS where_in_code,
    CASE
        WHEN z.kind = 'unrecorded' OR z.cause = 'parameter' THEN 'indication'
        -- Without data flow, an operator that is not recorded could have written it as well.
        WHEN z.kind = 'parameter' OR (z.kind = 'data' AND NOT z.has_flow) THEN 'strong'
        ELSE 'proof'
    END AS strength,
    CASE
        WHEN z.cause = 'optimizer-step' THEN 'the optimizer''s step made ' || z.tensor_name || ' non-finite'
        WHEN z.kind = 'parameter' THEN 'parameter ' || z.tensor_name || ' was not finite when the recorded step began'
        WHEN z.kind = 'data' THEN 'the input of ' || z.op || ' held the first non-finite value'
        WHEN z.cause = 'unknown-operands' THEN 'the first non-finite value on record is what ' || z.op || ' gave'
        WHEN z.kind = 'unrecorded' THEN 'the first non-finite value on record is what ' || z.op || ' read'
        ELSE z.op || ' gave the first non-finite value'
    END AS what,
    CASE WHEN z.kind = 'parameter' THEN '' ELSE ' in the ' || z.phase END
        || CASE WHEN coalesce(z.module, '') IN ('', z.op) OR z.kind = 'parameter' THEN '' ELSE ' of ' || z.module END
        || CASE WHEN z.called_in IS NULL OR z.kind = 'parameter' THEN '' ELSE ', called in ' || z.called_in END
        || CASE WHEN z.kind = 'parameter' AND z.cause = 'parameter' THEN '; whether the optimizer''s step made it so is not on record'
            ELSE ': ' || z.why || CASE
                WHEN z.cause <> 'optimizer-step' THEN ''
                WHEN r.rate IS NOT NULL THEN '; the learning rate was ' || r.rate || ' at step ' || r.rate_step
                WHEN z.dtype = 'float16' AND starts_with(a.optimizer, 'Adam')
                    THEN '; it is float16, in which the eps of ' || a.optimizer || ' is zero unless it was raised to 1e-7 or more, so an update may be divided by zero'
                ELSE '' END
            END
        || CASE
            WHEN NOT z.reaches_loss OR z.kind = 'parameter' THEN ''
            -- What the recording takes for the loss need not be the one that the job logs.
            WHEN z.finite_loss IS NOT NULL
                THEN '; it reached the end of the recorded forward, while the loss that was logged for that step is finite (' || printf('%.4g', z.finite_loss) || ')'
            ELSE '; it reached the loss'
        END
        || CASE WHEN z.first_parameter IS NULL OR z.kind = 'parameter' THEN ''
            ELSE '; the first recorded gradient that it reached is that of ' || z.first_parameter END
        || CASE WHEN z.since < z.step THEN '; recorded operator by operator at step ' || z.step ELSE '' END
        || CASE WHEN z.n_recorded < z.world_size THEN '; operators of ' || z.n_recorded || ' of ' || z.world_size || ' ranks are on record' ELSE '' END AS place,
    CASE
        WHEN z.cause = 'optimizer-step' AND r.rate IS NOT NULL
            THEN 'Look at what the schedule gives at step ' || r.rate_step || ': a division by zero in a warm-up (step ** -0.5 at step 0), or a count that begins anew after a restart.'
        WHEN z.cause = 'optimizer-step' AND z.dtype = 'float16'
            THEN 'Keep float32 weights and compute in half precision under autocast, or raise the eps of the optimizer (1e-4 for float16).'
        WHEN z.kind = 'unrecorded'
        THEN 'Record the step again, whole (forensics_recorder), or run it under torch.autograd.set_detect_anomaly(True): the operator at fault is not on record. What is known begins at ' || z.op || '.'
        ELSE (
            SELECT min_by(replace(m.remedy, 'OP', z.op), m.family IS NULL) FROM nonfinite_remedy AS m
            WHERE m.cause = z.cause AND coalesce(m.family = z.family, TRUE)
        )
    END AS fix,
    z.op AS key,
    (
        SELECT list({'artifact_id': e.artifact_id, 'row': e.row, 'table': e.of_table, 'note': e.note} ORDER BY e.place, e.artifact_id, e.row)
        FROM (
            SELECT 0 AS place, i.artifact_id, i.row, 'tensor' AS of_table, 'what it read' AS note
            FROM (
                SELECT * FROM tensor AS t
                WHERE z.kind = 'operator' AND t.artifact_id = z.artifact_id AND t.node_id = z.node_id
                  AND t.step IS NOT DISTINCT FROM z.step AND t.role = 'input'
                ORDER BY t.absmax DESC NULLS LAST, t.row LIMIT 2
            ) AS i
            UNION ALL
            SELECT 1, t.artifact_id, min(t.row), 'tensor', 'the first recorded gradient that it reached'
            FROM tensor AS t JOIN string AS n ON n.id = t.name_id
            WHERE t.proc_id IS NOT DISTINCT FROM z.proc_id AND t.step = z.step AND t.role = 'gradient' AND t.node_id IS NULL
              AND n.text = z.first_parameter AND t.n_nan + t.n_inf > 0
            GROUP BY t.artifact_id
            UNION ALL
            SELECT 2, m.artifact_id, min(m.row), 'sample', 'the loss of that step'
            FROM training_curve AS m
            WHERE m.proc_id IS NOT DISTINCT FROM z.proc_id AND m.name = 'loss' AND m.step = z.step AND m.preference = 1
              AND z.reaches_loss
            GROUP BY m.artifact_id
            UNION ALL
            SELECT 3, b.artifact_id, b.row, 'tensor', 'another birth: ' || coalesce(g.text, o.text) || ', ' || b.why
            FROM birth AS b LEFT JOIN string AS o ON o.id = b.op_id LEFT JOIN string AS g ON g.id = b.autograd_id
            WHERE b.proc_id IS NOT DISTINCT FROM z.proc_id AND b.ordinal BETWEEN z.ordinal + 1 AND z.ordinal + 3 AND b.is_harmful
            UNION ALL
            SELECT 4, b.artifact_id, b.row, 'tensor', 'rank ' || b.rank || ' began a later step with it'
            FROM birth AS b JOIN proc AS q ON q.id = b.proc_id
            WHERE q.attempt = z.attempt AND b.cause = 'from-peer' AND b.ordinal = 0
            UNION ALL
            SELECT 5, l.artifact_id, l.row, 'log_event', 'the error that followed'
            FROM log AS l WHERE l.proc_id = z.proc_id AND l.class = 'numerics.nan-backward' AND l.role <> 'noise'
        ) AS e
    ) AS evidence
FROM first_birth AS z
LEFT JOIN nonfinite_rate AS r ON r.proc_id = z.proc_id AND r.rate_step <= z.step
LEFT JOIN (
    SELECT proc_id, min(fields ->> 'optimizer') AS optimizer FROM log WHERE signature = 'recorder-optimizer-began' GROUP BY proc_id
) AS a ON a.proc_id = z.proc_id
ORDER BY z.step, z.rank, z.artifact_id, z.row;
-- against: tensors
SELECT
    artifact_id,
    max_by(row, (step, row)) AS row,
    'tensor' AS "table",
    proc_id,
    'All ' || count(*) || ' recorded tensors are finite, up to step ' || max(step) AS says
FROM tensor
WHERE role IN ('input', 'output', 'gradient', 'parameter')
GROUP BY artifact_id, proc_id
HAVING bool_and(n_nan = 0 AND n_inf = 0) AND bool_or(node_id IS NOT NULL)
ORDER BY artifact_id, proc_id;
-- variant: anomaly
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    coalesce(e.fields ->> 'function', 'a backward operator') AS op,
    coalesce(e.fields ->> 'function', 'a backward operator') || ' is the first backward that returned NaN' AS what,
    e.fields ->> 'output_index' AS output_index,
    s.forward_op,
    f.where_in_code,
    coalesce('; its forward ran in ' || f.where_in_code, '') || coalesce(s.place, '') AS place,
    s.evidence,
    (
        SELECT min(replace(m.remedy, 'OP', e.fields ->> 'function')) FROM nonfinite_remedy AS m
        JOIN family_of_operator AS y ON y.family = m.family
        WHERE m.cause = 'backward' AND y.name = lower(replace(regexp_replace(regexp_replace(e.fields ->> 'function', '^.*::', ''), 'Backward\d*$', ''), '_', ''))
    ) AS fix,
    e.fields ->> 'function' AS key
FROM log AS e
LEFT JOIN (
    SELECT a.proc_id, min(u.function || ' (' || u.file || ':' || u.line || ')') AS where_in_code
    FROM log AS a JOIN frame AS k ON k.id = a.stack_id JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE a.signature = 'anomaly-forward'
    GROUP BY a.proc_id
) AS f ON f.proc_id = e.proc_id
LEFT JOIN suspect_place AS s ON s.proc_id IS NOT DISTINCT FROM e.proc_id AND s.function = e.fields ->> 'function'
WHERE e.class = 'numerics.nan-backward'
  AND e.signature <> 'anomaly-forward'
  AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: message
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    coalesce(e.fields ->> 'module', e.fields ->> 'op', 'an operator before this check') AS op,
    CASE
        WHEN e.class = 'numerics.nan-collective' THEN 'a tensor that was handed to a collective held NaN before it was sent'
        ELSE coalesce(e.fields ->> 'module', e.fields ->> 'op', 'an operator before this check') || ' gave a non-finite value'
    END AS what,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    coalesce(', noticed in ' || u.function || ' (' || u.file || ':' || u.line || ')', '') AS place,
    'Record the operators of the steps up to this one (forensics_recorder) or run them under torch.autograd.set_detect_anomaly(True): that names the operator. Then bound what it reads, and check the batch of that step on this rank.' AS fix,
    e.signature AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class IN ('numerics.nan-forward', 'numerics.nan', 'numerics.nan-collective')
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: metrics
WITH
-- A flag alone, as of gradients that a loss scaler skips, is no fault: a loss or a norm has to stay not finite too.
earliest AS (
    SELECT *
    FROM lasting_nonfinite
    WHERE (name <> 'grad_norm' AND NOT is_part) OR n_bad >= $min_nonfinite_steps
    QUALIFY bool_or(NOT is_told) OVER (PARTITION BY proc_id)
        AND row_number() OVER (PARTITION BY proc_id ORDER BY step, CASE name WHEN 'loss' THEN 0 WHEN 'grad_norm' THEN 1 ELSE 2 END, artifact_id, row) = 1
),
-- What numpy warned of between the last finite values and the first that is not: Python prints it once for a place.
warned AS (
    SELECT
        z.artifact_id,
        z.row,
        min_by(struct_pack(line := w.line, row := w.row, place := w.fields ->> 'place', said := regexp_extract(w.message, 'RuntimeWarning: .*')), w.row) AS first
    FROM earliest AS z
    JOIN log AS w ON w.artifact_id = z.artifact_id AND w.line BETWEEN z.since_line AND z.line
    WHERE w.signature = 'numpy-invalid-value'
    GROUP BY z.artifact_id, z.row
)
SELECT
    z.artifact_id,
    z.row,
    z.proc_id,
    z.rank,
    z.step,
    z.ts_ns,
    z.line,
    w.first.place AS where_in_code,
    CASE WHEN w.first IS NOT NULL THEN [{'artifact_id': z.artifact_id, 'row': w.first.row, 'line': w.first.line, 'note': 'what numpy warned of right before'}] END AS evidence,
    CASE WHEN w.first IS NULL THEN '' ELSE 'Look at ' || coalesce(w.first.place, 'the line that numpy warned of') || ' first: a division by a range, sum or deviation that is 0 for some sample (an image of one colour, an empty mask) puts NaN into the batch; leave such samples out or divide by max(x, eps). Check torch.isfinite(batch).all() in the loop. If the batch is finite: ' END ||
    'Record the operators of the steps up to this one (forensics_recorder) or run them under torch.autograd.set_detect_anomaly(True): that names the operator. Then bound its operands, and check the batch of that step on this rank.' AS fix,
    'the first value on record that is not finite is ' || CASE WHEN is_told THEN 'what ' || name || ' = false tells of' ELSE 'its ' || name END AS what,
    name AS metric,
    value,
    CASE
        WHEN is_told THEN ''
        WHEN n_bad = 1 THEN '; it is ' || value
        WHEN n_kinds = 1 THEN '; it is ' || value || ' from there on'
        ELSE '; it is ' || value || ', and never finite again'
    END || coalesce('; the learning rate was ' || r.rate || ' at step ' || r.rate_step, '')
        || CASE WHEN is_told THEN '; no record tells which operator gave it' ELSE ', and no record tells which operator gave it' END
        || CASE WHEN w.first IS NULL THEN '' ELSE '; right before, ' || coalesce(w.first.place, 'a line of the job') || ' divided by zero or the like (' || w.first.said || ')' END AS place,
    name AS key
FROM earliest AS z
LEFT JOIN warned AS w ON w.artifact_id = z.artifact_id AND w.row = z.row
LEFT JOIN nonfinite_rate AS r ON r.proc_id IS NOT DISTINCT FROM z.proc_id AND r.rate_step <= z.step
ORDER BY z.step, z.artifact_id, z.row;
-- variant: scale
WITH
change AS (
    SELECT
        *,
        lag(value) OVER (PARTITION BY artifact_id, proc_id ORDER BY place) AS before
    FROM training_curve
    WHERE name = 'loss_scale'
)
SELECT
    artifact_id,
    min_by(row, place) AS row,
    min_by(line, place) AS line,
    proc_id,
    rank,
    min_by(step, place) AS step,
    min(ts_ns) AS ts_ns,
    'Record the operators of the steps up to this one (forensics_recorder) or run them under torch.autograd.set_detect_anomaly(True): that names the operator. Then bound its operands, and check the batch of that step on this rank.' AS fix,
    'some operator gives values that are not finite' AS what,
    '; gradients overflow at every loss scale from ' || max(before) || ' down to ' || min(value) AS place,
    'scale' AS key
FROM change
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE value < before) >= $min_halvings AND min_by(value, -place) < 1 AND bool_and(coalesce(value <= before, TRUE))
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: passing
WITH
course AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min_by(row, place) FILTER (WHERE NOT isfinite(value)) AS row,
        min_by(line, place) FILTER (WHERE NOT isfinite(value)) AS line,
        min_by(step, place) FILTER (WHERE NOT isfinite(value)) AS step,
        min_by(ts_ns, place) FILTER (WHERE NOT isfinite(value)) AS ts_ns,
        count(*) FILTER (WHERE NOT isfinite(value)) AS n_bad,
        count(*) AS n_all,
        isfinite(max_by(value, place)) AS is_over
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY artifact_id, proc_id, rank
)
SELECT
    artifact_id,
    row,
    line,
    proc_id,
    rank,
    step,
    ts_ns,
    'its loss was not finite in ' || n_bad || ' of ' || n_all || ' logged steps, the first' AS what,
    '; it was finite again after each, so nothing of that reached the weights' AS place,
    'Look at the batches of those steps: a mean over no valid label is NaN and passes like this, and so does an empty or broken sample.' AS fix,
    'info' AS severity,
    'symptom' AS role,
    [] AS causes,
    'passing' AS key
FROM course
WHERE n_bad > 0 AND is_over AND n_all >= $min_passing AND n_bad <= $max_passing * n_all
ORDER BY ts_ns, artifact_id, row;
-- variant: report
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'Record the operators of the steps up to this one (forensics_recorder) or run them under torch.autograd.set_detect_anomaly(True): that names the operator. Then bound its operands, and check the batch of that step on this rank.' AS fix,
    'a value that was not finite is reported' AS what,
    ': ' || briefly(e.message, 160) AS place,
    e.signature AS key
FROM log AS e
WHERE e.signature = 'nonfinite-reported' AND e.role = 'evidence' AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
