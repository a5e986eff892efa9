/*
title = "The device had no memory left for an allocation"
severity = "critical"
role = "symptom"
proves = """
A program says that an allocation on the device was refused for lack of memory, and it did not go on."""
cannot_prove = """
Why: neither how much was asked for and held, nor by whom, is in the text. A model too large, a leak, fragmentation and
another process all end in these words."""
message = "{who} was refused memory on the device{at_step}: {said}"
fix = "Log the exception itself (str(error) has the figures of PyTorch's allocator) with its traceback, record a memory snapshot when it is raised (torch.cuda.memory._record_memory_history), and keep nvidia-smi's output of that moment."
requires = [{ state = "device-full", of = "device" }, { state = "memory-retained", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"]

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
    left(split_part(e.message, chr(10), 1), 200) AS said,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code
FROM log AS e
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
  AND NOT EXISTS (SELECT 1 FROM out_of_memory_text AS o WHERE o.proc_id = e.proc_id AND o.allocated_bytes IS NOT NULL)
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
