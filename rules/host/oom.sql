/*
title = "The host or the job's memory limit ran out of memory"
severity = "critical"
scope = "job"
proves = """
The kernel, the scheduler or the container runtime says that it killed a process for lack of host memory, or an
allocation in host memory was refused."""
cannot_prove = """
What filled the memory: the process that is killed is the one with the largest share, not always the one that grew."""
message = "Host memory ran out: {what}"
fix = "Raise the memory limit of the job (--mem, limits.memory), or lower it per process: fewer DataLoader workers, a smaller prefetch factor, streamed instead of loaded data."
causes = [{ state = "host-full", of = "host" }]
references = ["https://docs.kernel.org/admin-guide/cgroup-v2.html#memory"]

[variant.kernel]
needs = ["log_event.kernel"]
strength = "proof"

[variant.scheduler]
needs = ["log_event.scheduler"]
strength = "strong"

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: kernel
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    coalesce(e.rank, p.rank) AS rank,
    e.ts_ns,
    e.line,
    e.host,
    e.fields ->> 'pid' AS victim_pid,
    left(e.message, 200) AS what,
    e.signature AS key
FROM log AS e
LEFT JOIN proc AS p ON p.pid = CAST(e.fields ->> 'pid' AS BIGINT)
WHERE e.class = 'mem.host.oom'
  AND e.source = 'kernel'
  AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: scheduler
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.host,
    left(e.message, 200) AS what,
    e.signature AS key
FROM log AS e
WHERE e.class = 'mem.host.oom'
  AND e.source IN ('slurm', 'kubernetes', 'lsf')
  AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.host,
    left(coalesce(e.exception || ': ', '') || e.message, 200) AS what,
    e.signature AS key
FROM log AS e
WHERE e.class = 'mem.host.oom'
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.host, e.rank ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
