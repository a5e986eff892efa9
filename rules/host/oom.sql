/*
title = "The host or the job's memory limit ran out of memory"
severity = "critical"
scope = "job"
cannot_prove = """
What filled the memory: the process that is killed is the one with the largest share, not always the one that grew."""
message = "Host memory ran out: {what}"
fix = "Raise the memory limit of the job (--mem, limits.memory), or lower it per process: fewer DataLoader workers, a smaller prefetch factor, streamed instead of loaded data."
causes = [{ state = "host-full", of = "host" }]
requires = [{ state = "memory-retained", of = "process" }]
references = ["https://docs.kernel.org/admin-guide/cgroup-v2.html#memory"]

[variant.kernel]
needs = ["log_event.kernel"]
strength = "proof"
proves = "The kernel says that it killed a process for lack of host memory."

[variant.scheduler]
needs = ["log_event.scheduler"]
strength = "strong"
proves = "The scheduler or the container runtime says that a process was killed for lack of host memory."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The process, or what watched it, says that host memory ran out: an allocation was refused, or a process was killed for
it."""

[variant.usage]
needs = ["log_event", "sample"]
strength = "indication"
proves = "A process was killed with SIGKILL while the host's memory was nearly full."
says = "A process was killed with SIGKILL while the host's memory was nearly full; that the kernel did it for lack of memory is not in the evidence (dmesg would tell)."

[thresholds.min_host_ratio]
value = 0.9
unit = "host memory in use / host memory, largest sample"
measured = "host_ratio"
why = "samples are seconds to minutes apart: the peak before a kill is higher than the largest that was seen"
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
    briefly(e.message, 200) || CASE WHEN d.well AND p.id IS NULL THEN '; no process that the job is known to have, and the job ended well' ELSE '' END AS what,
    CASE WHEN d.well AND p.id IS NULL THEN 'info' END AS severity,
    e.signature AS key
FROM log AS e
CROSS JOIN ended_well AS d
LEFT JOIN proc AS p ON p.pid = CAST(e.fields ->> 'pid' AS BIGINT)
WHERE e.class = 'mem.host.oom'
  AND e.source = 'kernel'
  AND e.role <> 'noise'
  AND NOT EXISTS (SELECT 1 FROM foreign_kill AS o WHERE o.host IS NOT DISTINCT FROM e.host AND o.pid = e.fields ->> 'pid')
-- The kernel first says who asked for memory, then whom it killed: the latter is the one to name.
QUALIFY row_number() OVER (
    PARTITION BY e.host ORDER BY ((e.fields ->> 'pid') IS NULL), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
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
    briefly(e.message, 200) AS what,
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
    briefly(error_text(e.exception, e.message), 200) AS what,
    e.signature AS key
FROM log AS e
WHERE e.class = 'mem.host.oom'
  AND e.role = 'primary'
  AND NOT EXISTS (SELECT 1 FROM foreign_kill AS o WHERE o.host IS NOT DISTINCT FROM e.host AND o.pid = e.fields ->> 'pid')
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.host, e.rank ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: usage
WITH
usage AS (
    SELECT
        u.artifact_id,
        u.row,
        u.line,
        u.value / t.value AS host_ratio
    FROM metric AS u
    JOIN metric AS t ON t.artifact_id = u.artifact_id AND t.line = u.line
    WHERE u.source = 'host'
      AND t.source = 'host'
      AND regexp_matches(u.name, '(^|_|\.)(mem|memory|ram)(_|\.).*used')
      AND regexp_matches(t.name, '(^|_|\.)(mem|memory|ram)(_|\.).*total')
      AND t.value > 0
    QUALIFY row_number() OVER (ORDER BY u.value / t.value DESC, u.artifact_id, u.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    coalesce(e.rank, CAST(e.fields ->> 'rank' AS INTEGER), CAST(e.fields ->> 'local_rank' AS INTEGER)) AS rank,
    e.ts_ns,
    e.line,
    e.host,
    u.host_ratio,
    'process ' || coalesce(e.fields ->> 'pid', '') || ' was killed (SIGKILL) and memory had been ' || CAST(round(100 * u.host_ratio) AS INTEGER) || ' % full' AS what,
    [{'artifact_id': u.artifact_id, 'row': u.row, 'line': u.line, 'note': 'host memory in use'}] AS evidence,
    'killed' AS key
FROM log AS e
CROSS JOIN usage AS u
WHERE e.class IN ('process.signal', 'process.exit', 'data.worker-killed')
  AND e.role <> 'noise'
  AND ((e.fields ->> 'exit_code') IN ('-9', '137') OR e.signature = 'shell-killed' OR (e.fields ->> 'signal') IN ('Killed', 'SIGKILL', '9'))
  AND u.host_ratio >= $min_host_ratio
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
