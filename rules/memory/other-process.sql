/*
title = "Another process holds the memory that was missing"
severity = "critical"
cannot_prove = """
Whose they are, and whether they were meant to share the device: an orphan of an earlier run, a second rank on the same
device and another user look the same. A snapshot does not tell others from memory of this process outside of the
allocator either. In a container the own process may be listed under its host id."""
message = "{who} {asked} on device {device}: {before}{other_bytes:bytes}{after}"
fix = "List the processes on the device (nvidia-smi), end orphans of earlier runs, and give each rank its own device (torch.cuda.set_device(local_rank) before any CUDA call)."
causes = [{ state = "device-full", of = "device" }]

[thresholds.min_other_ratio]
value = 0.1
unit = "bytes of other processes / device capacity"
measured = "other_bytes / capacity_bytes"
why = "a CUDA context without data takes a few hundred MiB, below a tenth of the devices in use"

[thresholds.min_gone_bytes]
value = 33554432
unit = "bytes that went elsewhere, at least"
why = "workspaces, kernels loaded late and communicators of the process itself take some MiB to tens of MiB outside of the allocator"

[thresholds.min_unowned_ratio]
value = 0.25
unit = "bytes in use that no listed process owns / device memory"
why = "drivers and displays keep a few hundred MiB for themselves, well below a quarter"

[thresholds.max_cached_share]
value = 0.1
unit = "cached free bytes / bytes of other processes"
why = "with ten times as much in other processes, emptying the cache would not have helped for long"

[variant.snapshot]
needs = ["memory_segment", "memory_event.oom"]
strength = "strong"
proves = """
When the allocation failed, the allocator held less than it once had, and what was missing, as much as was requested
or more, was not free on the device either."""
says = "The allocator once held more than it holds now together with what the driver has free: the difference went elsewhere, to another process or to memory of this one outside the allocator."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
When the allocation failed, processes other than this one held enough of the device's memory for the request to have
fitted without them."""

[variant.device]
needs = ["log_event", "sample.device"]
strength = "indication"
proves = """
Around the time at which the allocation failed, processes other than this one held a good part of the device's memory."""
says = "The device's memory was read at another moment than the failure."

[variant.orphan]
needs = ["log_event", "sample.device"]
strength = "indication"
proves = """
The driver refused memory to this process, and a good part of the device's memory was in use by no listed process."""
says = "The driver refused memory to this process; who holds the device is not in the list, as with a process that outlived its job."
*/
-- variant: snapshot
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    step,
    ts_ns,
    device,
    requested_bytes,
    peak_reserved_bytes - reserved_bytes - device_free_bytes AS other_bytes,
    peak_reserved_bytes AS capacity_bytes,
    'asked for ' || format_bytes(requested_bytes) AS asked,
    'it once held ' || format_bytes(CAST(peak_reserved_bytes AS BIGINT)) || '; now it holds ' || format_bytes(CAST(reserved_bytes AS BIGINT))
        || ' and ' || format_bytes(device_free_bytes) || ' are free, so at least ' AS before,
    ' went to other processes, or to this one outside of its allocator' AS after,
    -- A little may as well be memory of this process outside of the allocator: contexts, libraries, communicators.
    CASE
        WHEN peak_reserved_bytes - reserved_bytes - device_free_bytes < $min_other_ratio * peak_reserved_bytes THEN 'indication'
    END AS strength,
    live_bytes,
    reserved_bytes,
    device_free_bytes
FROM allocation_failure
WHERE peak_reserved_bytes - reserved_bytes - device_free_bytes >= $min_gone_bytes
  AND peak_reserved_bytes - reserved_bytes >= requested_bytes
  AND cached_bytes < requested_bytes
  AND n_allocated_later = 0
ORDER BY ts_ns, artifact_id, row;
-- against: snapshot
SELECT
    artifact_id,
    row,
    proc_id,
    'All that the allocator ever held, ' || format_bytes(peak_reserved_bytes::BIGINT) || ', it still held when the request failed' AS says
FROM allocation_failure
WHERE peak_reserved_bytes = reserved_bytes
ORDER BY artifact_id, row;
-- variant: log
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    step,
    ts_ns,
    line,
    device,
    requested_bytes,
    other_bytes,
    capacity_bytes,
    'asked for ' || format_bytes(requested_bytes) AS asked,
    'other processes held ' AS before,
    ' of its ' || format_bytes(capacity_bytes) AS after,
    allocated_bytes,
    free_bytes
FROM out_of_memory_text
WHERE other_bytes >= $min_other_ratio * capacity_bytes
  AND other_bytes + free_bytes + coalesce(cached_bytes, 0) >= requested_bytes
  -- A cache that could have held the request is the first thing to ask about, unless it is small beside the others.
  AND (coalesce(cached_bytes, 0) < requested_bytes OR coalesce(cached_bytes, 0) < $max_cached_share * other_bytes)
  AND allowed_bytes IS NULL
  AND NOT EXISTS (SELECT 1 FROM sibling_on_device AS s WHERE s.device = out_of_memory_text.device)
ORDER BY ts_ns, artifact_id, row;
-- variant: device
SELECT
    o.artifact_id,
    o.row,
    o.proc_id,
    o.rank,
    o.step,
    o.ts_ns,
    o.line,
    o.device,
    o.requested_bytes,
    m.value - coalesce(o.process_bytes, o.allocated_bytes + coalesce(o.cached_bytes, 0)) AS other_bytes,
    o.capacity_bytes,
    'asked for ' || format_bytes(o.requested_bytes) AS asked,
    'other processes held ' AS before,
    ' of its ' || format_bytes(o.capacity_bytes) AS after,
    [{'artifact_id': m.artifact_id, 'line': m.line, 'note': 'memory used on the device'}] AS evidence
FROM out_of_memory_text AS o
JOIN metric AS m ON m.name = 'memory.used' AND m.device = o.device
WHERE m.value - coalesce(o.process_bytes, o.allocated_bytes + coalesce(o.cached_bytes, 0)) >= $min_other_ratio * o.capacity_bytes
  AND coalesce(o.cached_bytes, 0) < o.requested_bytes
  AND o.allowed_bytes IS NULL
  AND NOT EXISTS (SELECT 1 FROM sibling_on_device AS s WHERE s.device = o.device)
QUALIFY row_number() OVER (PARTITION BY o.proc_id, o.row ORDER BY m.value DESC, m.artifact_id, m.row) = 1
ORDER BY o.ts_ns, o.artifact_id, o.row;
-- variant: orphan
WITH
listed AS (
    SELECT
        artifact_id,
        device,
        sum(value) AS bytes
    FROM metric
    WHERE name = 'process.memory.used'
    GROUP BY artifact_id, device
),
unowned AS (
    SELECT
        u.artifact_id,
        u.line,
        u.row,
        u.device,
        u.value - coalesce(l.bytes, 0) AS unowned_bytes,
        t.value AS total_bytes
    FROM metric AS u
    JOIN metric AS t ON t.artifact_id = u.artifact_id AND t.device = u.device AND t.name = 'memory.total'
    LEFT JOIN listed AS l ON l.artifact_id = u.artifact_id AND l.device = u.device
    WHERE u.name = 'memory.used'
    QUALIFY row_number() OVER (ORDER BY (u.value - coalesce(l.bytes, 0)) / t.value DESC, u.artifact_id, u.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    n.device,
    NULL AS requested_bytes,
    CAST(n.unowned_bytes AS BIGINT) AS other_bytes,
    CAST(n.total_bytes AS BIGINT) AS capacity_bytes,
    'was refused memory by the driver' AS asked,
    '' AS before,
    ' of its ' || format_bytes(CAST(n.total_bytes AS BIGINT)) || ' are in use by no listed process' AS after,
    [{'artifact_id': n.artifact_id, 'line': n.line, 'note': 'memory in use on the device'}] AS evidence,
    'orphan' AS key
FROM log AS e
CROSS JOIN unowned AS n
WHERE e.class = 'mem.gpu.oom-driver'
  AND e.role = 'primary'
  AND n.unowned_bytes >= $min_unowned_ratio * n.total_bytes
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
