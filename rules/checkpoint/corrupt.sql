/*
title = "A stored file is damaged or is not what its name says"
severity = "critical"
scope = "job"
cannot_prove = """
How it came to be: an interrupted save, an incomplete download, a full disk and a pointer file of Git LFS all leave such
files. That the file was a checkpoint is read from the code that loaded it, where a traceback shows it."""
message = "{lead}{file}: {said}{detail}"
fix = "{remedy}"
causes = [{ state = "weights-incomplete", of = "job" }, { state = "rank-failed", of = "rank" }]
requires = [{ state = "disk-full", of = "host" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.load.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
Reading a checkpoint, weights or another pickled file, or writing its archive, stopped at its form with the error that
is cited."""

[variant.file]
needs = ["checkpoint"]
strength = "strong"
proves = """
The file itself is damaged: what is wrong with it, at which byte, and how many of its tensors are lost."""
says = "The file was read here, without torch. That the job loaded it shows only where a reader's error is cited as well."

[variant.reader]
needs = ["log_event"]
strength = "indication"
proves = "The reader of a checkpoint stopped with the error that is cited."
says = "The reader of torch.load or safetensors gave up with an error of the operating system; a file that was cut gives it, and so may a mount that broke."
*/
-- variant: log
WITH
named AS (
    -- A line before the error that names the file. llama.cpp lists a file's keys between the two.
    SELECT
        artifact_id,
        line,
        fields ->> 'file' AS file,
        CASE WHEN class = 'ckpt.opened' THEN 400 ELSE 30 END AS reach
    FROM log
    WHERE signature IN ('checkpoint-verify-failed', 'checkpoint-loaded', 'gguf-opened') AND (fields ->> 'file') IS NOT NULL
),
damaged AS (
    SELECT
        e.*,
        coalesce(left(e.fields ->> 'key', 1), CASE WHEN (e.fields ->> 'magic') = '73726576' THEN 'v' END) AS first_byte,
        e.class = 'ckpt.unwritten' AS was_writing,
        (SELECT count(*) > 0 FROM log AS p WHERE p.signature = 'lfs-pointer') AS shows_pointer
    FROM reported_failure AS e
    WHERE e.class IN ('ckpt.corrupt', 'ckpt.unwritten')
      AND e.role = 'primary'
      -- A damaged sample of the data set is no checkpoint.
      AND NOT EXISTS (
          SELECT 1 FROM log AS o WHERE o.artifact_id = e.artifact_id AND o.line = e.line AND o.class LIKE 'data.%'
      )
)
SELECT
    d.artifact_id,
    d.row,
    d.proc_id,
    d.rank,
    d.step,
    d.ts_ns,
    d.line,
    d.said,
    d.where_in_code,
    CASE WHEN d.rank IS NULL THEN 'The process' ELSE 'Rank ' || d.rank END || ' could not '
        || CASE WHEN d.was_writing THEN 'write ' ELSE 'read ' END AS lead,
    coalesce(d.fields ->> 'file', d.fields ->> 'other_file', n.file, CASE WHEN d.was_writing THEN 'a file' ELSE 'a stored file' END) AS file,
    CASE
        WHEN d.first_byte = 'v' OR d.shows_pointer THEN '; it begins like a pointer file of Git LFS (version https://git-lfs…), so the content was never fetched'
        WHEN d.first_byte = '<' THEN '; it begins like a web page, so a download stored an error page'
        WHEN d.was_writing THEN '; the damage was done while it was written'
        WHEN d.message LIKE '%Ran out of input%' THEN '; it is empty or was cut off'
        ELSE ''
    END AS detail,
    CASE
        WHEN d.first_byte = 'v' OR d.shows_pointer THEN 'Fetch the content: git lfs pull; then load again.'
        WHEN d.first_byte = '<' THEN 'Delete the file and download it again; check its size and SHA-256.'
        WHEN d.was_writing THEN 'Check free space and quota of the target, then save again: write to a temporary name and rename when done.'
        ELSE 'Compare size and SHA-256 of the file with its source; go back to the checkpoint before it; save to a temporary name and rename when done.'
    END AS remedy,
    CASE WHEN d.completed THEN 'medium' END AS severity,
    d.signature AS key
FROM damaged AS d
LEFT JOIN named AS n ON n.artifact_id = d.artifact_id AND n.line BETWEEN d.line - n.reach AND d.line
QUALIFY row_number() OVER (
    PARTITION BY d.proc_id, d.attempt ORDER BY d.ts_ns NULLS LAST, d.artifact_id, d.row, n.line DESC NULLS LAST
) = 1
ORDER BY d.ts_ns, d.artifact_id, d.row;
-- variant: file
WITH
refused AS (
    SELECT e.*
    FROM reported_failure AS e
    WHERE e.role = 'primary'
      AND e.exception IN ('OSError', 'EOFError', 'zipfile.BadZipFile', 'BadZipFile', '_pickle.UnpicklingError', 'struct.error')
      AND e.class IN ('exception.unknown', 'storage.io')
      AND (
          (e.fields ->> 'code') LIKE '%PyTorchFileReader(%'
          OR (e.fields ->> 'code') LIKE '%safe\_open(%' ESCAPE '\'
          OR (e.fields ->> 'code') LIKE '%pickle\_module.load(%' ESCAPE '\'
      )
    QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
),
damaged AS (
    SELECT f.*
    FROM checkpoint_file AS f
    WHERE f.damage IS NOT NULL
    -- The newest one is what a job would resume from.
    QUALIFY row_number() OVER (ORDER BY f.is_unfinished, f.saved_step DESC NULLS LAST, f.artifact_id) <= 5
)
SELECT
    d.artifact_id,
    d.row,
    'checkpoint' AS "table",
    d.bad_byte AS byte,
    e.proc_id,
    e.rank,
    d.saved_step AS step,
    e.ts_ns,
    d.damage_text AS said,
    e.where_in_code,
    CASE
        WHEN e.artifact_id IS NULL THEN 'A damaged file of a checkpoint, '
        WHEN e.rank IS NULL THEN 'The process could not read '
        ELSE 'Rank ' || e.rank || ' could not read '
    END AS lead,
    d.path AS file,
    CASE
        WHEN d.n_tensors > 0 AND d.n_lost > 0 THEN '; ' || d.n_lost || ' of ' || d.n_tensors || ' tensors are lost'
        WHEN d.n_tensors > 0 THEN '; all of its ' || d.n_tensors || ' tensors can be read'
        ELSE ''
    END AS detail,
    'Compare size and SHA-256 of the file with its source; go back to the checkpoint before it; save to a temporary name and rename when done.' AS remedy,
    CASE
        WHEN d.is_unfinished THEN 'info'
        WHEN e.artifact_id IS NULL THEN 'high'
        WHEN e.completed THEN 'medium'
    END AS severity,
    CASE WHEN e.artifact_id IS NOT NULL THEN [{'artifact_id': e.artifact_id, 'line': e.line, 'note': e.said}] END AS evidence,
    CASE WHEN e.artifact_id IS NULL THEN ['weights-incomplete'] END AS causes,
    d.damage AS key
FROM damaged AS d
LEFT JOIN refused AS e ON TRUE
ORDER BY d.is_unfinished, d.saved_step DESC NULLS LAST, d.artifact_id;
-- variant: reader
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    CASE WHEN e.rank IS NULL THEN 'The process' ELSE 'Rank ' || e.rank END || ' could not read ' AS lead,
    'a stored file' AS file,
    coalesce('; in ' || e.where_in_code, '') AS detail,
    'Compare size and SHA-256 of the file with its source; go back to the checkpoint before it; save to a temporary name and rename when done.' AS remedy,
    CASE WHEN e.completed THEN 'medium' END AS severity,
    e.exception AS key
FROM reported_failure AS e
WHERE e.role = 'primary'
  AND e.exception IN ('OSError', 'EOFError', 'zipfile.BadZipFile', 'BadZipFile', '_pickle.UnpicklingError', 'struct.error')
  AND e.class IN ('exception.unknown', 'storage.io')
  AND (
      (e.fields ->> 'code') LIKE '%PyTorchFileReader(%'
      OR (e.fields ->> 'code') LIKE '%safe\_open(%' ESCAPE '\'
      OR (e.fields ->> 'code') LIKE '%pickle\_module.load(%' ESCAPE '\'
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
