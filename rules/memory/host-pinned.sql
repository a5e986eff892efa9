/*
title = "Pinned host memory runs out or grows"
severity = "critical"
scope = "job"
cannot_prove = """
How much could be pinned: the limit lies with the driver and the host, and is not in the message, which speaks of CUDA memory
although the device may have room. Tensors on their way between processes are shared memory as well (memory-shm)."""
message = "{who} {said}"
fix = "Pin less: pin_memory=False or fewer prefetched batches, reuse pinned staging buffers, release the host cache with torch._C._host_emptyCache(); raise the limit on locked memory (ulimit -l) or of the container."
causes = [{ state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/data.html#memory-pinning"]

[thresholds.min_growth_turns]
value = 10
unit = "steps in which pinned blocks were left behind"
why = "staging buffers of prefetched batches are made within the first steps"

[thresholds.min_shared_ratio]
value = 0.5
unit = "shmem-rss / (anon-rss + file-rss + shmem-rss)"
why = "as in memory-shm: from half on this is what the process was killed for"

[variant.snapshot]
needs = ["memory_event"]
strength = "strong"
proves = "Pinned blocks of host memory stay alive step after step."

[variant.killed]
needs = ["log_event.kernel|log_event"]
strength = "strong"
proves = """
A process was killed for lack of memory most of whose memory was shared (shmem-rss, as locked memory counts), and the
job says that it pins host memory."""

[variant.refused]
needs = ["log_event"]
strength = "strong"
proves = """
An allocation of page-locked host memory was refused: the failed call stands in the stack of the code that pins."""
*/
-- variant: snapshot
SELECT
    g.artifact_id,
    g.row,
    g.proc_id,
    g.rank,
    g.step,
    g.ts_ns,
    'keeps ' || format_bytes(CAST(g.slope_bytes AS BIGINT)) || ' of pinned host memory more every step ('
        || CASE WHEN format_bytes(CAST(g.slope_low_bytes AS BIGINT)) = format_bytes(CAST(g.slope_high_bytes AS BIGINT)) THEN 'the same each time' ELSE format_bytes(CAST(g.slope_low_bytes AS BIGINT)) || ' to ' || format_bytes(CAST(g.slope_high_bytes AS BIGINT)) || ', 95 %' END || '): '
        || g.n_kept || ' blocks of ' || coalesce(g.place, 'a place that was not recorded') || ' stay' AS said,
    g.place AS where_in_code,
    g.slope_bytes,
    g.kept_bytes,
    g.live_bytes,
    'high' AS severity,
    [] AS causes,
    NULL AS fix,
    g.place AS key
FROM memory_growth AS g
WHERE g.device = -1
  AND g.n_kept_turns >= $min_growth_turns
ORDER BY g.ts_ns, g.artifact_id, g.row;
-- variant: killed
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.host,
    'was killed for lack of host memory with ' || format_bytes(CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT))
        || ' shared or locked and ' || format_bytes(CAST(e.fields ->> 'anon_rss_bytes' AS BIGINT)) || ' of its own'
        || coalesce(' (' || (e.fields ->> 'process') || ', pid ' || (e.fields ->> 'pid') || ')', '')
        || '; it pins host memory: ' || briefly(t.message, 120) AS said,
    ['memory-retained', 'host-full'] AS causes,
    'Pin less, or allocate what is pinned in sizes of powers of two: torch''s cache of pinned memory rounds each block up to the next one (1.2 GiB lock 2 GiB). Keep weights that are offloaded pageable or mapped, or register buffers of the exact size (cudaHostRegister). Locked memory can neither be swapped nor dropped, so plan for what RssShmem shows, not for the bytes asked for.' AS fix,
    [{'artifact_id': t.artifact_id, 'row': t.row, 'line': t.line, 'note': 'what the job pins'}] AS evidence,
    'killed' AS key
FROM log AS e
CROSS JOIN host_pinning AS t
WHERE e.class = 'mem.host.oom'
  AND e.role <> 'noise'
  AND CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT) > 0
  AND CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT) >= $min_shared_ratio * (
      CAST(e.fields ->> 'anon_rss_bytes' AS BIGINT) + coalesce(CAST(e.fields ->> 'file_rss_bytes' AS BIGINT), 0)
      + CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT)
  )
QUALIFY row_number() OVER (PARTITION BY e.host, e.fields ->> 'pid' ORDER BY e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: refused
WITH RECURSIVE
refused AS (
    SELECT *
    FROM log
    WHERE class IN ('mem.gpu.oom-driver', 'mem.gpu.oom')
      AND role = 'primary'
      -- The allocator's own message tells sizes of device memory; that of a pinned allocation does not.
      AND (fields ->> 'requested_bytes') IS NULL
      AND coalesce(fields ->> 'handled', 'false') <> 'true'
),
walk AS (
    SELECT r.artifact_id, r.row, f.id, f.parent_id, f.function, f.file, f.line
    FROM refused AS r
    JOIN frame AS f ON f.id = r.stack_id
    UNION ALL
    SELECT w.artifact_id, w.row, f.id, f.parent_id, f.function, f.file, f.line
    FROM walk AS w
    JOIN frame AS f ON f.id = w.parent_id
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    'was refused pinned host memory in ' || w.function || ': ' || briefly(r.message, 120) AS said,
    w.function || ' (' || w.file || ':' || w.line || ')' AS where_in_code,
    'refused' AS key
FROM refused AS r
JOIN walk AS w ON w.artifact_id = r.artifact_id AND w.row = r.row
WHERE w.function IN ('pin_memory', '_pin_memory_loop', 'do_one_step') OR w.file LIKE '%pin\_memory.py' ESCAPE '\'
QUALIFY row_number() OVER (PARTITION BY r.proc_id ORDER BY r.artifact_id, r.row, w.id) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
