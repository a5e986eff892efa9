-- Files of checkpoints with the folder that they lie in, and the step that content, name or folder tells.
-- is_unfinished: the name says that it was still being written; run: folder of the run, where several lie beside each other.
CREATE TEMP VIEW checkpoint_file AS
SELECT
    c.*,
    a.path,
    a.run,
    a.bytes AS file_bytes,
    regexp_extract(a.path, '^(.*[/!])?', 1) AS folder,
    regexp_extract(a.path, '[^/!]*$') AS file,
    coalesce(
        c.step,
        TRY_CAST(regexp_extract(a.path, '(?i)(?:checkpoint|ckpt|step|iter|iteration)[-_=]?0*([0-9]{1,12})[^/!]*[/!]', 1) AS BIGINT)
    ) AS saved_step,
    regexp_matches(a.path, '(?i)(^|[/!._-])(tmp|temp|partial|incomplete)([._-]|$|[/!])') AS is_unfinished
FROM checkpoint AS c
JOIN artifact AS a ON a.id = c.artifact_id;
