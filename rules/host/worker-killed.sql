/*
title = "A process of the job was ended from outside or crashed"
severity = "high"
cannot_prove = """
Who sent the signal, and why. SIGKILL is mostly the kernel's answer to full memory, but operators and schedulers send it
too; only a kernel log tells. SIGSEGV and SIGABRT are the process's own crash."""
message = "{who}: {what}{detail}"
fix = "{remedy}"
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "host-full", of = "host" }, { state = "shm-full", of = "host" }, { state = "job-stopped", of = "job" }, { state = "disk-full", of = "host" }]
references = ["https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading"]

[variant.worker]
needs = ["log_event"]
strength = "strong"
proves = "A DataLoader worker ended by a signal, or without a word, as the loader that watched it says."
says = "The loader saw its worker end; what ended it is not in the evidence."

[variant.process]
needs = ["log_event"]
strength = "indication"
proves = "A process that a launcher or shell watched was ended by a signal."
says = "A launcher or shell reports the end of a process by a signal; the process itself says nothing."
*/
-- variant: worker
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.where_in_code,
    'DataLoader worker ' || coalesce('(pid ' || (e.fields ->> 'pids') || ') ', '')
        || coalesce('was ended by the signal ' || (e.fields ->> 'signal'), 'ended without a word') AS what,
    CASE
        WHEN (e.fields ->> 'signal') LIKE 'Killed%' THEN '; memory is the usual reason, and only the kernel log could show it'
        ELSE ''
    END AS detail,
    CASE
        WHEN (e.fields ->> 'signal') LIKE 'Killed%' THEN 'Look into dmesg for an OOM kill of that pid; lower num_workers or prefetch_factor, raise the memory limit, and watch the memory of the workers.'
        WHEN regexp_matches(coalesce(e.fields ->> 'signal', ''), 'Segmentation|Illegal|Floating|Abort') THEN 'Run the data set in the main process (num_workers=0) with python -X faulthandler to see where it crashes; native decoders and libraries that were started before the fork are the usual places.'
        ELSE 'Run with num_workers=0 to see the error of the worker itself, and look into dmesg and the scheduler''s messages for who ended it.'
    END AS remedy,
    -- These are sent by people, launchers and schedulers that end the whole job.
    CASE WHEN regexp_matches(coalesce(e.fields ->> 'signal', ''), 'Terminated|Interrupt|Hangup|User defined') THEN 'symptom' END AS role,
    CASE WHEN (e.fields ->> 'signal') IS NULL THEN 'indication' END AS strength,
    coalesce(e.fields ->> 'signal', 'unexpected') AS key
FROM reported_failure AS e
WHERE e.class = 'data.worker-killed'
  AND e.role = 'primary'
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id, e.attempt ORDER BY ((e.fields ->> 'signal') IS NULL), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: process
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    coalesce(e.rank, CAST(e.fields ->> 'rank' AS INTEGER), CAST(e.fields ->> 'local_rank' AS INTEGER)) AS rank,
    e.step,
    e.ts_ns,
    e.line,
    'a process ' || coalesce('(pid ' || (e.fields ->> 'pid') || ') ', '') || 'was ended by a signal: ' || e.said AS what,
    '' AS detail,
    'Look into dmesg for an OOM kill or a segfault of that pid, and into the scheduler''s messages.' AS remedy,
    'symptom' AS role,
    coalesce(e.fields ->> 'exit_code', e.fields ->> 'signal', e.signature) AS key
FROM reported_failure AS e
WHERE e.class = 'process.signal'
  AND e.role = 'primary'
  -- A watchdog that gives up a collective aborts its own process.
  AND NOT (
    (coalesce(e.fields ->> 'exit_code', '') IN ('-6', '134') OR contains(e.said, 'SIGABRT'))
    AND EXISTS (
        SELECT 1 FROM log AS o
        WHERE o.proc_id = e.proc_id AND o.class IN ('comm.timeout', 'comm.heartbeat') AND o.role NOT IN ('noise', 'evidence')
    )
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
