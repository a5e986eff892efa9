/*
title = "An adapter outweighs the layer that it adapts"
severity = "medium"
scope = "job"
proves = """
What the stored adapter adds to a weight, its product times alpha / r (or alpha / sqrt(r) with rsLoRA), has several times
the Frobenius norm of that weight in the stored base model beside it."""
cannot_prove = """
That this does harm: it is told because adapters of sound runs stay far below their weights, and a scale, rate or init that
is too high shows here first. That the two files belong together is taken from their lying in one job's folder."""
message = "{path}: the adapter adds {ratio:percent} of the norm of {name} (scale {scale} = alpha {alpha} over r {lora_rank}); {n} of {n_modules:# module adds|# modules add} more than their weight has"
fix = "Lower lora_alpha or the learning rate, or use rsLoRA where r is large; compare with a run whose evaluation was sound."
causes = []
references = ["https://arxiv.org/abs/2106.09685", "https://arxiv.org/abs/2312.03732"]

[thresholds.max_ratio]
value = 4.0
unit = "norm of scale * B @ A / norm of the weight"
measured = "ratio"
why = "low-rank adapters of a small transformer that learned the new text well added up to 2.8 times; at 4.8 the old and the new text both got worse (benchmarks/README.md). The method's paper reports 0.11 for GPT-3"

[thresholds.grave_ratio]
value = 20.0
unit = "as max_ratio"
measured = "ratio"
why = "the weight is then less than a twentieth of the sum; in the same runs all that added more ended with both texts worse than the model without an adapter had them"

[variant.files]
needs = ["checkpoint"]
strength = "indication"
*/
-- variant: files
WITH
scaled AS (
    SELECT
        m.artifact_id,
        m.b_row,
        m.lora_rank,
        m.delta_norm,
        n.text AS name,
        f.path,
        coalesce(m.alpha, TRY_CAST(c.settings ->> 'lora_alpha' AS DOUBLE)) AS alpha,
        coalesce(c.settings ->> 'use_rslora', 'false') = 'true' AS is_rooted
    FROM adapter_module AS m
    JOIN string AS n ON n.id = m.name_id
    JOIN checkpoint_file AS f ON f.artifact_id = m.artifact_id
    LEFT JOIN checkpoint_file AS c ON c.folder = f.folder AND c.kind = 'adapter-config'
    WHERE m.delta_norm IS NOT NULL AND m.lora_rank > 0
),
weighed AS (
    SELECT
        s.*,
        s.alpha / CASE WHEN s.is_rooted THEN sqrt(s.lora_rank) ELSE s.lora_rank END AS scale,
        w.norm,
        w.artifact_id AS base_id,
        w.row AS base_row
    FROM scaled AS s
    JOIN state_key AS k ON k.parameter = s.name || '.weight'
    JOIN checkpoint AS b ON b.artifact_id = k.artifact_id AND b.n_adapter_modules = 0
    JOIN checkpoint_tensor AS w ON w.artifact_id = k.artifact_id AND w.row = k.row
    WHERE s.alpha IS NOT NULL AND w.norm > 0 AND w.fault IS NULL AND w.dtype IN ('float32', 'float16', 'bfloat16', 'float64')
    QUALIFY row_number() OVER (PARTITION BY s.artifact_id, s.name ORDER BY w.artifact_id, w.row) = 1
)
SELECT
    artifact_id,
    b_row AS row,
    'checkpoint_tensor' AS "table",
    path,
    name,
    name AS module,
    CASE WHEN scale * delta_norm > $grave_ratio * norm THEN 'high' END AS severity,
    scale,
    alpha,
    lora_rank,
    scale * delta_norm / norm AS ratio,
    count(*) FILTER (WHERE scale * delta_norm > $max_ratio * norm) OVER (PARTITION BY artifact_id) AS n,
    count(*) OVER (PARTITION BY artifact_id) AS n_modules,
    [{'artifact_id': base_id, 'row': base_row, 'table': 'checkpoint_tensor', 'note': 'the weight'}] AS evidence,
    name AS key
FROM weighed
QUALIFY scale * delta_norm > $max_ratio * norm
    AND row_number() OVER (PARTITION BY artifact_id ORDER BY scale * delta_norm / norm DESC, name) = 1
ORDER BY artifact_id;
