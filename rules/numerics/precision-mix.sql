/*
title = "Precisions are mixed, or a value is held in fewer bits than it needs"
severity = "critical"
cannot_prove = """
In the last case, which value was too large for float16."""
message = "{who}{at_step}: {what}"
fix = "{remedy}"
causes = [
    { state = "value-nonfinite", of = "rank" },
    { state = "weights-unmoved", of = "rank" },
    { state = "rank-failed", of = "rank" },
]

[thresholds.min_step]
value = 0.5
unit = "radians between neighbouring values"
why = "positions one apart differ by one radian at the highest frequency of rotary and sinusoidal embeddings"

[thresholds.min_samples]
value = 3
unit = "sampled steps in a row without a change"
why = "as in gradients-update-missing"

[variant.operators]
needs = ["tensor", "node"]
strength = "strong"
proves = "Angles reach sin or cos in a type whose steps are there half a radian or more."

[variant.weights]
needs = ["tensor"]
strength = "strong"
proves = """
Weights in half precision are written to and come out the same: the update is less than half a step of their type."""
says = "That updates are rounded away follows from weights in half precision that are written to, with finite gradients, and never change."

[variant.half]
needs = ["tensor"]
strength = "indication"
proves = "A recorded loss is computed in half precision, or an adapter's weights are held in it."
says = "That this costs anything is not on record: sums over few elements, and weights with a copy in float32 elsewhere, bear it."

[variant.settings]
needs = ["fact", "sample|log_event"]
strength = "indication"
proves = "A model that was trained in bfloat16 runs in float16 and its values are not finite."
says = "The settings say that weights of bfloat16 range are computed with in float16, and metrics or logs that values are not finite; which value left the range is not on record."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = "An operator was given values of precisions that it does not take together, or of one that it is not made for."
*/
-- variant: operators
WITH
angle AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        n.node_id,
        o.text AS op,
        m.text AS module,
        t.row,
        t.dtype,
        t.absmax,
        u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
        -- Distance of neighbouring values at the largest: 8 bits of bfloat16, 11 of float16, the leading one included.
        pow(2, floor(log2(t.absmax)) - CASE t.dtype WHEN 'bfloat16' THEN 7 ELSE 10 END) AS step_size
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    LEFT JOIN frame AS k ON k.id = n.stack_id
    LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE o.text IN ('aten::sin', 'aten::cos') AND t.role = 'input' AND t.dtype IN ('bfloat16', 'float16') AND t.absmax > 0
      AND n.phase = 'forward'
)
SELECT
    *,
    op || ' reads angles up to ' || absmax || ' in ' || dtype || ', where neighbouring values are ' || step_size || ' apart: positions cannot be told from each other' AS what,
    'Compute positions and angles in float32: torch.autocast(enabled=False) around them, and cast the result of sin and cos.' AS remedy,
    ['value-nonfinite', 'weights-unmoved'] AS causes,
    'angles' AS key
FROM angle
WHERE step_size >= $min_step
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY step, node_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: weights
WITH
weight AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        max(dtype) AS dtype,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(DISTINCT checksum) AS n_contents,
        max(version) - min(version) AS n_writes,
        count(*) AS n_samples,
        min(gradient_norm) AS least,
        coalesce(sum(n_nonfinite), 0) AS n_nonfinite
    FROM gradient_reading
    WHERE checksum IS NOT NULL
    GROUP BY artifact_id, proc_id, rank, name
)
SELECT
    w.artifact_id,
    min(w.row) AS row,
    w.proc_id,
    w.rank,
    min(w.step) AS step,
    min(w.ts_ns) AS ts_ns,
    min_by(w.name, w.row) AS module,
    count(*) || ' parameters are held in ' || max(w.dtype) || '; the optimizer writes to them in every step and they stay the same, since updates are less than half a step of that type' AS what,
    'Keep float32 weights and compute in bfloat16 under autocast, or an optimizer that keeps float32 copies or rounds stochastically.' AS remedy,
    ['value-nonfinite', 'weights-unmoved'] AS causes,
    'rounded-away' AS key
FROM weight AS w
WHERE w.dtype IN ('bfloat16', 'float16') AND w.n_contents = 1 AND w.n_writes > 0 AND w.n_samples >= $min_samples
  AND w.least > 0 AND w.n_nonfinite = 0
  AND EXISTS (
    SELECT 1 FROM training_curve AS r
    WHERE r.proc_id IS NOT DISTINCT FROM w.proc_id AND r.name = 'learning_rate' AND r.value > 0
  )
GROUP BY w.artifact_id, w.proc_id, w.rank
QUALIFY row_number() OVER (PARTITION BY w.proc_id ORDER BY count(*) DESC, w.artifact_id) = 1
ORDER BY ts_ns, w.artifact_id, row;
-- variant: half
WITH
told AS (
    SELECT
        n.artifact_id,
        t.row,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        o.text AS op,
        NULL AS module,
        'the loss is computed in ' || t.dtype || ': ' || o.text || ' reads it' AS what,
        'Cast what goes into the loss to float32 (logits.float()), or compute under autocast, which does.' AS remedy,
        ['value-nonfinite', 'weights-unmoved'] AS causes,
        'loss-in-half' AS key
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    WHERE n.phase = 'forward' AND t.role = 'input' AND t.dtype IN ('bfloat16', 'float16')
      AND regexp_full_match(o.text, 'aten::(nll_loss\w*|mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy\w*|kl_div|cross_entropy_loss)')
    QUALIFY row_number() OVER (PARTITION BY n.proc_id ORDER BY n.step, n.node_id, t.row, n.artifact_id) = 1
    UNION ALL
    SELECT
        artifact_id,
        row,
        proc_id,
        rank,
        step,
        ts_ns,
        NULL AS op,
        name AS module,
        'weights of an adapter are trained in ' || dtype || ', the first is ' || name AS what,
        'Keep the weights of adapters in float32 (PEFT: autocast_adapter_dtype=True): their updates are small.' AS remedy,
        ['value-nonfinite', 'weights-unmoved'] AS causes,
        'adapter-in-half' AS key
    FROM gradient_reading
    WHERE dtype IN ('bfloat16', 'float16') AND contains(lower(name), 'lora_')
    QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY step, row, artifact_id) = 1
)
SELECT
    *,
    'info' AS severity,
    [] AS causes
FROM told
ORDER BY ts_ns, artifact_id, row, key;
-- variant: settings
WITH
setting AS (
    SELECT
        max(f.artifact_id) FILTER (WHERE f.is_weights) AS artifact_id,
        max(f.line) FILTER (WHERE f.is_weights) AS line,
        bool_or(f.is_weights) AS is_bf16_model,
        bool_or(f.is_half) AS is_half,
        bool_or(f.is_brain) AS is_brain
    FROM (
        SELECT
            artifact_id,
            line,
            regexp_matches(lower(key), '(^|\.)(torch_)?dtype$') AND contains(lower(value), 'bfloat16') AS is_weights,
            regexp_matches(lower(key), '(^|\.)fp16(\.enabled)?$|fp16_enabled') AND lower(value) = 'true' AS is_half,
            regexp_matches(lower(key), '(^|\.)bf16(\.enabled)?$|bfloat16_enabled') AND lower(value) = 'true' AS is_brain
        FROM fact
    ) AS f
),
trouble AS (
    SELECT
        proc_id,
        min(artifact_id) AS artifact_id,
        min(step) AS step,
        min(ts_ns) AS ts_ns
    FROM (
        SELECT proc_id, artifact_id, step, ts_ns FROM metric
        WHERE name IN ('loss', 'grad_norm') AND NOT isfinite(value)
        UNION ALL
        SELECT proc_id, artifact_id, step, ts_ns FROM log WHERE signature = 'loss-scale-at-minimum' AND role <> 'noise'
    )
    GROUP BY proc_id
)
SELECT
    s.artifact_id,
    s.line,
    t.proc_id,
    p.rank,
    t.step,
    t.ts_ns,
    'the weights are those of a bfloat16 model and are computed with in float16, whose largest value is 65504; values are not finite' AS what,
    'Train in bfloat16 (bf16=true, fp16=false), or in float32 where the device has no bfloat16.' AS remedy,
    ['value-nonfinite', 'weights-unmoved'] AS causes,
    'bf16-in-fp16' AS key
FROM setting AS s
CROSS JOIN trouble AS t
LEFT JOIN proc AS p ON p.id = t.proc_id
WHERE s.is_bf16_model AND s.is_half AND NOT coalesce(s.is_brain, FALSE)
ORDER BY t.ts_ns, s.artifact_id, s.line, t.proc_id;

-- variant: log
WITH
refused AS (
    SELECT
        e.*,
        lower(coalesce(e.fields ->> 'dtype', e.fields ->> 'expected_dtype', e.fields ->> 'input_type', e.fields ->> 'expected', '')) AS one,
        lower(coalesce(e.fields ->> 'other_dtype', e.fields ->> 'found_dtype', e.fields ->> 'weight_type', e.fields ->> 'got', '')) AS other,
        (e.fields ->> 'operation') IS NOT NULL AS is_missing
    FROM reported_failure AS e
    WHERE e.role = 'primary'
      AND (e.class = 'code.dtype' OR (e.class = 'code.device' AND regexp_matches(e.message, '(?i)expected object of scalar ?type')))
      -- Between devices: environment-device-mismatch.
      AND NOT coalesce(((e.fields ->> 'input_type') LIKE '%cuda%') <> ((e.fields ->> 'weight_type') LIKE '%cuda%'), FALSE)
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.where_in_code,
    CASE
        WHEN r.is_missing THEN 'an operator is not made for values of this precision on this backend'
        ELSE 'an operator refused values of two precisions'
    END || coalesce(', called from ' || r.where_in_code, '') || ': ' || r.said AS what,
    CASE
        WHEN r.is_missing THEN 'Keep the model in float32 on this backend (torch_dtype=torch.float32), or take a precision that it computes in.'
        WHEN r.one LIKE '%double%' OR r.other LIKE '%double%' THEN 'Bring what comes as float64, as arrays of numpy do, to the type of the weights: x.to(weight.dtype).'
        ELSE 'Bring both to one type where they meet: run the pass under torch.autocast, or input.to(module.weight.dtype); keep what was loaded or added in another type (adapters, norms, buffers) in the type of the model.'
    END AS remedy,
    ['rank-failed'] AS causes,
    r.signature AS key
FROM refused AS r
WHERE (regexp_matches(r.one, 'half|float|double') AND (r.is_missing OR r.other = '' OR regexp_matches(r.other, 'half|float|double')))
   OR (r.one = '' AND NOT r.is_missing)
QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.attempt ORDER BY r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
