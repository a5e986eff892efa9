-- Step metrics as series: a row is one value, `place` its ordinal from 1 among the `n` of its series. What one loop
-- told of one run is a series: in one artifact, of one process, under one name, by one printer (`entity`), until the
-- count of steps, or of epochs where only these are counted, falls back to less than half. `series` is the first row
-- of it, `count_of_steps` the step, else the epoch. Losses without a count beside counted ones are left out: they compare,
-- or sum up.
-- `name` is loss, eval_loss (of validation and test too), grad_norm and so on, whatever the job calls them.
-- The same run may be told by several series; `preference` is 1 for the one that says most of it: metrics before logs,
-- the longer series first.
CREATE TEMP VIEW training_curve AS
WITH
spelling (told, name, nicety) AS (
    VALUES
    ('loss', 'loss', 0), ('train_loss', 'loss', 1), ('training_loss', 'loss', 1), ('train_loss_step', 'loss', 1),
    ('batch_loss', 'loss', 1), ('iter_loss', 'loss', 1), ('step_loss', 'loss', 1), ('current_loss', 'loss', 1),
    ('total_loss', 'loss', 2), ('avg_loss', 'loss', 2), ('average_loss', 'loss', 2), ('mean_loss', 'loss', 2),
    ('running_loss', 'loss', 2), ('epoch_loss', 'loss', 2), ('train_loss_epoch', 'loss', 2),
    ('eval_loss', 'eval_loss', 0), ('val_loss', 'eval_loss', 1), ('valid_loss', 'eval_loss', 1),
    ('validation_loss', 'eval_loss', 1), ('dev_loss', 'eval_loss', 1), ('test_loss', 'eval_loss', 2),
    ('eval/loss', 'eval_loss', 0), ('val/loss', 'eval_loss', 1), ('valid/loss', 'eval_loss', 1),
    ('validation/loss', 'eval_loss', 1), ('test/loss', 'eval_loss', 2),
    ('grad_norm', 'grad_norm', 0), ('learning_rate', 'learning_rate', 0), ('loss_scale', 'loss_scale', 0),
    ('optimizer_skipped', 'optimizer_skipped', 0), ('accumulation_steps', 'accumulation_steps', 0)
),
epoch AS (
    SELECT
        artifact_id,
        line,
        max(value) AS epoch
    FROM metric
    WHERE name = 'epoch' AND line IS NOT NULL
    GROUP BY artifact_id, line
),
told AS (
    SELECT
        m.artifact_id,
        m.row,
        m.line,
        m.proc_id,
        m.rank,
        m.step,
        m.ts_ns,
        m.source,
        m.value,
        s.name,
        s.told,
        s.nicety,
        -- Scales are told by trainers and scalers in turn.
        CASE WHEN s.name IN ('loss', 'eval_loss', 'grad_norm', 'learning_rate') THEN coalesce(m.entity, '') ELSE '' END AS printer,
        CASE WHEN s.name IN ('loss', 'eval_loss', 'grad_norm', 'learning_rate') THEN coalesce(m.step, e.epoch) END AS count_of_steps,
        e.epoch
    FROM metric AS m
    JOIN spelling AS s ON s.told = lower(m.name)
    LEFT JOIN epoch AS e ON e.artifact_id = m.artifact_id AND e.line = m.line
    WHERE m.source IN ('metrics', 'log')
    QUALIFY count_of_steps IS NOT NULL
        OR NOT bool_or(count_of_steps IS NOT NULL) OVER (PARTITION BY m.artifact_id, m.proc_id, s.name)
),
begun AS (
    SELECT
        *,
        -- Steps that are counted anew in each epoch go on.
        coalesce(2 * count_of_steps < lag(count_of_steps) OVER w, FALSE) AND NOT coalesce(epoch > lag(epoch) OVER w, FALSE) AS is_begin
    FROM told
    WINDOW w AS (PARTITION BY artifact_id, proc_id, told, printer ORDER BY row)
),
parted AS (
    SELECT
        *,
        sum(CAST(is_begin AS INTEGER)) OVER (PARTITION BY artifact_id, proc_id, told, printer ORDER BY row) AS run
    FROM begun
),
counted AS (
    SELECT
        * EXCLUDE (told, epoch, is_begin, run),
        min(row) OVER s AS series,
        row_number() OVER (PARTITION BY artifact_id, proc_id, told, printer, run ORDER BY row) AS place,
        count(*) OVER s AS n
    FROM parted
    WINDOW s AS (PARTITION BY artifact_id, proc_id, told, printer, run)
)
SELECT
    * EXCLUDE (nicety, printer),
    dense_rank() OVER (
        -- What metrics tell of one parameter or module comes after what they tell of the job.
        PARTITION BY proc_id, name
        ORDER BY CASE WHEN source = 'log' THEN 1 WHEN printer <> '' THEN 2 ELSE 0 END, n DESC, nicety, artifact_id, series
    ) AS preference
FROM counted;
