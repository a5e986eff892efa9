/*
title = "The live memory and the request do not fit the device"
severity = "critical"
cannot_prove = """
Whether everything that was live had to be: a leak and an honest need look the same at one moment. Without a snapshot
it is not known which tensors they are."""
message = "{who} asked for {requested_bytes:bytes}{at_step} with {live_bytes:bytes} live; cache and device together had {available_bytes:bytes} left{told}"
fix = "Lower the batch or sequence length, checkpoint activations, shard or offload optimizer state; then compare the live set at the peak with what the model should need."
causes = [{ state = "device-full", of = "device" }]
requires = [{ state = "memory-retained", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"]

[thresholds.max_cached_ratio]
value = 1.0
unit = "cached free bytes / requested bytes"
measured = "cached_bytes / requested_bytes"
why = "from 1 on, cached bytes alone could have held the request and fragmentation has to be asked first"

[thresholds.min_fill_ratio]
value = 0.97
unit = "(live + requested bytes) / (reserved bytes + free bytes of the device)"
why = "blocks are rounded to 512 B and segments to 2 MiB; nothing packs a device fuller than this"

[thresholds.max_other_ratio]
value = 0.1
unit = "bytes of other processes / device capacity"
why = "a CUDA context without data takes a few hundred MiB, below a tenth of the devices in use"

[thresholds.max_growth_ratio]
value = 0.25
unit = "bytes that pile up step after step / live bytes"
why = "beyond a quarter of the live set the memory grows without end; whether the model fits cannot be said, and the failure is where it ends"

[thresholds.min_peak_ratio]
value = 0.97
unit = "peak of allocated bytes / peak of reserved bytes"
why = "as min_fill_ratio: at the peak the cache then held nothing to speak of that could have served a request"

[thresholds.min_state_ratio]
value = 0.5
unit = "bytes of parameters, gradients and optimizer state / live bytes"
why = "from half on, no batch size makes the live set half as large"

[thresholds.min_private_share]
value = 0.25
unit = "bytes in private pools / device capacity"
why = "as in memory-private-pool, which asks first from there on"

[variant.snapshot]
needs = ["memory_segment", "memory_event.oom"]
strength = "strong"
proves = """
What was live, plus the request, takes up all that the process held and the driver still had free, or more: no
realistic placement of the blocks would have fitted it."""
says = "The snapshot does not say how much of the device other processes held."

[thresholds.min_driver_ratio]
value = 0.9
unit = "bytes that the driver had given to the process / device capacity"
why = "a context, its kernels and the driver's own reserve take up to a tenth of the smaller devices in use"

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
By the figures of the message, what was live, plus the request, takes up all that the process held and the driver
still had free, or more: no realistic placement of the blocks would have fitted it."""
says = "From the message alone: what is live is a sum, not a list."

[variant.result]
needs = ["slice.return_code", "memory_event.driver"]
strength = "indication"
proves = """
A call for device memory returned out of memory while the driver had given nearly all of the device to this process."""
says = "From what the driver gave and took: how much of it was in use, and how much was asked for, is not recorded."

[variant.library]
needs = ["log_event"]
strength = "indication"
proves = "A library was refused device memory while the device was nearly full."
says = "A library, not PyTorch's allocator, was refused memory; how much was free then is not in the message."
[variant.counters]
needs = ["sample.allocator"]
strength = "indication"
proves = "An allocation failed, and at its peak nearly all that the allocator had ever reserved was live."
says = "From the allocator's counters alone: an allocation failed and nearly all that was ever reserved was live at its peak; how much was asked for, when, and what other processes held is not in them."
*/
-- variant: snapshot
WITH
owner AS (
    SELECT
        artifact_id,
        device,
        category,
        sum(bytes) AS bytes,
        arg_max(place, (bytes, place)) AS place,
        arg_max(row, (bytes, place)) AS row
    FROM memory_owner
    WHERE moment = 'oom'
    GROUP BY artifact_id, device, category
),
live_set AS (
    SELECT
        artifact_id,
        device,
        arg_max(category, (bytes, category)) AS category,
        max(bytes) / sum(bytes) AS main_ratio,
        coalesce(sum(bytes) FILTER (WHERE category IN ('parameter', 'gradient', 'optimizer')), 0) AS state_bytes,
        string_agg(category || ' ' || format_bytes(CAST(bytes AS BIGINT)), ', ' ORDER BY bytes DESC, category) AS parts
    FROM owner
    GROUP BY artifact_id, device
),
-- The place with the most live bytes, of whatever category.
largest AS (
    SELECT artifact_id, device, place, row, bytes
    FROM memory_owner
    WHERE moment = 'oom' AND place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY artifact_id, device ORDER BY bytes DESC, place) = 1
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
    f.live_bytes + f.awaiting_bytes AS live_bytes,
    f.cached_bytes + CASE WHEN f.is_limited THEN 0 ELSE coalesce(f.device_free_bytes, 0) END AS available_bytes,
    CASE
        WHEN f.is_limited THEN ' under a limit of its own (' || format_bytes(f.device_free_bytes)
            || ' of the device were free, so the process may use about ' || format_bytes(CAST(f.reserved_bytes AS BIGINT)) || ')'
        ELSE ''
    END || coalesce('; live: ' || l.parts || coalesce('; most in ' || w.place, ''), '') AS told,
    'requested ' || format_bytes(f.requested_bytes) || ' > cached ' || format_bytes(CAST(f.cached_bytes AS BIGINT))
        || ' + free on the device ' || format_bytes(f.device_free_bytes)
        || '; reserved ' || format_bytes(CAST(f.reserved_bytes AS BIGINT))
        || ' = allocated ' || format_bytes(CAST(f.live_bytes AS BIGINT))
        || ' + waiting for other streams ' || format_bytes(CAST(f.awaiting_bytes AS BIGINT))
        || ' + cached ' || format_bytes(CAST(f.cached_bytes AS BIGINT))
        || ' (of it in private pools ' || format_bytes(CAST(f.private_free_bytes AS BIGINT)) || ')'
        || coalesce(
            '; device ' || format_bytes(o.capacity_bytes) || ', other processes ' || format_bytes(greatest(0, o.listed_other_bytes))
                || coalesce(', this process outside PyTorch ' || format_bytes(greatest(0, o.process_bytes - o.allocated_bytes - o.cached_bytes)), ''),
            '; what else is on the device is not recorded'
        ) AS arithmetic,
    f.cached_bytes,
    f.device_free_bytes,
    f.reserved_bytes,
    l.category AS main_category,
    l.main_ratio,
    w.place AS where_in_code,
    CASE
        WHEN f.is_limited THEN 'Raise or remove torch.cuda.set_per_process_memory_fraction() for this process, or make the step fit the limit.'
        WHEN l.category = 'activation' THEN 'Activations are most of it: lower the batch or sequence length, or checkpoint activations (torch.utils.checkpoint), by at least '
            || format_bytes(CAST(greatest(0, f.requested_bytes - f.cached_bytes - coalesce(f.device_free_bytes, 0)) AS BIGINT))
            || '; at least, for the pass was not over.'
        WHEN l.state_bytes >= $min_state_ratio * (f.live_bytes + f.awaiting_bytes)
            THEN 'Parameters, gradients and optimizer state are most of it, and no batch size changes them: shard or offload the optimizer (ZeRO, FSDP), keep its state in 8 bits, or train adapters of lower rank.'
    END AS fix,
    [{'artifact_id': f.artifact_id, 'row': w.row, 'note': 'the first of the allocations of the place that holds most'}] AS evidence,
    -- What piled up, or what the exception of a first failure still holds, is not the model's need: here it ends.
    CASE WHEN f.is_led_to THEN 'symptom' END AS role,
    CASE WHEN f.is_led_to THEN 'high' END AS severity,
    CASE WHEN f.is_limited THEN 'limit' ELSE 'device' END AS key
FROM (
    SELECT
        *,
        n_earlier_failures > 0
        OR EXISTS (
            SELECT 1 FROM surviving_growth AS g
            WHERE g.artifact_id = allocation_failure.artifact_id AND g.device = allocation_failure.device
              AND g.growth_bytes >= $max_growth_ratio * allocation_failure.live_bytes
        )
        OR EXISTS (
            SELECT 1 FROM live_growth AS d
            WHERE d.artifact_id = allocation_failure.artifact_id AND d.device = allocation_failure.device AND d.is_decisive
        ) AS is_led_to,
        -- The driver had room for a segment of any size that the request may need: the process was not allowed to use it.
        coalesce(device_free_bytes, 0) >= requested_bytes + 20971520 AS is_limited
    FROM allocation_failure
) AS f
LEFT JOIN live_set AS l ON l.artifact_id = f.artifact_id AND l.device = f.device
LEFT JOIN largest AS w ON w.artifact_id = f.artifact_id AND w.device = f.device
LEFT JOIN out_of_memory_text AS o ON o.proc_id = f.proc_id AND o.device = f.device
WHERE (
    f.is_limited
    OR f.live_bytes + f.requested_bytes >= $min_fill_ratio * (f.reserved_bytes + coalesce(f.device_free_bytes, 0))
)
  AND f.cached_bytes < $max_cached_ratio * f.requested_bytes
  AND f.awaiting_bytes < f.requested_bytes
  AND f.n_allocated_later = 0
  -- It once held more than is there now: somebody else took the difference.
  AND f.peak_reserved_bytes <= f.reserved_bytes + coalesce(f.device_free_bytes, 0)
  AND NOT EXISTS (
    SELECT 1 FROM out_of_memory_text AS o
    WHERE o.proc_id = f.proc_id AND o.other_bytes >= $max_other_ratio * o.capacity_bytes
  )
QUALIFY row_number() OVER (PARTITION BY f.artifact_id, f.row ORDER BY o.row) = 1
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- against: snapshot
SELECT
    artifact_id,
    row,
    proc_id,
    format_bytes(cached_bytes::BIGINT) || ' of the memory that the allocator held were free when ' || format_bytes(requested_bytes)
        || ' were asked for' AS says
FROM allocation_failure
WHERE cached_bytes > $max_cached_ratio * requested_bytes
ORDER BY artifact_id, row;
-- variant: log
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
    o.allocated_bytes AS live_bytes,
    coalesce(o.free_bytes, 0) + coalesce(o.cached_bytes, 0) AS available_bytes,
    o.capacity_bytes,
    o.free_bytes,
    o.cached_bytes,
    '' AS told,
    'requested ' || format_bytes(o.requested_bytes) || ' > cached ' || coalesce(format_bytes(o.cached_bytes), 'unknown')
        || ' + free on the device ' || coalesce(format_bytes(o.free_bytes), 'unknown') || '; device ' || format_bytes(o.capacity_bytes)
        || ' = allocated ' || format_bytes(o.allocated_bytes) || ' + cached ' || coalesce(format_bytes(o.cached_bytes), 'unknown')
        || ' + free ' || coalesce(format_bytes(o.free_bytes), 'unknown')
        || ' + other processes and memory outside PyTorch '
        || coalesce(format_bytes(greatest(0, o.capacity_bytes - o.allocated_bytes - coalesce(o.cached_bytes, 0) - coalesce(o.free_bytes, 0))), 'unknown')
        || ' (private pools, within allocated: ' || format_bytes(o.private_pool_bytes) || ')' AS arithmetic,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code
FROM out_of_memory_text AS o
LEFT JOIN frame AS k ON k.id = o.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE coalesce(o.cached_bytes, 0) < $max_cached_ratio * o.requested_bytes
  AND o.allocated_bytes + o.requested_bytes
      >= $min_fill_ratio * (o.allocated_bytes + coalesce(o.cached_bytes, 0) + coalesce(o.free_bytes, 0))
  AND coalesce(o.free_bytes, 0) < o.requested_bytes
  AND o.allocated_bytes + o.requested_bytes <= 64 * o.capacity_bytes
  -- What private pools hold counts as allocated, though most of it may be free: memory-private-pool asks about that.
  AND (o.private_pool_bytes < o.requested_bytes OR o.private_pool_bytes < $min_private_share * o.capacity_bytes)
  AND o.other_bytes < greatest($max_other_ratio * o.capacity_bytes, o.requested_bytes)
ORDER BY o.ts_ns, o.artifact_id, o.row;
-- variant: result
WITH
capacity AS (
    SELECT
        artifact_id,
        TRY_CAST(regexp_extract(key, '^gpu(\d{1,4})\.totalMemory$', 1) AS INTEGER) AS device,
        CAST(number AS BIGINT) AS capacity_bytes
    FROM fact
    WHERE regexp_matches(key, '^gpu\d{1,4}\.totalMemory$')
),
refused AS (
    SELECT f.*
    FROM failed_call AS f
    WHERE f.return_code = 2
      AND regexp_matches(f.call, '^(cudaMalloc|cuMemAlloc|cuMemCreate)')
      -- An allocator that frees its cache and asks again has not failed.
      AND NOT EXISTS (
        SELECT 1 FROM runtime_call AS a
        WHERE a.artifact_id = f.artifact_id AND a.proc_id = f.proc_id AND a.ts_ns > f.ts_ns AND a.return_code = 0
          AND regexp_matches(a.name, '^(cudaMalloc|cuMemAlloc|cuMemCreate)')
      )
    QUALIFY row_number() OVER (PARTITION BY f.artifact_id, f.proc_id ORDER BY f.ts_ns, f.row) = 1
),
held AS (
    SELECT
        r.artifact_id,
        r.row,
        m.device,
        sum(CASE m.action WHEN 'segment_alloc' THEN m.size_bytes WHEN 'segment_free' THEN -m.size_bytes END) AS live_bytes
    FROM refused AS r
    JOIN memory_event AS m ON m.artifact_id = r.artifact_id AND m.proc_id = r.proc_id AND m.ts_ns <= r.ts_ns AND m.device >= 0
    GROUP BY r.artifact_id, r.row, m.device
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    h.device,
    NULL AS requested_bytes,
    h.live_bytes,
    c.capacity_bytes - h.live_bytes AS available_bytes,
    c.capacity_bytes,
    '' AS told,
    r.place AS where_in_code
FROM refused AS r
JOIN held AS h ON h.artifact_id = r.artifact_id AND h.row = r.row
JOIN capacity AS c ON c.artifact_id = h.artifact_id AND c.device = h.device
WHERE h.live_bytes >= $min_driver_ratio * c.capacity_bytes
ORDER BY r.ts_ns, r.artifact_id, r.row, h.device;
-- variant: library
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    NULL AS requested_bytes,
    NULL AS live_bytes,
    NULL AS available_bytes,
    '' AS told,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class = 'mem.gpu.oom-library'
  AND e.role = 'primary'
  AND e.message LIKE '%ALLOC_FAILED%'
  -- After an earlier CUDA error on the process this one is an echo.
  AND NOT EXISTS (
    SELECT 1 FROM log AS c
    WHERE c.proc_id = e.proc_id AND c.row < e.row AND c.artifact_id = e.artifact_id
      AND (c.class LIKE 'cuda.%' OR c.class LIKE 'mem.gpu.oom%') AND c.role = 'primary' AND c.class <> 'mem.gpu.oom-library'
  )
  -- With a device demonstrably near full; a failing handle on an empty device has another cause.
  AND EXISTS (
    SELECT 1 FROM metric AS m JOIN metric AS t
      ON t.artifact_id = m.artifact_id AND t.device = m.device AND t.name = 'memory.total' AND m.name = 'memory.used'
    WHERE m.value > 0.95 * t.value
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: counters
WITH
counters AS (
    SELECT
        m.artifact_id,
        m.proc_id,
        m.rank,
        m.device,
        min(m.row) AS row,
        max(m.ts_ns) AS ts_ns,
        max(m.step) AS step,
        min(m.line) FILTER (WHERE m.name = 'num_ooms' AND m.value > 0) AS line,
        max(m.value) FILTER (WHERE m.name = 'num_ooms') AS n_failures,
        max(m.value) FILTER (WHERE m.name = 'allocated_bytes.all.peak') AS live_bytes,
        max(m.value) FILTER (WHERE m.name = 'reserved_bytes.all.peak') AS reserved_bytes
    FROM metric AS m
    WHERE m.name IN ('num_ooms', 'allocated_bytes.all.peak', 'reserved_bytes.all.peak')
      AND m.source IN ('gauge', 'log')
    GROUP BY m.artifact_id, m.proc_id, m.rank, m.device
)

SELECT
    c.artifact_id,
    c.row,
    c.proc_id,
    c.rank,
    c.step,
    c.ts_ns,
    c.line,
    c.device,
    NULL AS requested_bytes,
    c.live_bytes,
    c.reserved_bytes - c.live_bytes AS available_bytes,
    c.n_failures,
    c.reserved_bytes,
    '' AS told
FROM counters AS c
WHERE c.n_failures >= 1
  AND c.live_bytes >= $min_peak_ratio * c.reserved_bytes
  AND c.live_bytes <= c.reserved_bytes
ORDER BY c.ts_ns, c.artifact_id, c.row;
