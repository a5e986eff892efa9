-- From when to when the job itself wrote, by timeline, and when it said that it was done. Kernels and schedulers write
-- before and after a job too, so their lines do not count. Clocks of their own, as of a boot, are left out.
CREATE TEMP VIEW active_span AS
WITH
written AS (
    SELECT
        artifact_id,
        ts_ns,
        class = 'outcome.completed' OR (class = 'outcome.exit' AND (fields ->> 'exit_code') = '0') AS is_completion
    FROM log_event
    WHERE ts_ns IS NOT NULL
      AND source NOT IN ('kernel', 'slurm', 'kubernetes', 'lsf', 'scheduler', 'driver', 'host')
    UNION ALL
    SELECT
        artifact_id,
        ts_ns,
        FALSE AS is_completion
    FROM sample
    WHERE ts_ns IS NOT NULL AND source IN ('metrics', 'log')
)
SELECT
    a.timeline,
    min(w.ts_ns) AS start_ns,
    max(w.ts_ns) AS end_ns,
    max(w.ts_ns) FILTER (WHERE w.is_completion) AS completed_ns,
    max(coalesce(a.clock_error_ns, 0)) AS error_ns
FROM written AS w
JOIN artifact AS a ON a.id = w.artifact_id
WHERE a.timeline IN ('epoch', 'wall', 'wall without year')
GROUP BY a.timeline;
