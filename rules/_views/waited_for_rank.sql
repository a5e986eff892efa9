-- Ranks that ended well by what they recorded themselves while peers still waited in a collective until its limit. A row is
-- one rank, with the first peer that gave up.
CREATE TEMP VIEW waited_for_rank AS
WITH
ended AS (
    SELECT
        p.id AS proc_id,
        p.attempt,
        p.rank,
        p.end_ns
    FROM proc AS p
    WHERE p.rank IS NOT NULL AND p.exit_code = 0 AND p.end_ns IS NOT NULL
),
waiting AS (
    SELECT
        e.*,
        a.clock_error_ns
    FROM reported_failure AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.class IN ('comm.timeout', 'comm.laggard') AND e.ts_ns IS NOT NULL AND e.rank IS NOT NULL AND a.timeline = 'epoch'
)
SELECT
    w.artifact_id,
    w.row,
    d.proc_id,
    d.rank,
    d.end_ns AS ts_ns,
    w.line,
    'had ended with exit code 0' AS did,
    'rank ' || w.rank || ' still waited for it ' || CAST((w.ts_ns - d.end_ns) / 1e9 AS BIGINT) || ' s later: ' || w.said AS peers,
    ['rank-gone'] AS causes,
    d.rank AS fault,
    'left' AS key
FROM ended AS d
JOIN waiting AS w ON w.attempt = d.attempt AND w.rank <> d.rank
WHERE w.ts_ns > d.end_ns + w.clock_error_ns
  AND NOT EXISTS (SELECT 1 FROM waiting AS o WHERE o.attempt = d.attempt AND o.rank = d.rank)
QUALIFY row_number() OVER (PARTITION BY d.attempt, d.rank ORDER BY w.ts_ns, w.artifact_id, w.row) = 1;
