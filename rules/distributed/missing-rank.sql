/*
title = "A rank did not take part in a collective that its peers wait for"
severity = "critical"
scope = "job"
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
proves = """
When the flight recorders were dumped, the peers had called the collective and not finished it, and this rank either
had not called it, by its own dump, and waited for nobody, or had called it and not finished it although peers had,
which they can only with its data: its device or its watchdog had stopped. Of all groups' waits this is where they
end: no member of them waits for another beyond it."""

[variant.left]
needs = ["log_event", "outcome"]
strength = "strong"
proves = """
The rank had ended well, by its recorder or by the closing words of its log, before peers gave up waiting in a
collective."""
says = "The rank ended on its own; that its peers waited for it, and not for each other, follows from its being gone. Closing words of a log do not show that the process had left."

[variant.no-dump]
needs = ["collective", "process_group"]
strength = "indication"
proves = """
When the flight recorders were dumped, the peers had called the collective and not finished it; of all groups' waits
this is where they end, and this rank left no dump."""
says = "The rank left no dump: it may have died first, or its dump was not collected."
*/
-- variant: dump
SELECT
    w.artifact_id,
    w.row,
    'collective' AS "table",
    w.proc_id,
    w.rank,
    w.ts_ns,
    w.operation AS op,
    w.strength,
    -- A rank that stays away, and waits for nobody, does not because another does.
    w.rank AS fault,
    CASE
        WHEN w.sequence IS NULL THEN 'waited for nobody and had not called the other side of ' || w.operation || ' in group ' || w.group_said
        ELSE CASE WHEN w.reason = 'absent' THEN 'never called ' ELSE 'called ' END
            || w.operation || ' number ' || w.sequence || ' of group ' || w.group_said
    END
    || CASE w.reason
        WHEN 'behind' THEN ' and did not finish it'
        WHEN 'not-started' THEN ', which its device had not begun'
        ELSE ''
    END AS did,
    w.peers_said
    || CASE
        WHEN w.reason = 'behind' THEN ' did'
        WHEN w.reason = 'not-started' THEN ' had'
        WHEN w.n_peers = 1 THEN ' waits for it'
        ELSE ' wait for it'
    END
    || CASE WHEN w.n_waiting > w.n_peers THEN ', ' || w.n_waiting || ' ranks in all' ELSE '' END AS peers,
    w.evidence[2:9] AS evidence,
    w.where_in_code,
    w.name || ' ' || w.operation AS key
FROM wait_cause AS w
WHERE w.reason IN ('absent', 'not-started')
   OR (w.reason = 'behind' AND w.n_groups >= $min_groups_behind)
ORDER BY w.attempt, w.ts_ns, w.rank;

-- variant: left
SELECT *
FROM waited_for_rank
ORDER BY ts_ns, rank;
-- variant: no-dump
WITH world AS (
    SELECT
        g.attempt,
        count(DISTINCT m.rank) FILTER (WHERE m.artifact_id IS NOT NULL) / count(DISTINCT m.rank) AS dumped_ratio
    FROM wait_member AS m
    JOIN wait_group AS g ON g.number = m.number
    GROUP BY g.attempt
)
SELECT
    w.artifact_id,
    w.row,
    'collective' AS "table",
    w.rank,
    w.ts_ns,
    w.operation AS op,
    'left no dump' AS did,
    w.peers_said || ' did not finish ' || w.operation || ' number ' || w.sequence || ' of group ' || w.group_said || ', which needs it' AS peers,
    w.evidence[2:9] AS evidence,
    w.name || ' ' || w.operation AS key
FROM wait_cause AS w
JOIN world AS o ON o.attempt = w.attempt
WHERE w.reason = 'no-dump' AND o.dumped_ratio >= $min_dumped_ratio
ORDER BY w.attempt, w.ts_ns, w.rank;
