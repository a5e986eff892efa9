-- Which parts of a training state a file of a checkpoint holds, by the keys of its tensors and of what stands beside them,
-- and by its name. A row is one file whose step is known. is_whole: what torch.save wrote as one state, which tells its
-- step beside the tensors; a file of weights alone says nothing of what else was saved.
CREATE TEMP VIEW stored_part AS
WITH
word AS (
    SELECT artifact_id, lower(name) AS key FROM stored_tensor
    UNION ALL
    SELECT artifact_id, lower(unnest(json_keys(settings))) AS key FROM checkpoint WHERE json_type(settings) = 'OBJECT'
    UNION ALL
    SELECT artifact_id, lower(file) AS key FROM checkpoint_file
)
SELECT
    f.artifact_id,
    f.path,
    f.folder,
    f.run,
    f.saved_step,
    bool_or(
        f.kind IN ('torch-zip', 'torch-legacy') AND f.damage IS NULL AND NOT f.is_unfinished AND f.n_tensors > 0
        AND regexp_matches(w.key, '^(global_?|train_?)?(step|iter|iteration|epoch)s?$')
    ) AS is_whole,
    bool_or(regexp_matches(w.key, '(^|[^a-z])optim')) AS optimizer,
    bool_or(regexp_matches(w.key, 'sched')) AS scheduler,
    bool_or(regexp_matches(w.key, 'scaler|growth_tracker|loss_scale')) AS scaler
FROM checkpoint_file AS f
JOIN word AS w ON w.artifact_id = f.artifact_id
WHERE f.saved_step IS NOT NULL
GROUP BY f.artifact_id, f.path, f.folder, f.run, f.saved_step;
