-- Ranks for which all others wait in the end, by the flight recorders (wait_culprit), with the call in which they do.
-- artifact_id, row: the first call that shows it; evidence: all of them. group_said, peers_said: in words.
CREATE TEMP VIEW wait_cause AS
WITH
shown AS (
    SELECT
        e.attempt,
        e.place,
        min_by(c.artifact_id, e.n) AS artifact_id,
        min_by(c.row, e.n) AS row,
        min_by(c.operation, e.n) AS operation,
        min(c.ts_ns) AS ts_ns,
        min_by(c.stack_id, e.n) AS stack_id,
        list({ 'artifact_id': c.artifact_id, 'row': c.row, 'note': 'as rank ' || e.rank || ' recorded it' } ORDER BY e.n) AS evidence
    FROM wait_evidence AS e
    JOIN collective AS c ON c.artifact_id = e.artifact_id AND c.row = e.row
    GROUP BY e.attempt, e.place
),
process AS (
    SELECT
        g.attempt,
        m.rank,
        min(m.proc_id) AS proc_id
    FROM wait_member AS m
    JOIN wait_group AS g ON g.number = m.number
    WHERE m.proc_id IS NOT NULL
    GROUP BY g.attempt, m.rank
)
SELECT
    w.*,
    s.artifact_id,
    s.row,
    s.operation,
    s.ts_ns,
    s.evidence,
    p.proc_id,
    n.text AS name,
    coalesce(g.description || ' (' || n.text || ')', n.text) AS group_said,
    CASE WHEN w.n_peers = 1 THEN 'rank ' ELSE 'ranks ' END
    || array_to_string(w.peers[:8], ', ') || CASE WHEN w.n_peers > 8 THEN ', …' ELSE '' END AS peers_said,
    u.file || ':' || u.line AS where_in_code
FROM wait_culprit AS w
JOIN wait_group AS g ON g.number = w.number
JOIN string AS n ON n.id = g.name_id
JOIN shown AS s ON s.attempt = w.attempt AND s.place = w.place
LEFT JOIN process AS p ON p.attempt = w.attempt AND p.rank = w.rank
LEFT JOIN stack AS k ON k.id = s.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id);
