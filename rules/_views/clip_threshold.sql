-- The norm to which the settings say that gradients are clipped: one row where they name one value, none else.
CREATE TEMP VIEW clip_threshold AS
SELECT
    max(f.number) AS threshold,
    min(f.artifact_id) AS artifact_id,
    min_by(f.line, (f.artifact_id, f.line)) AS line
FROM fact AS f
WHERE f.scope = 'option' AND f.number > 0
  AND list_contains(['max_grad_norm', 'grad_clip', 'gradient_clip_val', 'gradient_clipping', 'clip_grad', 'clip_grad_norm'],
    split_part(f.key, '.', -1))
  -- Clipping by value bounds elements, not the norm.
  AND NOT EXISTS (
    SELECT 1 FROM fact AS a
    WHERE a.scope = 'option' AND split_part(a.key, '.', -1) = 'gradient_clip_algorithm' AND lower(a.value) = 'value'
  )
HAVING count(DISTINCT f.number) = 1;
