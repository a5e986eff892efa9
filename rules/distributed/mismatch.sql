/*
title = "Ranks called different collectives where they should have called the same"
severity = "critical"
scope = "job"
proves = """
The transport or a check refused to match what ranks sent; or, under one number of one group, ranks called different
operations, or the same one with another size, by their flight recorders or their watchdogs."""
cannot_prove = """
Which of the ranks is wrong: the one that differs from most is named, and of two neither is. Why their ways through the
program parted (another number of batches, a branch that only some ranks take) is not in these records."""
message = "Ranks called different collectives{at_step}: {said}"
fix = "Make every rank call the same collectives in the same order: equal numbers of batches (DistributedSampler with drop_last, join()), no collective inside a branch of some ranks; TORCH_DISTRIBUTED_DEBUG=DETAIL names the first call that differs."
causes = [{ state = "collective-mismatched", of = "group" }, { state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/distributed.html#debugging-torch-distributed-applications"]

[variant.dump]
needs = ["collective", "process_group"]
strength = "strong"

[variant.refused]
needs = ["log_event"]
strength = "strong"

[variant.timeouts]
needs = ["log_event"]
strength = "strong"
*/
-- variant: dump
WITH
call AS (
    SELECT
        p.attempt,
        p.name,
        p.members,
        p.sequence,
        m.rank,
        m.proc_id,
        c.artifact_id,
        c.row,
        c.ts_ns,
        c.operation || coalesce(' of ' || c.in_bytes || ' bytes', '') AS called,
        count(*) OVER (PARTITION BY p.attempt, p.name, p.members, p.sequence, c.operation, c.in_bytes) AS n_alike
    FROM pending_collective AS p
    JOIN group_member AS m ON m.attempt = p.attempt AND m.name = p.name AND m.members = p.members
    JOIN collective AS c
        ON c.artifact_id = m.artifact_id AND c.group_id = m.group_id AND c.sequence = p.sequence
        AND NOT coalesce(c.is_p2p, FALSE)
    WHERE p.completed IS NULL
      -- Others may differ in size by design, and the parts of a broadcast or scatter have names of their own.
      AND (p.n_operations > 1 OR (p.n_in_bytes > 1 AND p.operation IN ('all_reduce', 'broadcast', 'reduce')))
),
odd AS (
    SELECT
        *,
        min(n_alike) OVER same_call < max(n_alike) OVER same_call AS has_majority,
        row_number() OVER (PARTITION BY attempt ORDER BY sequence, name, n_alike, rank) AS n
    FROM call
    WINDOW same_call AS (PARTITION BY attempt, name, members, sequence)
)
SELECT
    o.artifact_id,
    o.row,
    'collective' AS "table",
    CASE WHEN o.has_majority THEN o.proc_id END AS proc_id,
    CASE WHEN o.has_majority THEN o.rank END AS rank,
    o.ts_ns,
    'rank ' || o.rank || ' ' || o.called || ', rank ' || p.rank || ' ' || p.called || ', both as number ' || o.sequence
    || ' of group ' || o.name AS said,
    [{ 'artifact_id': p.artifact_id, 'row': p.row, 'note': 'what rank ' || p.rank || ' called' }] AS evidence,
    o.name AS key
FROM odd AS o
JOIN call AS p
    ON p.attempt = o.attempt AND p.name = o.name AND p.members = o.members AND p.sequence = o.sequence AND p.called <> o.called
WHERE o.n = 1
QUALIFY row_number() OVER (PARTITION BY o.attempt ORDER BY p.n_alike DESC, p.rank) = 1
ORDER BY o.ts_ns, o.artifact_id, o.row;
-- variant: refused
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    coalesce(
        'a rank received ' || (e.fields ->> 'received_bytes') || ' bytes where its own call expects ' || (e.fields ->> 'expected_bytes'),
        e.said
    ) AS said,
    e.where_in_code,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'comm.mismatch'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: timeouts
SELECT
    o.artifact_id,
    o.row,
    CASE WHEN o.has_majority THEN o.proc_id END AS proc_id,
    CASE WHEN o.has_majority THEN o.rank END AS rank,
    o.ts_ns,
    o.line,
    'rank ' || o.rank || ' ' || o.called || ', rank ' || p.rank || ' ' || p.called || ', both as number ' || o.sequence AS said,
    [{ 'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'what rank ' || p.rank || ' called' }] AS evidence,
    -- Without the group's name two groups may have come to the same number.
    CASE WHEN o.process_group IS NULL THEN 'indication' END AS strength,
    'timeouts' AS key
FROM timed_out_call AS o
JOIN timed_out_call AS p
    ON p.attempt = o.attempt AND p.sequence = o.sequence AND p.process_group IS NOT DISTINCT FROM o.process_group
    AND p.rank <> o.rank AND p.called <> o.called
WHERE o.operation <> p.operation OR o.operation IN ('ALLREDUCE', 'BROADCAST', 'REDUCE', '_ALLGATHER_BASE', '_REDUCE_SCATTER_BASE')
QUALIFY row_number() OVER (
    PARTITION BY o.attempt ORDER BY CAST(o.sequence AS BIGINT), o.n_alike, o.rank, p.n_alike DESC, p.rank
) = 1
ORDER BY o.ts_ns, o.artifact_id, o.row;
