/*
title = "float16 is trained without loss scaling, and gradients are lost"
severity = "critical"
proves = """
The forward computes in float16, no loss scale is on record, and gradients of the named weights are exactly zero in most
of their elements in every sampled step, or all of them lie in the range that float16 holds only coarsely. Or the settings
switch float16 on with a fixed loss scale of 1, which is none."""
cannot_prove = """
That no scaler exists: one that nobody logs leaves no trace. What the gradients would have been."""
message = "{who}: {what}"
fix = "Use torch.amp.GradScaler around backward and step, or bfloat16, which needs none."
causes = [{ state = "gradient-blocked", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling"]

[thresholds.min_zero_ratio]
value = 0.6
unit = "elements of the gradient that are exactly zero / all"
measured = "zero_ratio"
why = "activations such as ReLU leave up to half of a weight's gradient zero"

[thresholds.min_samples]
value = 3
unit = "sampled steps, in all of which it is so"
measured = "n_samples"
why = "an adapter's first gradients are zero by design"

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"

[variant.settings]
needs = ["fact"]
strength = "indication"
says = "That gradients are lost is not on record: those of some models lie well inside of what float16 holds."
*/
-- variant: tensors
WITH
half AS (
    SELECT DISTINCT n.proc_id
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    WHERE t.role = 'output' AND t.dtype = 'float16' AND n.phase = 'forward' AND o.text NOT IN ('aten::_to_copy', 'aten::copy_')
      AND NOT EXISTS (
        SELECT 1 FROM training_curve AS c
        WHERE c.proc_id IS NOT DISTINCT FROM n.proc_id AND c.name = 'loss_scale'
      )
),
weight AS (
    SELECT
        g.artifact_id,
        g.proc_id,
        g.rank,
        g.name,
        min(g.row) AS row,
        min(g.step) AS step,
        min(g.ts_ns) AS ts_ns,
        count(*) AS n_samples,
        min(g.gradient_zero_ratio) AS zero_ratio
    FROM gradient_reading AS g
    JOIN half AS h ON h.proc_id IS NOT DISTINCT FROM g.proc_id
    WHERE g.gradient_norm IS NOT NULL AND len(CAST(g.shape AS JSON)::BIGINT[]) >= 2
    GROUP BY g.artifact_id, g.proc_id, g.rank, g.name
    HAVING count(*) >= $min_samples
)
SELECT
    artifact_id,
    min(row) FILTER (WHERE zero_ratio >= $min_zero_ratio) AS row,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    min_by(name, row) FILTER (WHERE zero_ratio >= $min_zero_ratio) AS name,
    min_by(name, row) FILTER (WHERE zero_ratio >= $min_zero_ratio) AS module,
    max(zero_ratio) AS zero_ratio,
    count(*) FILTER (WHERE zero_ratio >= $min_zero_ratio) AS n_lost,
    count(*) AS n_weights,
    min(n_samples) AS n_samples,
    'no loss scale is on record, the forward computes in float16, and of ' || count(*) || ' gradients '
        || count(*) FILTER (WHERE zero_ratio >= $min_zero_ratio) || ' are lost in all ' || min(n_samples) || ' sampled steps; the first is that of '
        || min_by(name, row) FILTER (WHERE zero_ratio >= $min_zero_ratio) || ' (' || printf('%.0f', 100 * max(zero_ratio)) || ' % zero)' AS what,
    'no-scaler' AS key
FROM weight
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE zero_ratio >= $min_zero_ratio) > 0
ORDER BY ts_ns, artifact_id, row;
-- variant: settings
SELECT
    s.artifact_id,
    s.line,
    (SELECT min(id) FROM proc) AS proc_id,
    NULL::INTEGER AS rank,
    NULL::BIGINT AS step,
    'the settings switch float16 on with a fixed loss scale of 1, so small gradients are lost' AS what,
    'Set loss_scale to 0, which is dynamic, or use bf16.' AS fix,
    'medium' AS severity,
    [] AS causes,
    'fixed-scale' AS key
FROM fact AS s
JOIN fact AS e ON e.artifact_id = s.artifact_id
WHERE s.scope = 'option' AND regexp_matches(lower(s.key), '(^|\.)fp16\.loss_scale$') AND s.number = 1
  AND e.scope = 'option' AND lower(e.key) = replace(lower(s.key), 'loss_scale', 'enabled') AND lower(e.value) = 'true'
QUALIFY row_number() OVER (ORDER BY s.artifact_id, s.line) = 1
ORDER BY s.artifact_id, s.line;
