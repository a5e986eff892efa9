-- Members of process groups as flight recorder dumps tell of them. A row is one rank of one group; groups of one name
-- are told apart by their ranks. has_dump: whether the rank left a dump; without one its progress is not known.
-- counts_calls: last_enqueued and last_completed are sequence numbers of collectives. Where a group is used for sends
-- and receives too, they are those of whatever came last.
CREATE TEMP VIEW group_member AS
WITH
told AS (
    SELECT
        p.attempt,
        n.text AS name,
        g.artifact_id,
        g.id AS group_id,
        g.proc_id,
        g.rank,
        g.description,
        g.backend,
        g.ranks,
        g.last_enqueued,
        g.last_completed
    FROM process_group AS g
    JOIN proc AS p ON p.id = g.proc_id
    JOIN string AS n ON n.id = g.name_id
    WHERE g.rank IS NOT NULL
      AND g.artifact_id IN (SELECT artifact_id FROM coverage WHERE capability = 'process_group')
    -- Of several dumps of one rank, the one that knows most.
    QUALIFY row_number() OVER (
        PARTITION BY p.attempt, n.text, g.ranks, g.rank
        ORDER BY g.last_enqueued DESC NULLS LAST, g.last_completed DESC NULLS LAST, g.artifact_id
    ) = 1
),
call AS (
    SELECT
        artifact_id,
        group_id,
        bool_or(coalesce(is_p2p, FALSE)) AS has_p2p,
        max(sequence) FILTER (WHERE NOT coalesce(is_p2p, FALSE)) AS last_sequence
    FROM collective
    GROUP BY artifact_id, group_id
),
process_groups AS (
    SELECT
        t.attempt,
        t.name,
        t.ranks,
        coalesce(t.ranks, list(DISTINCT t.rank ORDER BY t.rank)) AS members,
        max(t.description) AS description,
        max(t.backend) AS backend,
        NOT coalesce(bool_or(c.has_p2p OR c.last_sequence <> t.last_enqueued), FALSE) AS counts_calls
    FROM told AS t
    LEFT JOIN call AS c ON c.artifact_id = t.artifact_id AND c.group_id = t.group_id
    GROUP BY t.attempt, t.name, t.ranks
),
member AS (
    SELECT
        attempt,
        name,
        ranks,
        members,
        description,
        backend,
        counts_calls,
        unnest(members) AS rank
    FROM process_groups
)
SELECT
    m.attempt,
    m.name,
    m.members,
    m.description,
    m.backend,
    m.counts_calls,
    m.rank,
    t.artifact_id,
    t.group_id,
    t.proc_id,
    t.artifact_id IS NOT NULL AS has_dump,
    t.last_enqueued,
    t.last_completed
FROM member AS m
LEFT JOIN told AS t
    ON t.attempt = m.attempt AND t.name = m.name AND t.ranks IS NOT DISTINCT FROM m.ranks AND t.rank = m.rank;
