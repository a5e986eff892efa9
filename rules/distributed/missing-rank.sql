/*
title = "A rank did not take part in a collective that its peers wait for"
severity = "critical"
scope = "job"
proves = """
When the flight recorders were dumped, the peers had called the collective and not finished it, and this rank either had
not called it, by its own dump, and waited for nobody, or had called it and not finished it although peers had, which
they can only with its data: its device or its watchdog had stopped. Or the rank had ended well, by its recorder, before
peers gave up waiting in a collective."""
cannot_prove = """
Why the rank stood still: its stack, log and device tell. A dump taken on demand from a job that runs shows calls in
flight in the same way, for as long as they take."""
message = "{who} {did}; {peers}"
fix = "Look at what this rank did at that time: its stack (py-spy dump), its log, its device. The ranks that wait are not at fault."
causes = [{ state = "rank-stalled", of = "rank" }]
requires = [{ state = "rank-stalled", of = "rank" }, { state = "rank-gone", of = "rank" }]
references = [
    "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
]

[thresholds.min_groups_behind]
value = 2
unit = "groups in which peers finished what this rank did not"
why = "watchdogs look at intervals: in one group a rank may be one look behind its peers"

[thresholds.min_dumped_ratio]
value = 0.5
unit = "ranks that left a dump / ranks of all groups"
why = "where few dumps were collected, that one is missing says nothing"

[variant.dump]
needs = ["collective", "process_group"]
strength = "strong"

[variant.left]
needs = ["log_event", "outcome"]
strength = "strong"
says = "The rank ended on its own with exit code 0; that its peers waited for it, and not for each other, follows from its being gone."

[variant.no-dump]
needs = ["collective", "process_group"]
strength = "indication"
says = "The rank left no dump: it may have died first, or its dump was not collected."
*/
-- variant: dump
WITH
first_fault AS (
    SELECT * FROM rank_apart
    WHERE is_absent OR n_groups >= $min_groups_behind
    QUALIFY row_number() OVER (
        PARTITION BY attempt, rank ORDER BY is_absent DESC, first_called_ns, name, sequence
    ) = 1
),
place AS (
    SELECT
        f.attempt,
        f.rank,
        min_by(c.artifact_id, (m.rank, c.artifact_id, c.row)) AS artifact_id,
        min_by(c.row, (m.rank, c.artifact_id, c.row)) AS row,
        min_by(c.stack_id, (m.rank, c.artifact_id, c.row)) AS stack_id,
        list({ 'artifact_id': c.artifact_id, 'row': c.row, 'note': 'as rank ' || m.rank || ' recorded it' }
            ORDER BY m.rank, c.artifact_id, c.row) AS evidence
    FROM first_fault AS f
    JOIN group_member AS m
        ON m.attempt = f.attempt AND m.name = f.name AND m.members = f.members
        -- Who waits shows what was not called; who is behind shows what it did not finish.
        AND CASE WHEN f.is_absent THEN list_contains(f.peers, m.rank) ELSE m.rank = f.rank END
    JOIN collective AS c
        ON c.artifact_id = m.artifact_id AND c.group_id = m.group_id AND c.sequence = f.sequence
        AND NOT coalesce(c.is_p2p, FALSE)
    GROUP BY f.attempt, f.rank
)
SELECT
    w.artifact_id,
    w.row,
    'collective' AS "table",
    m.proc_id,
    f.rank,
    f.first_called_ns AS ts_ns,
    f.operation AS op,
    -- A rank that stays away, and waits for nobody, does not because another does.
    f.rank AS fault,
    CASE WHEN f.is_absent THEN 'never called ' ELSE 'called ' END
    || f.operation || ' number ' || f.sequence || ' of group '
    || coalesce(m.description || ' (' || f.name || ')', f.name)
    || CASE WHEN f.is_absent THEN '' ELSE ' and did not finish it' END AS did,
    CASE WHEN len(f.peers) = 1 THEN 'rank ' ELSE 'ranks ' END
    || array_to_string(f.peers[:8], ', ') || CASE WHEN len(f.peers) > 8 THEN ', …' ELSE '' END
    || CASE
        WHEN NOT f.is_absent THEN ' did'
        WHEN len(f.peers) = 1 THEN ' waits for it'
        ELSE ' wait for it'
    END AS peers,
    w.evidence[2:9] AS evidence,
    u.file || ':' || u.line AS where_in_code,
    f.name || ' ' || f.operation AS key
FROM first_fault AS f
JOIN group_member AS m
    ON m.attempt = f.attempt AND m.name = f.name AND m.members = f.members AND m.rank = f.rank
JOIN place AS w ON w.attempt = f.attempt AND w.rank = f.rank
LEFT JOIN stack AS k ON k.id = w.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
ORDER BY f.attempt, f.first_called_ns, f.rank;

-- variant: left
SELECT *
FROM waited_for_rank
ORDER BY ts_ns, rank;
-- variant: no-dump
WITH
world AS (
    SELECT
        attempt,
        count(DISTINCT rank) FILTER (WHERE has_dump) / count(DISTINCT rank) AS dumped_ratio
    FROM group_member
    GROUP BY attempt
),
unseen AS (
    SELECT
        c.attempt,
        c.name,
        c.members,
        c.sequence,
        c.operation,
        c.first_called_ns,
        c.entered AS peers,
        unnest(c.unknown) AS rank
    FROM pending_collective AS c
    JOIN world AS w ON w.attempt = c.attempt
    WHERE c.unknown IS NOT NULL AND c.completed IS NULL AND w.dumped_ratio >= $min_dumped_ratio
),
first_unseen AS (
    SELECT u.*
    FROM unseen AS u
    WHERE NOT EXISTS (
        SELECT 1 FROM group_member AS m WHERE m.attempt = u.attempt AND m.rank = u.rank AND m.has_dump
    )
    QUALIFY row_number() OVER (PARTITION BY u.attempt, u.rank ORDER BY u.first_called_ns, u.name, u.sequence) = 1
)
SELECT
    min_by(c.artifact_id, (m.rank, c.artifact_id, c.row)) AS artifact_id,
    min_by(c.row, (m.rank, c.artifact_id, c.row)) AS row,
    'collective' AS "table",
    f.rank,
    f.first_called_ns AS ts_ns,
    f.operation AS op,
    'left no dump' AS did,
    CASE WHEN len(f.peers) = 1 THEN 'rank ' ELSE 'ranks ' END
    || array_to_string(f.peers[:8], ', ') || CASE WHEN len(f.peers) > 8 THEN ', …' ELSE '' END
    || ' did not finish ' || f.operation || ' number ' || f.sequence || ' of group '
    || coalesce(max(m.description) || ' (' || f.name || ')', f.name) || ', which needs it' AS peers,
    f.name || ' ' || f.operation AS key
FROM first_unseen AS f
JOIN group_member AS m ON m.attempt = f.attempt AND m.name = f.name AND m.members = f.members
JOIN collective AS c
    ON c.artifact_id = m.artifact_id AND c.group_id = m.group_id AND c.sequence = f.sequence
    AND NOT coalesce(c.is_p2p, FALSE)
GROUP BY f.attempt, f.rank, f.first_called_ns, f.operation, f.peers, f.sequence, f.name
ORDER BY f.attempt, f.first_called_ns, f.rank;
