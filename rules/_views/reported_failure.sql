-- What logs report as a failure that the program did not say it would survive, with the place in the job's own code.
-- or that it demonstrably survived: the process, known as one rank by marks of its own lines or its file, went on for
-- steps, and neither it nor anything that tells of its end reports the same error again. Steps in lines without such marks
-- may be another rank's.
-- A row is one event. moved_on: the same process later fails with an error of another named class, out of a traceback of
-- its own: this one was printed and survived, whatever it led to. completed: the same log later says that the job is done,
-- or every recorded exit code is 0.
CREATE TEMP VIEW reported_failure AS
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.attempt,
    e.rank,
    e.host,
    e.step,
    e.ts_ns,
    e.line,
    e.source,
    e.level,
    e.signature,
    e.class,
    e.role,
    e.exception,
    e.message,
    e.fields,
    briefly(error_text(e.exception, coalesce(regexp_extract(e.message, '^[^\n]*'), e.signature)), 240) AS said,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    EXISTS (
        SELECT 1 FROM log AS o
        WHERE o.artifact_id = e.artifact_id
          AND o.proc_id IS NOT DISTINCT FROM e.proc_id
          AND o.line > e.line
          AND o.role = 'primary'
          AND o.exception IS NOT NULL
          AND o.class <> e.class
          AND o.class NOT LIKE 'exception.%'
          AND (o.fields ->> 'chain') IS NULL
    ) AS moved_on,
    EXISTS (
        SELECT 1 FROM log AS o
        WHERE o.artifact_id = e.artifact_id AND o.line > e.line AND o.class = 'outcome.completed' AND o.role <> 'noise'
    )
    OR coalesce(
        (SELECT bool_and(number = 0) FROM fact WHERE scope = 'outcome' AND key = 'exit_code' AND number IS NOT NULL), FALSE
    ) AS completed
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.role IN ('primary', 'symptom', 'secondary')
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
  AND NOT (
      coalesce(CAST(e.fields ->> 'later_steps' AS BIGINT), 0) >= 2  -- one step may end while another thread fails
      AND EXISTS (SELECT 1 FROM proc AS p WHERE p.id = e.proc_id AND p.rank_origin IN ('prefix', 'file-name', 'folder'))
      AND NOT EXISTS (
          SELECT 1 FROM log AS o
          WHERE (o.proc_id = e.proc_id OR o.proc_id IS NULL OR o.rank IS NULL)
            AND (o.artifact_id <> e.artifact_id OR o.row > e.row)
            AND o.role <> 'noise'
            AND (o.exception = e.exception OR (o.class = e.class AND e.class NOT LIKE 'exception.%'))
            AND coalesce(CAST(o.fields ->> 'later_steps' AS BIGINT), 0) < 2
            AND coalesce(o.fields ->> 'handled', 'false') <> 'true'
      )
  );
