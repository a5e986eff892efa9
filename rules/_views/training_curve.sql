-- Step metrics of one artifact in its order: a row is one value, `place` its ordinal from 1 among the `n` of its name.
-- The same run may be told by several artifacts; `preference` is 1 for the one that says most of it: metrics before logs,
-- the longer series first.
CREATE TEMP VIEW training_curve AS
WITH
counted AS (
    SELECT
        m.artifact_id,
        m.row,
        m.line,
        m.proc_id,
        m.rank,
        m.step,
        m.ts_ns,
        m.name,
        m.source,
        m.value,
        row_number() OVER (PARTITION BY m.artifact_id, m.proc_id, m.name ORDER BY m.row) AS place,
        count(*) OVER (PARTITION BY m.artifact_id, m.proc_id, m.name) AS n
    FROM metric AS m
    WHERE m.source IN ('metrics', 'log')
      AND m.name IN (
        'loss', 'eval_loss', 'grad_norm', 'learning_rate', 'loss_scale', 'optimizer_skipped', 'accumulation_steps'
      )
)
SELECT
    *,
    dense_rank() OVER (
        PARTITION BY proc_id, name ORDER BY CASE source WHEN 'metrics' THEN 0 ELSE 1 END, n DESC, artifact_id
    ) AS preference
FROM counted;
