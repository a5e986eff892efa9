/*
title = "Several stored keys write the same parameter"
severity = "high"
scope = "job"
proves = """
Within one file, or among the shards of one index, keys that are equal without the names that wrappers add (module.,
_orig_mod., base_model.model., the adapter name default) hold different values: whichever is loaded last decides."""
cannot_prove = """
Which of them was meant, and whether the code that loads them takes those names off."""
message = "{path}: {n_parameters:# parameter is|# parameters are} written by more than one stored key, first {parameter} by {keys}"
fix = "forensics checkpoint-collisions FOLDER lists all sources; with --write PATCH it writes a patch that keeps the first of each, --apply and --undo apply it and take it back."
causes = [{ state = "weights-incomplete", of = "job" }]

[variant.files]
needs = ["checkpoint"]
strength = "strong"
*/
-- variant: files
WITH
collision AS (
    SELECT
        unit,
        parameter,
        min(artifact_id) AS artifact_id,
        list({'artifact_id': artifact_id, 'byte': byte, 'note': name} ORDER BY artifact_id, byte, row) AS evidence
    FROM state_key
    GROUP BY unit, parameter
    HAVING count(*) > 1
       -- Equal values do no harm whichever is taken; where one could not be read, it is not known.
       AND (count(DISTINCT checksum) > 1 OR count(DISTINCT shape) > 1)
)
SELECT
    f.artifact_id,
    c.evidence[1].byte AS byte,
    f.path,
    count(*) OVER (PARTITION BY c.unit) AS n_parameters,
    c.parameter,
    c.parameter AS module,
    list_aggregate([e.note FOR e IN c.evidence[1:4]], 'string_agg', ', ') AS keys,
    c.evidence[1].note AS note,
    c.evidence,
    c.parameter AS key
FROM collision AS c
JOIN checkpoint_file AS f ON f.artifact_id = c.artifact_id
QUALIFY row_number() OVER (PARTITION BY c.unit ORDER BY c.parameter) = 1
ORDER BY f.artifact_id, c.parameter;
