/*
title = "A non-finite value was born"
severity = "critical"
proves = """
The operator named is the first of its step on this rank whose output is not finite although all of its inputs are
(tensor statistics); or the first backward whose result was NaN (anomaly mode); or the first step at which the loss was
not finite (metrics). Which of these, the variant says."""
cannot_prove = """
Why the operands were what they were: bad data, a diverging run and a wrong formula give the same first operator."""
message = "{who}: {op} gave the first non-finite value{at_step}{place}"
fix = "Look at the operands of {op}: bound them before it (clamp, eps, log_softmax instead of log of softmax, masked rows left out) and check the batch of that step on this rank."
causes = [{ state = "value-nonfinite", of = "rank" }, { state = "rank-failed", of = "rank" }]
requires = [{ state = "gradient-invalid", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection"]

[thresholds.min_nonfinite_steps]
value = 3
unit = "logged steps with a non-finite gradient norm while the loss is finite"
why = "a loss scaler overflows now and then by design and skips that step; a defect stays"

[variant.tensors]
needs = ["tensor", "node"]
strength = "proof"

[variant.anomaly]
needs = ["log_event"]
strength = "strong"
says = "Anomaly mode names the first backward whose result was NaN. It does not look at infinities, nor at the forward: the birth can lie in the forward of the same operator or before it."

[variant.message]
needs = ["log_event"]
strength = "indication"
says = "A check in the job or a library found the value; where it was born lies before that check."

[variant.metrics]
needs = ["sample"]
strength = "indication"
says = "Metrics name the step and the rank, not the operator. A loss that is averaged over several steps or filtered may show it later."
*/
-- variant: tensors
WITH
reading AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.node_id,
        n.phase,
        CASE n.phase WHEN 'forward' THEN 0 ELSE 1 END AS pass,
        o.text AS operator,
        m.text AS module,
        min(u.function || ' (' || u.file || ':' || u.line || ')') AS called_in,
        coalesce(sum(t.n_nan + t.n_inf) FILTER (WHERE t.role = 'output'), 0) AS n_bad_out,
        coalesce(sum(t.n_nan) FILTER (WHERE t.role = 'output'), 0) AS n_nan_out,
        coalesce(sum(t.n_nan + t.n_inf) FILTER (WHERE t.role = 'input'), 0) AS n_bad_in,
        coalesce(sum(t.n_nan) FILTER (WHERE t.role = 'input'), 0) AS n_nan_in,
        count(*) FILTER (WHERE t.role = 'input') AS n_inputs,
        max(t.absmax) FILTER (WHERE t.role = 'input') AS input_absmax,
        min(t.row) FILTER (WHERE t.role = 'output' AND t.n_nan + t.n_inf > 0) AS row,
        min(t.ts_ns) AS ts_ns
    FROM node AS n
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    LEFT JOIN frame AS k ON k.id = n.stack_id
    LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    WHERE t.role IN ('input', 'output')
    GROUP BY n.artifact_id, n.proc_id, n.rank, n.step, n.node_id, n.phase, o.text, m.text
),
-- Steps in which a non-finite value reached something: a NaN appeared, or the last operator's result is not finite.
harmed_step AS (
    SELECT
        proc_id,
        step
    FROM reading
    GROUP BY proc_id, step
    HAVING max(n_nan_out) > 0 OR max_by(n_bad_out, (pass, node_id)) > 0
),
birth AS (
    SELECT r.*
    FROM reading AS r
    JOIN harmed_step AS h ON h.proc_id = r.proc_id AND h.step IS NOT DISTINCT FROM r.step
    WHERE r.n_bad_out > 0
      AND r.n_inputs > 0
      AND r.n_nan_in = 0
      AND (r.n_bad_in = 0 OR r.n_nan_out > 0)
      -- These write the infinity that they were given, as attention masks do: no birth unless a NaN comes out.
      AND (r.n_nan_out > 0 OR NOT regexp_matches(r.operator, '(masked_fill|where|fill|full|full_like|new_full|triu|tril|scalar_tensor|copy|to|clone)_?$'))
    QUALIFY row_number() OVER (PARTITION BY r.proc_id ORDER BY r.step, r.pass, r.node_id, r.row) = 1
),
named AS (
    SELECT
        *,
        -- In the backward the autograd node says more than the operator that computes it.
        CASE WHEN pass = 1 AND regexp_matches(module, '^\w+Backward\d*$') THEN module ELSE operator END AS op
    FROM birth
),
anomaly_place AS (
    SELECT
        e.proc_id,
        min(u.function || ' (' || u.file || ':' || u.line || ')') AS where_in_code
    FROM log AS e
    JOIN frame AS k ON k.id = e.stack_id
    JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE e.signature = 'anomaly-forward'
    GROUP BY e.proc_id
)
SELECT
    b.artifact_id,
    b.row,
    b.proc_id,
    b.rank,
    b.step,
    b.ts_ns,
    b.op,
    b.operator,
    b.module,
    b.phase,
    b.n_nan_out,
    b.n_bad_out - b.n_nan_out AS n_inf_out,
    b.input_absmax,
    coalesce(b.called_in, a.where_in_code) AS where_in_code,
    ' in the ' || b.phase || CASE WHEN b.op <> b.operator OR coalesce(b.module, '') = '' THEN '' ELSE ' of ' || b.module END
        || coalesce(', called in ' || coalesce(b.called_in, a.where_in_code), '') AS place,
    b.op AS key,
    (
        SELECT list({'artifact_id': e.artifact_id, 'row': e.row, 'note': 'the error that followed'} ORDER BY e.artifact_id, e.row)
        FROM log AS e
        WHERE e.proc_id = b.proc_id AND e.class = 'numerics.nan-backward' AND e.role <> 'noise'
    ) AS evidence
FROM named AS b
LEFT JOIN anomaly_place AS a ON a.proc_id = b.proc_id
ORDER BY b.step, b.pass, b.rank, b.artifact_id, b.row;
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
    e.fields ->> 'output_index' AS output_index,
    f.where_in_code,
    ' in the backward' || coalesce('; its forward ran in ' || f.where_in_code, '') AS place,
    e.fields ->> 'function' AS key
FROM log AS e
LEFT JOIN (
    SELECT a.proc_id, min(u.function || ' (' || u.file || ':' || u.line || ')') AS where_in_code
    FROM log AS a JOIN frame AS k ON k.id = a.stack_id JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE a.signature = 'anomaly-forward'
    GROUP BY a.proc_id
) AS f ON f.proc_id = e.proc_id
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
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    coalesce(', noticed in ' || u.function || ' (' || u.file || ':' || u.line || ')', '') AS place,
    e.signature AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class IN ('numerics.nan-forward', 'numerics.nan')
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: metrics
WITH
reading AS (
    SELECT *
    FROM metric
    WHERE name IN ('loss', 'grad_norm')
),
course AS (
    SELECT
        proc_id,
        name,
        count(*) FILTER (WHERE NOT isfinite(value)) AS n_bad,
        max(step) FILTER (WHERE isfinite(value)) AS last_good_step
    FROM reading
    GROUP BY proc_id, name
),
lasting AS (
    SELECT r.*
    FROM reading AS r
    JOIN course AS c ON c.proc_id IS NOT DISTINCT FROM r.proc_id AND c.name = r.name
    WHERE NOT isfinite(r.value)
      AND (c.last_good_step IS NULL OR r.step IS NULL OR r.step > c.last_good_step)
      AND (r.name = 'loss' OR c.n_bad >= $min_nonfinite_steps)
    QUALIFY row_number() OVER (PARTITION BY r.proc_id ORDER BY r.step, CASE r.name WHEN 'loss' THEN 0 ELSE 1 END, r.artifact_id, r.row) = 1
)
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    step,
    ts_ns,
    line,
    'an operator that no evidence names' AS op,
    name AS metric,
    value,
    '; ' || name || ' is ' || value || ' from there on' AS place,
    name AS key
FROM lasting
ORDER BY step, artifact_id, row;
