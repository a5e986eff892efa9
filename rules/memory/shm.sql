/*
title = "Shared memory fills up with tensors passed between processes"
severity = "high"
scope = "job"
cannot_prove = """
Which queue or worker holds the segments: received tensors that are kept, batches that nobody takes, or segments that a
killed process left behind look the same. A container's limit on /dev/shm is host-shm."""
message = "Shared memory holds {shared_bytes:bytes}{told}"
fix = "Copy what is kept out of shared memory (tensor.clone()) as soon as it arrives, take every batch that workers make, lower prefetch_factor and num_workers, and end workers before the process that reads; segments that were left behind lie in /dev/shm as torch_*."
causes = [{ state = "host-full", of = "host" }, { state = "memory-retained", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-cuda-tensors"]

[thresholds.min_shared_ratio]
value = 0.5
unit = "shmem-rss / (anon-rss + file-rss + shmem-rss)"
why = "the batches in flight of a data loader are below a tenth of a process; from half on shared memory is what it was killed for"

[thresholds.min_growth]
value = 0.5
unit = "growth over the samples / bytes at their start"
why = "as for resident memory in memory-leak"

[variant.killed]
needs = ["log_event.kernel|log_event"]
strength = "strong"
proves = """
Most of the memory of a process that was killed for lack of it was shared memory (shmem-rss), which holds tensors on
their way between processes."""

[variant.series]
needs = ["sample"]
strength = "indication"
proves = "Sampled shared memory rises as a staircase."
says = "From sampled totals: what lies in shared memory is not in them."
*/
-- variant: killed
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT) AS shared_bytes,
    ' of ' || coalesce(e.fields ->> 'process', 'the process') || coalesce(' (pid ' || (e.fields ->> 'pid') || ')', '')
        || ', which was killed for lack of memory with ' || format_bytes(CAST(e.fields ->> 'anon_rss_bytes' AS BIGINT))
        || ' of its own' AS told,
    'killed' AS key
FROM log AS e
WHERE e.class = 'mem.host.oom'
  AND e.role <> 'noise'
  AND (e.fields ->> 'shmem_rss_bytes') IS NOT NULL
  AND (e.fields ->> 'anon_rss_bytes') IS NOT NULL
  AND CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT) > 0
  -- Locked memory counts as shared as well: memory-host-pinned tells of it.
  AND NOT EXISTS (SELECT 1 FROM host_pinning)
  AND CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT) >= $min_shared_ratio * (
      CAST(e.fields ->> 'anon_rss_bytes' AS BIGINT) + coalesce(CAST(e.fields ->> 'file_rss_bytes' AS BIGINT), 0)
      + CAST(e.fields ->> 'shmem_rss_bytes' AS BIGINT)
  )
QUALIFY row_number() OVER (PARTITION BY e.host, e.fields ->> 'pid' ORDER BY e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: series
SELECT
    t.artifact_id,
    t.row,
    t.proc_id,
    t.rank,
    t.step,
    t.ts_ns,
    t.line,
    CAST(t.last_bytes AS BIGINT) AS shared_bytes,
    ': ' || t.name || ' rose from ' || format_bytes(CAST(t.first_bytes AS BIGINT)) || ', by ' || format_bytes(CAST(t.slope_bytes AS BIGINT))
        || CASE WHEN t.has_steps THEN ' a step' ELSE ' a sample' END AS told,
    t.slope_bytes,
    t.slope_low_bytes,
    t.slope_high_bytes,
    [] AS causes,
    'series' AS key
FROM memory_trend AS t
WHERE t.quantity = 'shared'
  AND t.is_rising
  AND t.last_bytes - t.first_bytes >= $min_growth * t.first_bytes
ORDER BY t.ts_ns, t.artifact_id, t.row, t.name;
