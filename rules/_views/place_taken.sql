-- What schedulers, platforms and launchers say of a job that they stop, the first word of each host. A row is one word.
-- is_signal: only a signal or a cancellation without a reason. Signals have many senders: a launcher that tears its
-- workers down, an operator, a limit; people cancel jobs that hang.
CREATE TEMP VIEW place_taken AS
WITH
said AS (
    SELECT
        e.*,
        coalesce(e.fields ->> 'host', e.host) AS on_host,
        e.class = 'sched.cancel' OR e.signature IN ('torchrun-agent-signal', 'torchrun-death-signal') AS is_signal
    FROM log AS e
    WHERE e.class IN ('sched.preempt', 'sched.evicted', 'sched.node-failure', 'sched.cancel')
      AND e.role = 'primary'
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
      -- An autoscaler that gives idle nodes back takes nothing from the job.
      AND NOT regexp_matches(lower(coalesce(e.fields ->> 'reason', '')), 'idle|scale.?down|outdated|removed by user')
)
SELECT
    s.artifact_id,
    s.row,
    s.proc_id,
    s.ts_ns,
    s.line,
    s.on_host AS host,
    CASE
        WHEN s.class = 'sched.cancel' THEN 'The job was cancelled'
        WHEN s.is_signal THEN 'The launcher was told to stop'
        WHEN s.class = 'sched.node-failure' THEN 'The node of the job failed or left'
        WHEN s.class = 'sched.evicted' THEN 'The pod was evicted'
        ELSE 'The job was preempted'
    END AS what,
    coalesce(' on ' || s.on_host, '') AS host_text,
    left(s.message, 200) AS said,
    CASE
        WHEN s.is_signal THEN 'symptom'
        -- Eviction for lack of memory or disk follows from that lack.
        WHEN s.class = 'sched.evicted' AND regexp_matches(coalesce(s.fields ->> 'resource', ''), 'memory|storage|inodes|disk') THEN 'symptom'
    END AS role,
    CASE WHEN s.is_signal THEN 'high' END AS severity,
    s.is_signal,
    s.signature AS key
FROM said AS s
QUALIFY row_number() OVER (
    PARTITION BY s.on_host, s.is_signal
    ORDER BY (s.class = 'sched.evicted' AND (s.fields ->> 'resource') IS NOT NULL), s.ts_ns NULLS LAST, s.artifact_id, s.row
) = 1;
