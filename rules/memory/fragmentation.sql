/*
title = "Allocation failed although enough memory was cached"
severity = "critical"
cannot_prove = """
Why the free runs are short: varying lengths and one long-lived tensor in each segment look the same here. The line
named is the one whose live blocks keep most of the free bytes apart; whether it should have freed them is for the code."""
message = "{who} asked for {requested_bytes:bytes}{at_step} with {free_bytes:bytes} free in its own cache; the longest free run was {largest_free_bytes:bytes}{pinned_by}"
fix = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True and run again; where lengths vary, pad them to a few sizes; free or move the long-lived blocks that pin segments."
causes = [{ state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"]

[thresholds.min_free_ratio]
value = 1.0
unit = "free bytes / requested bytes"
measured = "free_bytes / requested_bytes"
why = "below 1 the device was simply full"

[thresholds.max_log_fill_ratio]
value = 0.85
unit = "(allocated + requested) / (allocated + reserved but unallocated + free bytes of the device)"
why = "a log counts free bytes of all pools and streams; a seventh to spare leaves room for those the request could not use"

[variant.snapshot]
needs = ["memory_segment", "memory_event.oom"]
strength = "proof"
proves = """
When the allocation failed, the allocator held at least as many free bytes as were requested, usable for this request
(same device, stream, pool and size class), but no free run was long enough."""

[variant.log]
needs = ["log_event"]
strength = "indication"
proves = """
By the message, live memory and the request together leave part of the device unused, and the cache held as many bytes
as were requested."""
says = "The message gives reserved and allocated bytes only; the longest free run, and whether the free bytes were usable for the request, are not known."
*/
-- variant: snapshot
WITH
fragmented AS (
    SELECT a.*
    FROM allocation_failure AS a
    LEFT JOIN live_growth AS g ON g.artifact_id = a.artifact_id AND g.device = a.device
    WHERE a.free_bytes >= $min_free_ratio * a.requested_bytes
      AND a.largest_free_bytes < a.requested_bytes
      AND a.n_allocated_later = 0
      AND NOT coalesce(g.is_decisive, FALSE)
      -- Where what piles up would have filled the rest within three turns (live_growth), that has to be explained first;
      -- where even segments that grow page by page would not have served it, the device was full.
      AND NOT EXISTS (
          SELECT 1 FROM replayed_setting AS r
          WHERE r.artifact_id = a.artifact_id AND r.device = a.device AND r.setting = 'expandable_segments:True' AND NOT r.fits
      )
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
    f.free_bytes,
    f.largest_free_bytes,
    f.live_bytes,
    f.reserved_bytes,
    f.device_free_bytes,
    round(f.largest_free_bytes / f.free_bytes, 3) AS contiguity_ratio,
    p.place AS where_in_code,
    p.n_blocks AS n_pinning,
    p.unlocked_bytes,
    coalesce('; ' || p.claim, '') AS pinned_by,
    CASE WHEN w.fits THEN w.fix || ' A replay of this record then fits, with ' || format_bytes(w.spare_bytes) || ' to spare.' END AS fix,
    p.evidence
FROM fragmented AS f
LEFT JOIN pinning_line AS p ON p.artifact_id = f.artifact_id AND p.device = f.device
LEFT JOIN replayed_setting AS w ON w.artifact_id = f.artifact_id AND w.device = f.device AND w.rest = 1 AND w.fits
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- against: snapshot
SELECT
    artifact_id,
    row,
    proc_id,
    CASE
        WHEN free_bytes < $min_free_ratio * requested_bytes
            THEN format_bytes(free_bytes::BIGINT) || ' were free for a request of ' || format_bytes(requested_bytes) || ', in one run or in many'
        ELSE 'A free run of ' || format_bytes(largest_free_bytes) || ' was there for a request of ' || format_bytes(requested_bytes)
    END AS says
FROM allocation_failure
WHERE free_bytes < $min_free_ratio * requested_bytes OR largest_free_bytes >= requested_bytes
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
    cached_bytes AS free_bytes,
    NULL AS largest_free_bytes,
    '' AS pinned_by,
    allocated_bytes,
    capacity_bytes
FROM out_of_memory_text
WHERE allocated_bytes + requested_bytes
      <= $max_log_fill_ratio * (allocated_bytes + cached_bytes - private_pool_bytes + coalesce(free_bytes, 0))
  AND coalesce(free_bytes, 0) < requested_bytes
  AND cached_bytes > private_pool_bytes
  AND allowed_bytes IS NULL
  -- Where other processes hold more than the cache, they are the first thing to ask about.
  AND cached_bytes >= other_bytes
ORDER BY ts_ns, artifact_id, row;
