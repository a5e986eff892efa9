-- Collectives that at least one dump has as called and not known to be finished, by group and sequence number: a row is
-- one such call of one group. entered, completed: ranks that called and finished it; missing: ranks whose dump shows
-- that they had not called it; unknown: ranks without a dump, or whose dump does not tell.
CREATE TEMP VIEW pending_collective AS
WITH
entry AS (
    SELECT
        m.attempt,
        m.name,
        m.members,
        m.rank,
        c.artifact_id,
        c.row,
        c.sequence,
        c.operation,
        c.dtype,
        c.in_bytes,
        c.out_bytes,
        c.ts_ns,
        c.timeout_ns,
        c.stack_id,
        -- gloo retires what is done and leaves its state as it was.
        c.state = 'completed' OR (m.backend IS DISTINCT FROM 'nccl' AND coalesce(c.retired, FALSE)) AS is_finished
    FROM collective AS c
    JOIN group_member AS m ON m.artifact_id = c.artifact_id AND m.group_id = c.group_id
    WHERE NOT coalesce(c.is_p2p, FALSE) AND c.sequence IS NOT NULL
),
pending AS (
    SELECT
        attempt,
        name,
        members,
        sequence,
        min(operation) AS operation,
        count(DISTINCT operation) AS n_operations,
        count(DISTINCT dtype) AS n_dtypes,
        count(DISTINCT in_bytes) AS n_in_bytes,
        count(DISTINCT out_bytes) AS n_out_bytes,
        min(ts_ns) AS first_called_ns,
        max(ts_ns) AS last_called_ns,
        max(timeout_ns) AS timeout_ns
    FROM entry
    GROUP BY attempt, name, members, sequence
    HAVING bool_or(NOT is_finished)
),
standing AS (
    SELECT
        p.attempt,
        p.name,
        p.members,
        p.sequence,
        m.rank,
        CASE
            WHEN e.is_finished OR (m.counts_calls AND m.last_completed >= p.sequence) THEN 'completed'
            WHEN e.rank IS NOT NULL OR (m.counts_calls AND m.last_enqueued >= p.sequence) THEN 'entered'
            WHEN m.has_dump AND m.counts_calls AND coalesce(m.last_enqueued, 0) < p.sequence
                AND m.artifact_id IN (SELECT artifact_id FROM process_group WHERE last_enqueued IS NOT NULL)
            THEN 'missing'
            ELSE 'unknown'
        END AS standing
    FROM pending AS p
    JOIN group_member AS m ON m.attempt = p.attempt AND m.name = p.name AND m.members = p.members
    LEFT JOIN (
        SELECT
            attempt,
            name,
            members,
            sequence,
            rank,
            bool_and(is_finished) AS is_finished
        FROM entry
        GROUP BY attempt, name, members, sequence, rank
    ) AS e
        ON e.attempt = p.attempt AND e.name = p.name AND e.members = p.members
        AND e.sequence = p.sequence AND e.rank = m.rank
)
SELECT
    p.attempt,
    p.name,
    p.members,
    p.sequence,
    p.operation,
    p.n_operations,
    p.n_dtypes,
    p.n_in_bytes,
    p.n_out_bytes,
    p.first_called_ns,
    p.last_called_ns,
    p.timeout_ns,
    list(s.rank ORDER BY s.rank) FILTER (WHERE s.standing IN ('entered', 'completed')) AS entered,
    list(s.rank ORDER BY s.rank) FILTER (WHERE s.standing = 'completed') AS completed,
    list(s.rank ORDER BY s.rank) FILTER (WHERE s.standing = 'missing') AS missing,
    list(s.rank ORDER BY s.rank) FILTER (WHERE s.standing = 'unknown') AS unknown
FROM pending AS p
JOIN standing AS s
    ON s.attempt = p.attempt AND s.name = p.name AND s.members = p.members AND s.sequence = p.sequence
GROUP BY ALL;
