-- Whether the job ended well: something says so, nothing says that it failed, and every log that tells of its steps has closing
-- words, where no exit code is on record. One row. Logs of a kernel or a driver hold what befell others on the host too: what
-- they tell of a device or a process that the job is not known to have used cost such a job nothing.
CREATE TEMP VIEW ended_well AS
SELECT
    count(*) FILTER (result = 'completed' AND strength IN ('strong', 'proof')) > 0
    AND count(*) FILTER (result = 'failed') = 0
    AND NOT EXISTS (
        SELECT 1 FROM metric AS m
        WHERE m.source = 'log' AND m.step IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM outcome AS o WHERE o.result = 'completed' AND (o.artifact_id = m.artifact_id OR o.strength = 'proof'))
    ) AS well
FROM outcome;
