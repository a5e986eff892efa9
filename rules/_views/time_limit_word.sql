-- What schedulers say of a limit of time that ended the job, and for how long the job's own files had been silent then. A
-- row is one word; silent_s is NULL where the clocks cannot be compared.
CREATE TEMP VIEW time_limit_word AS
SELECT
    e.artifact_id,
    e.row,
    e.ts_ns,
    e.line,
    coalesce(e.fields ->> 'host', e.host) AS host,
    coalesce(' on ' || coalesce(e.fields ->> 'host', e.host), '') AS host_text,
    briefly(e.message, 200) AS said,
    (e.ts_ns - s.end_ns) / 1e9 AS silent_s,
    'time-limit' AS key
FROM log AS e
JOIN artifact AS a ON a.id = e.artifact_id
LEFT JOIN active_span AS s ON s.timeline = a.timeline AND s.end_ns < e.ts_ns
WHERE e.class = 'sched.limit'
  AND e.role = 'primary'
  -- Of LSF's reasons, only those that are limits of time.
  AND coalesce(e.fields ->> 'reason', '') NOT IN ('EXTERNAL_SIGNAL', 'UNKNOWN', 'REQUEUE_OWNER', 'REQUEUE_ADMIN')
QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1;
