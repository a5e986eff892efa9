/*
title = "The device had no memory left for an allocation"
severity = "critical"
role = "symptom"
proves = """
A program says that an allocation on the device was refused for lack of memory, and it did not go on."""
cannot_prove = """
Why: how much of what was in use is live, and whose it is, is not in the text. A model too large, a leak, fragmentation
and another process all end in these words."""
message = "{who} was refused memory on the device{at_step}: {said}{told}"
fix = "Log the exception itself (str(error) has the figures of PyTorch's allocator) with its traceback, record a memory snapshot when it is raised (torch.cuda.memory._record_memory_history), and keep nvidia-smi's output of that moment."
requires = [{ state = "device-full", of = "device" }, { state = "memory-retained", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"]

[thresholds.max_other_ratio]
value = 0.1
unit = "bytes of other processes / device capacity"
why = "as in memory-capacity: a CUDA context without data takes a few hundred MiB, below a tenth of the devices in use"

[variant.log]
needs = ["log_event"]
strength = "indication"
says = "From the words alone."
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    TRY_CAST(e.fields ->> 'device' AS INTEGER) AS device,
    rtrim(left(split_part(e.message, chr(10), 1), 200), '.') AS said,
    CASE
        WHEN o.requested_bytes > o.capacity_bytes THEN '; that is more than the whole device has'
        WHEN o.free_bytes >= o.requested_bytes
            THEN '; that much was free when the text was written: a limit on the process, or memory that was freed meanwhile'
        WHEN o.process_bytes + o.free_bytes >= (1 - $max_other_ratio) * o.capacity_bytes
            THEN '; its own memory fills the device (' || format_bytes(o.process_bytes) || ' of '
                || format_bytes(o.capacity_bytes) || '): live or cached is not in the text'
        WHEN o.free_bytes < o.requested_bytes AND o.process_bytes IS NULL AND o.listed_other_bytes = 0
            THEN '; all but ' || format_bytes(o.free_bytes) || ' of ' || format_bytes(o.capacity_bytes)
                || ' is in use: whose it is, is not in the text'
        ELSE ''
    END AS told,
    'requested ' || format_bytes(o.requested_bytes) || ' against free ' || format_bytes(o.free_bytes) || '; device '
        || format_bytes(o.capacity_bytes) || ' = free ' || format_bytes(o.free_bytes) || coalesce(
            ' + this process ' || format_bytes(o.process_bytes)
                || ' + other processes ' || format_bytes(greatest(0, o.capacity_bytes - o.free_bytes - o.process_bytes)),
            ' + in use, by whom is not known, ' || format_bytes(greatest(0, o.capacity_bytes - o.free_bytes))
        ) AS arithmetic,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code
FROM log AS e
LEFT JOIN out_of_memory_text AS o ON o.artifact_id = e.artifact_id AND o.row = e.row
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.role = 'primary'
  AND coalesce(e.level, 'error') IN ('error', 'fatal', 'critical')
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
  AND (
      e.class IN ('mem.gpu.oom', 'mem.gpu.oom-driver')
      OR e.class = 'mem.gpu.oom-library' AND e.message LIKE '%ALLOC_FAILED%'
  )
  -- With figures, other rules judge what they mean.
  AND NOT EXISTS (SELECT 1 FROM out_of_memory_text AS t WHERE t.proc_id = e.proc_id AND t.allocated_bytes IS NOT NULL)
  -- A program that says afterwards that it completed went on.
  AND NOT EXISTS (
    SELECT 1 FROM log AS c
    WHERE c.proc_id = e.proc_id AND c.artifact_id = e.artifact_id AND c.row > e.row AND c.class = 'outcome.completed'
  )
  -- After an error of the context this one may be its echo.
  AND NOT EXISTS (
    SELECT 1 FROM log AS c
    WHERE c.proc_id = e.proc_id AND c.artifact_id = e.artifact_id AND c.row < e.row AND c.role = 'primary' AND c.class LIKE 'cuda.%'
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
