/*
title = "float16 is trained without loss scaling, and gradients are lost"
severity = "critical"
proves = """
The forward computes in float16, no loss scale is on record, and gradients of the named weights are exactly zero in most
of their elements in every sampled step, or all of them lie in the range that float16 holds only coarsely."""
cannot_prove = """
That no scaler exists: one that nobody logs leaves no trace. What the gradients would have been."""
message = "{who}: no loss scale is on record, the forward computes in float16, and {n_lost} of {n_weights:# gradient is|# gradients are} lost in all {n_samples:# sampled step|# sampled steps}; the first is that of {name} ({zero_ratio:percent} zero)"
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
    'no-scaler' AS key
FROM weight
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE zero_ratio >= $min_zero_ratio) > 0
ORDER BY ts_ns, artifact_id, row;
