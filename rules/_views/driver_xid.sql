-- Xid messages of the NVIDIA driver, placed against the job. A row is one message.
-- timing: before, during or after (only once the job had said that it was done); unknown where the clocks cannot be
-- compared, or may err by more than the message came later. A kernel log holds the whole history of its host, other jobs included.
-- is_foreign: the message names a process that is none of those known of the job. Inside a container a job knows its
-- processes by other numbers than the kernel, so this speaks for another job only together with a code that applications
-- cause.
CREATE TEMP VIEW driver_xid AS
WITH
job_pid AS (
    SELECT DISTINCT pid
    FROM (
        SELECT pid FROM proc WHERE pid IS NOT NULL
        UNION ALL
        SELECT CAST(fields ->> 'pid' AS BIGINT) AS pid
        FROM log_event
        WHERE source IN ('torchrun', 'deepspeed') AND regexp_matches(coalesce(fields ->> 'pid', ''), '^\d{1,10}$')
        UNION ALL
        SELECT CAST(number AS BIGINT) AS pid FROM fact WHERE key = 'pid' AND number IS NOT NULL
    )
),
n_job_pid AS (
    SELECT count(*) AS n FROM job_pid
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.host,
    e.class,
    e.role,
    e.message,
    e.fields ->> 'pci' AS pci,
    CAST(e.fields ->> 'xid' AS INTEGER) AS xid,
    e.fields ->> 'pid' AS pid,
    CASE
        WHEN s.timeline IS NULL OR e.ts_ns IS NULL THEN 'unknown'
        WHEN e.ts_ns > s.completed_ns + s.error_ns + coalesce(a.clock_error_ns, 0) THEN 'after'
        WHEN e.ts_ns > s.completed_ns THEN 'unknown'
        WHEN e.ts_ns < s.start_ns - 60000000000 THEN 'before'
        ELSE 'during'
    END AS timing,
    regexp_matches(coalesce(e.fields ->> 'pid', ''), '^\d{1,10}$')
    AND n.n > 0
    AND NOT EXISTS (SELECT 1 FROM job_pid AS j WHERE CAST(j.pid AS VARCHAR) = (e.fields ->> 'pid')) AS is_foreign
FROM log AS e
JOIN artifact AS a ON a.id = e.artifact_id
LEFT JOIN active_span AS s ON s.timeline = a.timeline
CROSS JOIN n_job_pid AS n
WHERE e.signature = 'xid'
  AND e.role <> 'noise';
