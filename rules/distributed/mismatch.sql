/*
title = "Ranks called different collectives where they should have called the same"
severity = "critical"
scope = "job"
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
proves = """
Under one number of one group, ranks called different operations, or the same one with another size or type, by their
flight recorders; or one called what none of its peers did, who wait for nobody."""

[variant.refused]
needs = ["log_event"]
strength = "strong"
proves = "The transport or a check refused to match what ranks sent."

[variant.timeouts]
needs = ["log_event"]
strength = "strong"
proves = """
Under one number of one group, ranks waited in different operations, or in the same one with another size, by their
watchdogs."""
*/
-- variant: dump
WITH call AS (
    SELECT
        e.attempt,
        e.place,
        e.n,
        e.rank,
        c.artifact_id,
        c.row,
        c.operation || coalesce(' of ' || c.in_bytes || ' bytes', '') AS called,
        c.dtype,
        u.file || ':' || u.line AS place_in_code
    FROM wait_evidence AS e
    JOIN collective AS c ON c.artifact_id = e.artifact_id AND c.row = e.row
    LEFT JOIN stack AS k ON k.id = c.stack_id
    LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
)
SELECT
    w.artifact_id,
    w.row,
    'collective' AS "table",
    w.proc_id,
    w.rank,
    w.ts_ns,
    w.strength,
    'rank ' || o.rank || ' ' || o.called || CASE WHEN o.dtype <> p.dtype THEN ' as ' || o.dtype ELSE '' END
    || coalesce(' at ' || o.place_in_code, '')
    || CASE
        WHEN p.rank IS NULL THEN ' as number ' || w.sequence || ' of group ' || w.name || ', which ' || w.peers_said || ' never called'
        ELSE ', rank ' || p.rank || ' ' || p.called || CASE WHEN o.dtype <> p.dtype THEN ' as ' || p.dtype ELSE '' END
            || coalesce(' at ' || p.place_in_code, '') || ', both as number ' || w.sequence || ' of group ' || w.name
    END
    || CASE w.says
        WHEN 'skipped' THEN '; it called next what the others called here, so it left one out'
        WHEN 'extra' THEN '; its next call is that of the others here, so it put one in'
        WHEN 'swapped' THEN '; it called two in the opposite order'
        ELSE ''
    END AS said,
    w.evidence[2:2] AS evidence,
    o.place_in_code AS where_in_code,
    w.name AS key
FROM wait_cause AS w
JOIN call AS o ON o.attempt = w.attempt AND o.place = w.place AND o.n = 0
LEFT JOIN call AS p ON p.attempt = w.attempt AND p.place = w.place AND p.n = 1
WHERE w.reason IN ('mismatch', 'alone')
-- The first one leads to all others.
QUALIFY row_number() OVER (PARTITION BY w.attempt ORDER BY w.strength DESC, w.ts_ns, w.place) = 1
ORDER BY w.ts_ns, w.artifact_id, w.row;
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
