-- Total norms of recorded gradients as the optimizer was about to use them: a row is one sampled step of one process.
-- Steps in which it did not step hold gradients that are not clipped yet, and are left out.
CREATE TEMP VIEW reaching_gradient AS
SELECT
    artifact_id,
    proc_id,
    rank,
    step,
    min(row) AS row,
    min(ts_ns) AS ts_ns,
    sqrt(sum(gradient_norm * gradient_norm)) AS norm
FROM gradient_reading AS g
WHERE gradient_norm IS NOT NULL
  AND NOT EXISTS (
    SELECT 1 FROM metric AS w WHERE w.proc_id IS NOT DISTINCT FROM g.proc_id AND w.step = g.step AND w.name = 'optimizer_waited'
  )
GROUP BY artifact_id, proc_id, rank, step
HAVING isfinite(sum(gradient_norm * gradient_norm));
