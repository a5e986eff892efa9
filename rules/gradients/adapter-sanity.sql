/*
title = "An adapter's weights leave their range"
severity = "medium"
proves = """
A recorded matrix of an adapter holds values that are not finite, or its Frobenius norm lies outside of the range in which
adapters work, after the optimizer has stepped. Or a stored one has a norm above that range."""
cannot_prove = """
What drove it there, and that it does harm: with a small alpha / r the product may still be small."""
message = "{who}: {adapter} {name} {what}{at_step}"
fix = "Halt and look at rate, alpha / r and the dtype of the adapter: keep adapter weights in float32."
causes = []

[thresholds.max_norm]
value = 100.0
unit = "Frobenius norm of one adapter matrix"
measured = "norm"
why = "beyond it the adapter outweighs the layer that it adapts"

[thresholds.min_norm]
value = 1e-6
unit = "Frobenius norm of one adapter matrix"
measured = "norm"
why = "below it the adapter does nothing; lora_B starts at zero, so only after the first sampled steps"

[variant.tensors]
needs = ["tensor"]
strength = "strong"

[variant.stored]
needs = ["checkpoint"]
strength = "indication"
says = "Only the stored values are known, and not what alpha / r makes of them (adapters-scale compares that with the base model). Stored values that are not finite are told by checkpoint-nonfinite."
*/
-- variant: tensors
WITH
odd AS (
    SELECT
        g.*,
        CASE
            WHEN NOT isfinite(g.norm) THEN 'is not finite'
            WHEN g.norm > $max_norm THEN 'has the norm ' || printf('%.3g', g.norm)
            ELSE 'still has the norm ' || printf('%.2g', g.norm) || ' although it has a gradient'
        END AS what
    FROM gradient_reading AS g
    WHERE (contains(lower(g.name), 'lora_') OR contains(lower(g.name), 'adapter'))
      AND g.norm IS NOT NULL AND g.sample >= 3
      AND (NOT isfinite(g.norm) OR g.norm > $max_norm OR (g.norm < $min_norm AND g.gradient_norm > 0))
    QUALIFY row_number() OVER (PARTITION BY g.proc_id, g.name ORDER BY g.step, g.row, g.artifact_id) = 1
)
SELECT
    g.artifact_id,
    g.row,
    g.proc_id,
    g.rank,
    g.step,
    g.ts_ns,
    'adapter matrix' AS adapter,
    g.name,
    g.name AS module,
    g.norm,
    g.what,
    CASE WHEN isfinite(g.norm) THEN 'medium' ELSE 'high' END AS severity,
    (SELECT count(*) FROM odd AS o WHERE o.proc_id IS NOT DISTINCT FROM g.proc_id) AS n_odd,
    (
        SELECT list({'artifact_id': o.artifact_id, 'row': o.row, 'note': o.name || ' ' || o.what || ' at step ' || o.step} ORDER BY o.step, o.row)
        FROM odd AS o
        WHERE o.proc_id IS NOT DISTINCT FROM g.proc_id AND o.name <> g.name
    ) AS evidence,
    'adapter' AS key
FROM odd AS g
QUALIFY row_number() OVER (PARTITION BY g.proc_id ORDER BY g.step, g.row, g.artifact_id) = 1
ORDER BY g.ts_ns, g.artifact_id, g.row;
-- variant: stored
SELECT
    t.artifact_id,
    t.row,
    'checkpoint_tensor' AS "table",
    (SELECT min(id) FROM proc) AS proc_id,
    NULL::INTEGER AS rank,
    NULL::BIGINT AS step,
    'stored adapter matrix' AS adapter,
    t.name,
    t.name AS module,
    t.norm,
    'has the norm ' || printf('%.3g', t.norm) || coalesce(' (' || f.path || ')', '') AS what,
    count(*) OVER (PARTITION BY t.artifact_id) AS n_odd,
    'adapter' AS key
FROM stored_tensor AS t
LEFT JOIN checkpoint_file AS f ON f.artifact_id = t.artifact_id
WHERE regexp_matches(lower(t.name), 'lora_(a|b|embedding)') AND t.norm > $max_norm AND t.fault IS NULL
QUALIFY row_number() OVER (PARTITION BY t.artifact_id ORDER BY t.norm DESC, t.row) = 1
ORDER BY t.artifact_id, t.row;
