-- Ranks that ended well while peers still waited in a collective until its limit: by what they recorded themselves, or by the
-- closing words of their logs, after which none of them says anything. A row is one rank, with the first peer that gave up.
-- n_ended, n_waiting: ranks of either kind in that attempt; where most had ended, it is those that wait who call more than the others.
CREATE TEMP VIEW waited_for_rank AS
WITH
recorded AS (
    SELECT
        p.id AS proc_id,
        p.attempt,
        p.rank,
        p.end_ns,
        'epoch' AS timeline,
        0 AS clock_error_ns,
        'had ended with exit code 0' AS did
    FROM proc AS p
    WHERE p.rank IS NOT NULL AND p.exit_code = 0 AND p.end_ns IS NOT NULL
),
said AS (
    SELECT
        o.proc_id,
        p.attempt,
        p.rank,
        max(o.ts_ns) AS end_ns,
        a.timeline,
        max(a.clock_error_ns) AS clock_error_ns,
        'had said that its work was done' AS did
    FROM outcome AS o
    JOIN proc AS p ON p.id = o.proc_id
    JOIN artifact AS a ON a.id = o.artifact_id
    WHERE o.result = 'completed' AND o.strength = 'strong' AND o.ts_ns IS NOT NULL AND p.rank IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM outcome AS f WHERE f.proc_id = o.proc_id AND f.result = 'failed')
      AND NOT EXISTS (
          SELECT 1 FROM log AS l
          WHERE l.artifact_id = o.artifact_id AND l.line > o.line AND l.role IN ('primary', 'symptom', 'secondary')
      )
    GROUP BY o.proc_id, p.attempt, p.rank, a.timeline
),
ended AS (
    SELECT * FROM recorded
    UNION ALL BY NAME
    SELECT s.* FROM said AS s WHERE NOT EXISTS (SELECT 1 FROM recorded AS r WHERE r.attempt = s.attempt AND r.rank = s.rank)
),
waiting AS (
    SELECT
        e.*,
        a.timeline,
        a.clock_error_ns
    FROM reported_failure AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.class IN ('comm.timeout', 'comm.laggard') AND e.ts_ns IS NOT NULL AND e.rank IS NOT NULL
),
met AS (
    SELECT
        w.artifact_id,
        w.row,
        w.line,
        w.attempt,
        w.rank AS waiting_rank,
        w.ts_ns AS waited_ns,
        w.said,
        d.proc_id,
        d.rank,
        d.end_ns,
        d.did
    FROM ended AS d
    JOIN waiting AS w ON w.attempt = d.attempt AND w.rank <> d.rank AND w.timeline = d.timeline
    WHERE w.ts_ns > d.end_ns + w.clock_error_ns + d.clock_error_ns
      AND NOT EXISTS (SELECT 1 FROM waiting AS o WHERE o.attempt = d.attempt AND o.rank = d.rank)
    QUALIFY row_number() OVER (PARTITION BY d.attempt, d.rank ORDER BY w.ts_ns, w.artifact_id, w.row) = 1
),
counted AS (
    SELECT
        m.*,
        count(*) OVER (PARTITION BY m.attempt) AS n_ended,
        (SELECT count(DISTINCT w.rank) FROM waiting AS w WHERE w.attempt = m.attempt) AS n_waiting
    FROM met AS m
)
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    end_ns AS ts_ns,
    line,
    did,
    CASE WHEN n_ended > n_waiting THEN 'of all ' || (n_ended + n_waiting) || ' ranks only ' || n_waiting || ' still waited, rank ' ELSE 'rank ' END
        || waiting_rank || CASE WHEN n_ended > n_waiting THEN ' ' ELSE ' still waited for it ' END
        || CAST((waited_ns - end_ns) / 1e9 AS BIGINT) || ' s later: ' || said AS peers,
    CASE WHEN n_ended > n_waiting
        THEN 'Find what rank ' || waiting_rank || ' calls after its peers are done: a checkpoint, barrier or reduction under `if rank == 0`. Every rank has to call it, or none.'
    END AS fix,
    -- One word of one rank may be that of a part of its work.
    CASE WHEN did LIKE 'had said%' AND n_ended < 2 THEN 'indication' END AS strength,
    ['rank-gone'] AS causes,
    CASE WHEN n_ended > n_waiting THEN 'a call too many' ELSE CAST(rank AS VARCHAR) END AS fault,
    'left' AS key
FROM counted;
