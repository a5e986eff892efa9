/*
title = "Ranks wait for each other in collectives of different groups"
severity = "critical"
scope = "job"
proves = """
By the flight recorders this rank waits in a collective, a send or a receive of one group for a rank that, directly or
through others, waits for it in a collective of another group: none of them can go on. The waits of all groups end in this circle."""
cannot_prove = """
Which order was meant. The rank named took the groups in another order than most ranks of groups of the same kind; where
none stands against most, one rank of the circle is shown and none is named. A collective that it left out or put in
before looks the same."""
message = "{who_waits} waits in {own}, while {peers} for it in {wanted}"
fix = "Make all ranks issue the collectives of both groups in one order, or finish the one before the other is issued; look at the calls named for a branch or a hook that only some ranks run."
causes = [{ state = "collective-mismatched", of = "group" }, { state = "rank-failed", of = "rank" }]
references = [
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html#using-multiple-nccl-communicators-concurrently",
]

[variant.dump]
needs = ["collective", "process_group"]
strength = "strong"
*/
-- variant: dump
WITH wanted AS (
    SELECT
        e.attempt,
        e.place,
        min_by(c.operation, e.n) AS operation
    FROM wait_evidence AS e
    JOIN collective AS c ON c.artifact_id = e.artifact_id AND c.row = e.row
    WHERE e.n > 0
    GROUP BY e.attempt, e.place
)
SELECT
    w.artifact_id,
    w.row,
    'collective' AS "table",
    CASE WHEN w.says IS NULL THEN w.proc_id END AS proc_id,
    CASE WHEN w.says IS NULL THEN w.rank END AS rank,
    w.ts_ns,
    w.strength,
    w.operation AS op,
    'Rank ' || w.rank AS who_waits,
    w.operation || coalesce(' number ' || w.own_sequence, '') || ' of group ' || coalesce(g.description || ' (' || n.text || ')', n.text) AS own,
    w.peers_said || CASE WHEN w.n_peers = 1 THEN ' waits' ELSE ' wait' END AS peers,
    q.operation || ' number ' || w.sequence || ' of group ' || w.group_said AS wanted,
    w.evidence[2:9] AS evidence,
    w.where_in_code,
    n.text || ' ' || w.name AS key
FROM wait_cause AS w
JOIN wanted AS q ON q.attempt = w.attempt AND q.place = w.place
JOIN wait_group AS g ON g.number = w.own_number
JOIN string AS n ON n.id = g.name_id
WHERE w.reason = 'cycle'
ORDER BY w.attempt, w.ts_ns, w.rank;
