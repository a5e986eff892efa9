/*
title = "Stored weights are not finite"
severity = "critical"
scope = "job"
proves = """
The values of the named tensors were read from the file, and some of them are NaN or infinite. Tensors that hold
infinities beside nothing but zeros are masks and do not count."""
cannot_prove = """
When the values became so: the checkpoint only shows that they were by the time it was saved. Of files beyond the reader's
budget only a sample was read; a file that is not named may still hold such values."""
message = "{file} holds values that are not finite: {n_bad} of {n_tensors:# tensor|# tensors}, first {name} ({n_nan} NaN, {n_inf} infinite of {n_read} read){later}"
fix = "{remedy}"
causes = []
requires = [{ state = "value-nonfinite", of = "rank" }]

[variant.files]
needs = ["checkpoint"]
strength = "proof"
*/
-- variant: files
WITH
bad AS (
    SELECT
        artifact_id,
        min(row) AS row,
        count(*) AS n_bad
    FROM stored_tensor
    WHERE (n_nan > 0 OR (n_inf > 0 AND absmax > 0)) AND fault IS NULL
    GROUP BY artifact_id
),
judged AS (
    SELECT
        f.artifact_id,
        f.path,
        f.run,
        concat_ws('/', f.run, regexp_replace(f.file, '[0-9]+', '#', 'g')) AS series,
        f.saved_step,
        f.n_tensors,
        b.row,
        b.n_bad,
        EXISTS (SELECT 1 FROM stored_tensor AS t WHERE t.artifact_id = f.artifact_id AND t.n_read > 0) AS was_read
    FROM checkpoint_file AS f
    LEFT JOIN bad AS b ON b.artifact_id = f.artifact_id
)
SELECT
    j.artifact_id,
    t.row,
    'checkpoint_tensor' AS "table",
    t.byte,
    j.saved_step AS step,
    j.path AS file,
    j.n_bad,
    j.n_tensors,
    t.name,
    t.name AS module,
    t.n_nan,
    t.n_inf,
    t.n_read,
    CASE WHEN count(*) OVER (PARTITION BY j.run) > 1 THEN '; ' || (count(*) OVER (PARTITION BY j.run) - 1) || ' further files too' ELSE '' END AS later,
    coalesce(
        'Go back to ' || (
            SELECT c.path FROM judged AS c
            WHERE c.n_bad IS NULL AND c.was_read AND c.saved_step < j.saved_step AND c.series = j.series AND c.n_tensors = j.n_tensors
            ORDER BY c.saved_step DESC, c.artifact_id LIMIT 1
        ) || ', the last before it whose values that were read are all finite.',
        'Do not resume from it: take one that was saved earlier, and refuse to save a state that is not finite.'
    ) AS remedy,
    t.name AS key
FROM judged AS j
JOIN stored_tensor AS t ON t.artifact_id = j.artifact_id AND t.row = j.row
WHERE j.n_bad IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY j.run ORDER BY j.saved_step NULLS LAST, j.artifact_id) = 1
ORDER BY j.saved_step, j.artifact_id, t.row;
