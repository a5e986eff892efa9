/*
title = "A private pool holds the memory that was missing"
severity = "critical"
cannot_prove = """
Whether a later replay or use of the pool would have needed it. The message of a log tells what is allocated in private pools,
not what is free there."""
message = "{who} asked for {requested_bytes:bytes}{at_step} while private pools held {private_bytes:bytes}{told}"
fix = "Capture fewer graphs or share one pool between them (torch.cuda.graph(pool=...)), capture the largest shapes first, and drop graphs and MemPool objects that are no longer used: their memory returns only with them."
causes = [{ state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#graph-memory-management"]

[thresholds.min_log_share]
value = 0.25
unit = "bytes in private pools / device capacity"
measured = "private_bytes / capacity_bytes"
why = "graphs of a few batch sizes take a tenth of a device; a quarter for them is worth asking about first"

[variant.snapshot]
needs = ["memory_segment", "memory_event.oom"]
strength = "proof"
proves = """
When the allocation failed, private pools (of CUDA graphs or MemPool objects) held more free memory than was
requested, which the request, from the default pool, could not use; it was not to be had elsewhere."""

[variant.log]
needs = ["log_event"]
strength = "indication"
proves = """
By the message, private pools held at least as much as was requested, and its other figures leave no other place for
it."""
says = "The message tells what is allocated in private pools; whether graphs still replay there is not known."
*/
-- variant: snapshot
WITH
pool AS (
    SELECT
        f.artifact_id,
        f.device,
        s.pool_id,
        sum(s.total_bytes) AS reserved_bytes,
        sum(s.total_bytes - s.active_bytes) AS free_bytes,
        count(*) AS n_segments
    FROM allocation_failure AS f
    JOIN memory_segment AS s ON s.artifact_id = f.artifact_id AND s.device = f.device AND s.pool_id <> '0.0'
    GROUP BY f.artifact_id, f.device, s.pool_id
),
held AS (
    SELECT
        p.artifact_id,
        p.device,
        sum(p.reserved_bytes) AS reserved_bytes,
        sum(p.free_bytes) AS free_bytes,
        string_agg(p.pool_id || ' (' || format_bytes(CAST(p.reserved_bytes AS BIGINT)) || ')', ', ' ORDER BY p.reserved_bytes DESC, p.pool_id)
            AS pools
    FROM pool AS p
    GROUP BY p.artifact_id, p.device
)
SELECT
    f.artifact_id,
    f.row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.device,
    f.requested_bytes,
    h.reserved_bytes AS private_bytes,
    ', ' || format_bytes(CAST(h.free_bytes AS BIGINT)) || ' of it free but not usable for the request'
        || coalesce('; most of it was made in ' || w.place, '') AS told,
    w.place AS where_in_code,
    h.free_bytes,
    h.pools,
    f.live_bytes,
    f.reserved_bytes,
    f.device_free_bytes,
    [{'artifact_id': f.artifact_id, 'row': w.row, 'note': 'the first allocation in a private pool'}] AS evidence
FROM allocation_failure AS f
JOIN held AS h ON h.artifact_id = f.artifact_id AND h.device = f.device
LEFT JOIN memory_owner AS w ON w.artifact_id = f.artifact_id AND w.device = f.device AND w.moment = 'private'
WHERE h.free_bytes >= f.requested_bytes
  AND f.free_bytes < f.requested_bytes
  AND coalesce(f.device_free_bytes, 0) < f.requested_bytes
  AND f.n_allocated_later = 0
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- against: snapshot
SELECT
    artifact_id,
    row,
    proc_id,
    'Private pools held ' || format_bytes(private_free_bytes::BIGINT) || ' free memory when ' || format_bytes(requested_bytes)
        || ' were asked for' AS says
FROM allocation_failure
WHERE private_free_bytes < requested_bytes
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
    private_pool_bytes AS private_bytes,
    ' of ' || format_bytes(capacity_bytes) || ', ' || format_bytes(allocated_bytes) || ' allocated in all' AS told,
    allocated_bytes,
    cached_bytes,
    capacity_bytes
FROM out_of_memory_text
WHERE private_pool_bytes >= requested_bytes
  AND private_pool_bytes >= $min_log_share * capacity_bytes
  -- Others on the device, or a cache that would have held the request, come first.
  AND other_bytes < private_pool_bytes
  AND coalesce(cached_bytes, 0) < requested_bytes
ORDER BY ts_ns, artifact_id, row;
