/*
title = "Shared memory is exhausted"
severity = "critical"
scope = "job"
cannot_prove = """
What filled it: the container's limit may be too small, or segments of earlier processes were left behind. SIGBUS has
other causes as well (a mapped file that was cut short)."""
message = "{who} ran out of shared memory: {said}{detail}"
fix = "Give the container more: docker run --shm-size=16g or --ipc=host, in Kubernetes an emptyDir of medium Memory at /dev/shm; or use fewer DataLoader workers, a smaller prefetch factor, torch.multiprocessing.set_sharing_strategy('file_system')."
causes = [{ state = "shm-full", of = "host" }]
references = [
  "https://docs.pytorch.org/docs/stable/multiprocessing.html#sharing-strategies",
  "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#shared-memory",
]

[thresholds.min_used_percent]
value = 80
unit = "% of /dev/shm in use, from df"
why = "the batches in flight of one more worker need a fifth of the usual limit; df is taken after the peak, when dead workers have already given some back"

[variant.refused]
needs = ["log_event"]
strength = "strong"
proves = "A process could not create, extend or map a segment in /dev/shm."

[variant.bus-error]
needs = ["log_event"]
strength = "indication"
proves = "A DataLoader worker died of SIGBUS, which is how a write to a segment without room ends."
says = "The operating system killed a worker for an access to memory that is not there; that it lay in /dev/shm is the usual case, not shown."

[variant.usage]
needs = ["log_event"]
strength = "indication"
proves = "/dev/shm is nearly full while worker processes are dead."
says = "No process reported an error; /dev/shm was nearly full after worker processes had died without a word."
*/
-- variant: refused
WITH
limit_given AS (
    SELECT
        max(value) FILTER (WHERE lower(key) IN ('shm-size', 'shm_size')) AS size,
        bool_or(scope = 'command' AND value LIKE '%docker run %') AS is_docker,
        bool_or(lower(key) = 'ipc' OR value LIKE '%--ipc%') AS shares_ipc
    FROM fact
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    CAST(e.fields ->> 'requested_bytes' AS BIGINT) AS requested_bytes,
    CASE
        WHEN l.size IS NOT NULL THEN '; the container was given --shm-size=' || l.size
        WHEN l.is_docker AND NOT coalesce(l.shares_ipc, FALSE)
            THEN '; the container was started without --shm-size, so it has 64 MB'
        ELSE ''
    END AS detail,
    e.signature AS key
FROM reported_failure AS e
CROSS JOIN limit_given AS l
WHERE e.class = 'mem.shm'
  AND e.role = 'primary'
  -- The manager process of the file_system strategy fails for other reasons too.
  AND e.signature <> 'shm-manager-failed'
  AND NOT regexp_matches(e.message, '(?i)bus error')
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: bus-error
WITH
limit_given AS (
    SELECT
        max(value) FILTER (WHERE lower(key) IN ('shm-size', 'shm_size')) AS size,
        bool_or(scope = 'command' AND value LIKE '%docker run %') AS is_docker,
        bool_or(lower(key) = 'ipc' OR value LIKE '%--ipc%') AS shares_ipc
    FROM fact
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.host,
    e.said,
    e.where_in_code,
    CASE
        WHEN l.size IS NOT NULL THEN '; the container was given --shm-size=' || l.size
        WHEN l.is_docker AND NOT coalesce(l.shares_ipc, FALSE)
            THEN '; the container was started without --shm-size, so it has 64 MB'
        ELSE ''
    END AS detail,
    CASE WHEN l.size IS NOT NULL OR (l.is_docker AND NOT coalesce(l.shares_ipc, FALSE)) THEN 'strong' END AS strength,
    'bus-error' AS key
FROM reported_failure AS e
CROSS JOIN limit_given AS l
WHERE e.role = 'primary'
  AND (
      (e.class = 'mem.shm' AND regexp_matches(e.message, '(?i)bus error'))
      OR (e.class = 'data.worker-killed' AND regexp_matches(coalesce(e.fields ->> 'signal', ''), '(?i)bus error|SIGBUS'))
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: usage
WITH
dead AS (
    SELECT
        d.artifact_id,
        d.row,
        d.line,
        count(*) OVER () AS n_dead
    FROM log AS d
    WHERE d.signature = 'process-defunct' AND regexp_matches(coalesce(d.fields ->> 'process', ''), '^(python|pt_data_worker|pt_main)')
    QUALIFY row_number() OVER (ORDER BY d.artifact_id, d.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.host,
    '/dev/shm is ' || (e.fields ->> 'used_percent') || ' % full (' || (e.fields ->> 'used') || ' of ' || (e.fields ->> 'size') || ')' AS said,
    ' while ' || d.n_dead || ' python processes are dead' AS detail,
    [{'artifact_id': d.artifact_id, 'row': d.row, 'line': d.line, 'note': 'a process that ended without a word'}] AS evidence,
    'usage' AS key
FROM log AS e
CROSS JOIN dead AS d
WHERE e.class = 'mem.shm-usage'
  AND CAST(e.fields ->> 'used_percent' AS INTEGER) >= $min_used_percent
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY CAST(e.fields ->> 'used_percent' AS INTEGER) DESC, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
