/*
title = "The allocator holds far more memory than the job still needs"
severity = "high"
cannot_prove = """
That somebody needs what is held: it hurts other processes and libraries on the device, not this allocator's own requests of
the same kind. From counters alone, whether a coming step would use the cache again."""
message = "{who} holds {reserved_bytes:bytes} of the device and needs {needed_bytes:bytes}{told}"
fix = "Call torch.cuda.empty_cache() once after the spike (evaluation, a long batch, compilation), or split the spike into smaller batches; limit the cache with torch.cuda.set_per_process_memory_fraction() and garbage_collection_threshold."
causes = [{ state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management"]

[thresholds.max_needed_ratio]
value = 0.3333
unit = "most in use during the last steps / reserved bytes"
measured = "needed_bytes / reserved_bytes"
why = "evaluation often needs twice what a training step does and comes again; below a third of it is the cache of something else"

[thresholds.max_spike_ratio]
value = 1.2
unit = "reserved bytes / most ever in use"
why = "segments round requests up by a tenth; beyond a fifth it is not a spike that fills the cache but fragmentation"

[thresholds.min_awaiting_ratio]
value = 0.5
unit = "bytes that wait for other streams / bytes in use and waiting"
why = "a stream that is a few calls late holds back a few tensors; one that holds most of the memory no longer gives any back"

[thresholds.min_held_ratio]
value = 0.25
unit = "bytes that wait for other streams / reserved bytes"
why = "what waits when a job ends, or when its caches are large, is little of what is held: it fills no device"

[thresholds.max_counted_ratio]
value = 0.5
unit = "allocated bytes / reserved bytes, when the figures were taken"
why = "between steps only activations are missing from what is allocated, seldom more than half of what a step needs"

[thresholds.min_steps]
value = 20
unit = "steps between the first and the last figure"
why = "the cache grows during the first steps of any job"

[variant.snapshot]
needs = ["memory_segment", "memory_event"]
strength = "strong"
proves = """
Over the last steps the allocator kept at least twice the memory that was ever in use in them: a spike, a stream that
does not give memory back, or blocks that no request may use fill the device."""

[variant.counters]
needs = ["log_event", "sample.allocator"]
strength = "indication"
proves = """
By its counters the allocator had reserved far more memory than was allocated while a library outside of it was
refused memory."""
says = "The counters tell the memory in use at one moment, and not when."

[variant.series]
needs = ["sample"]
strength = "indication"
proves = """
Reserved memory rises with the steps while allocated memory does not, and is far above it at the end."""
says = "From sampled totals: how much a step needs between two samples, and why the cache is not used again, is not in them."
*/
-- variant: snapshot
WITH
hoarding AS (
    SELECT
        m.*,
        p.live_bytes + p.awaiting_bytes AS peak_bytes,
        CASE WHEN m.awaiting_bytes >= $min_awaiting_ratio * (m.live_bytes + m.awaiting_bytes) AND m.awaiting_bytes > 0
            THEN 'awaiting' ELSE 'released' END AS kind
    FROM memory_moment AS m
    JOIN memory_moment AS p ON p.artifact_id = m.artifact_id AND p.device = m.device AND p.moment = 'peak'
    WHERE m.moment = 'end' AND m.device >= 0
)
SELECT
    h.artifact_id,
    coalesce(f.row, h.row) AS row,
    h.proc_id,
    h.rank,
    h.step,
    h.ts_ns,
    h.device,
    h.reserved_bytes,
    CASE h.kind WHEN 'awaiting' THEN h.live_bytes ELSE h.needed_bytes END AS needed_bytes,
    CASE h.kind
        WHEN 'awaiting' THEN ': ' || format_bytes(h.awaiting_bytes) || ' that were freed wait for work on other streams'
        ELSE ' in its last ' || h.n_needed_turns || ' steps: ' || format_bytes(w.bytes) || ' were for what was freed since'
    END || coalesce(', made in ' || w.place, '') AS told,
    w.place AS where_in_code,
    h.awaiting_bytes,
    h.peak_bytes,
    CASE h.kind WHEN 'awaiting'
        THEN 'Let the other stream finish: wait for it (torch.cuda.current_stream().wait_stream(side)) and synchronise once in a while; do not run ahead of a stream to which tensors were lent with record_stream().'
    END AS fix,
    CASE WHEN f.row IS NOT NULL THEN 'critical' END AS severity,
    CASE WHEN f.row IS NULL THEN [] END AS causes,
    h.kind AS key,
    [{'artifact_id': h.artifact_id, 'row': w.row, 'note': 'the first of the allocations that were freed since'}] AS evidence
FROM hoarding AS h
LEFT JOIN memory_owner AS w ON w.artifact_id = h.artifact_id AND w.device = h.device AND w.moment = h.kind
LEFT JOIN allocation_failure AS f
    ON f.artifact_id = h.artifact_id AND f.device = h.device AND f.n_allocated_later = 0 AND f.awaiting_bytes >= f.requested_bytes
LEFT JOIN allocation_failure AS a ON a.artifact_id = h.artifact_id AND a.device = h.device
WHERE CASE h.kind
    WHEN 'awaiting' THEN h.awaiting_bytes >= $min_held_ratio * h.reserved_bytes AND (a.row IS NULL OR f.row IS NOT NULL)
    ELSE
        h.needed_bytes <= $max_needed_ratio * h.reserved_bytes
        AND h.reserved_bytes <= $max_spike_ratio * h.peak_bytes
        AND a.row IS NULL
END
ORDER BY h.ts_ns, h.artifact_id, h.row, h.device;
-- variant: counters
WITH
counters AS (
    SELECT
        m.artifact_id,
        m.device,
        max(m.value) FILTER (WHERE m.name = 'allocated_bytes.all.current') AS needed_bytes,
        max(m.value) FILTER (WHERE m.name = 'reserved_bytes.all.current') AS reserved_bytes,
        max(m.value) FILTER (WHERE m.name = 'num_alloc_retries') AS n_retries,
        min(m.line) FILTER (WHERE m.name = 'reserved_bytes.all.current') AS line,
        min(m.row) AS row
    FROM metric AS m
    WHERE m.name IN ('allocated_bytes.all.current', 'reserved_bytes.all.current', 'num_alloc_retries')
    GROUP BY m.artifact_id, m.device
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    c.device,
    CAST(c.reserved_bytes AS BIGINT) AS reserved_bytes,
    CAST(c.needed_bytes AS BIGINT) AS needed_bytes,
    ' at that moment, while a library outside the allocator was refused memory: the allocator frees its cache for its own requests only ('
        || CAST(c.n_retries AS BIGINT) || ' times so far)' AS told,
    c.n_retries,
    coalesce(e.fields ->> 'call', e.fields ->> 'status') AS op,
    'critical' AS severity,
    'library' AS key,
    [{'artifact_id': c.artifact_id, 'line': c.line, 'note': 'the allocator''s counters'}] AS evidence
FROM log AS e
CROSS JOIN counters AS c
WHERE e.class = 'mem.gpu.oom-library'
  AND e.role = 'primary'
  AND e.message LIKE '%ALLOC_FAILED%'
  AND c.needed_bytes <= $max_counted_ratio * c.reserved_bytes
  -- It had filled the device before: only then does it free its cache and try again.
  AND c.n_retries >= 1
  AND NOT EXISTS (
    SELECT 1 FROM log AS b
    WHERE b.proc_id = e.proc_id AND b.artifact_id = e.artifact_id AND b.row < e.row
      AND b.role = 'primary' AND (b.class LIKE 'cuda.%' OR b.class LIKE 'mem.gpu.oom%')
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.artifact_id, e.row, c.artifact_id, c.device) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: series
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.device,
    CAST(r.last_bytes AS BIGINT) AS reserved_bytes,
    CAST(a.last_bytes AS BIGINT) AS needed_bytes,
    ': reserved memory rises by ' || format_bytes(CAST(r.slope_bytes AS BIGINT)) || ' a step, allocated memory by '
        || format_bytes(CAST(greatest(0, a.slope_bytes) AS BIGINT)) AS told,
    r.slope_bytes,
    a.slope_bytes AS allocated_slope_bytes,
    [] AS causes,
    'series' AS key
FROM memory_trend AS r
JOIN memory_trend AS a
    ON a.artifact_id = r.artifact_id AND a.quantity = 'allocated' AND coalesce(a.proc_id = r.proc_id, TRUE)
    AND coalesce(a.device = r.device, TRUE)
WHERE r.quantity = 'reserved'
  AND r.is_rising
  AND r.has_steps
  AND a.last_bytes <= $max_needed_ratio * r.last_bytes
  -- Reserved memory rises because allocated memory does, in a leak.
  AND a.slope_bytes <= $max_needed_ratio * r.slope_bytes
  AND r.step - r.n_samples >= $min_steps
QUALIFY row_number() OVER (PARTITION BY r.artifact_id, r.proc_id ORDER BY r.last_bytes DESC, a.last_bytes, r.name) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
