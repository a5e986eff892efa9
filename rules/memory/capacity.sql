/*
title = "The live memory and the request do not fit the device"
severity = "critical"
proves = """
What was live, plus the request, exceeds what the process held and the driver still had free: no placement of the
blocks would have fitted it."""
cannot_prove = """
Whether everything that was live had to be: a leak and an honest need look the same at one moment. Without a snapshot
it is not known which tensors they are."""
message = "{who} asked for {requested_bytes:bytes}{at_step} with {live_bytes:bytes} live; only {available_bytes:bytes} were left on the device"
fix = "Lower the batch or sequence length, checkpoint activations, shard or offload optimizer state; then compare the live set at the peak with what the model should need."
causes = [{ state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"]

[thresholds.max_cached_ratio]
value = 1.0
unit = "cached free bytes / requested bytes"
why = "from 1 on, cached bytes alone could have held the request and fragmentation has to be asked first"

[thresholds.max_other_ratio]
value = 0.1
unit = "bytes of other processes / device capacity"
why = "a CUDA context without data takes a few hundred MiB, below a tenth of the devices in use"

[variant.snapshot]
needs = ["memory_segment", "memory_event.oom"]
strength = "strong"
says = "The snapshot does not say how much of the device other processes held."

[variant.log]
needs = ["log_event"]
strength = "strong"
says = "From the message alone: what is live is a sum, not a list."

[variant.library]
needs = ["log_event"]
strength = "indication"
says = "A library, not PyTorch's allocator, was refused memory; how much was free then is not in the message."
*/
-- variant: snapshot
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
    f.cached_bytes + coalesce(f.device_free_bytes, 0) AS available_bytes,
    f.cached_bytes,
    f.device_free_bytes,
    f.reserved_bytes,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    'oom event of the snapshot' AS text
FROM allocation_failure AS f
LEFT JOIN frame AS k ON k.id = f.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE f.cached_bytes + coalesce(f.device_free_bytes, 0) < f.requested_bytes
  AND f.cached_bytes < $max_cached_ratio * f.requested_bytes
  AND f.awaiting_bytes < f.requested_bytes
  AND f.n_allocated_later = 0
ORDER BY f.ts_ns, f.artifact_id, f.row;
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
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code
FROM out_of_memory_text AS o
LEFT JOIN frame AS k ON k.id = o.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE coalesce(o.cached_bytes, 0) < $max_cached_ratio * o.requested_bytes
  AND coalesce(o.free_bytes, 0) < o.requested_bytes
  AND o.allocated_bytes + o.requested_bytes <= 64 * o.capacity_bytes
  AND greatest(o.listed_other_bytes, o.capacity_bytes - coalesce(o.free_bytes, 0) - coalesce(o.process_bytes, o.capacity_bytes))
      < greatest($max_other_ratio * o.capacity_bytes, o.requested_bytes)
ORDER BY o.ts_ns, o.artifact_id, o.row;
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
