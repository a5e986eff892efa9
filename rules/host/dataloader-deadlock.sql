/*
title = "A data loader's worker waits for a lock that nobody will release"
severity = "critical"
scope = "job"
cannot_prove = """
Who holds the lock. A worker that was forked has a copy of every lock as it was, but of the threads only the one that
forked: what another thread held (OpenMP pools of OpenCV or MKL, loggers, a lock of the data set) stays locked in it."""
message = "{who} waits for a batch {of_whom}: {said}{detail}"
fix = "Start workers without a copy of the parent's locks: DataLoader(..., multiprocessing_context='spawn') or 'forkserver'; or start no threads before the loader (cv2.setNumThreads(0), OMP_NUM_THREADS=1), and open files, loggers and clients inside the worker (worker_init_fn)."
causes = [{ state = "input-stalled", of = "rank" }]
references = [
  "https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading",
  "https://docs.python.org/3/library/multiprocessing.html#contexts-and-start-methods",
]

[variant.wait-cycle]
needs = ["thread_state"]
strength = "strong"
proves = """
Dumps of the same time show the main process waiting for a batch of its workers, and a worker whose main thread waits
for a lock (futex) inside the loop that makes batches: no batch will come while it stands there."""

[variant.interrupted]
needs = ["log_event"]
strength = "indication"
proves = "The main process was waiting for its first batch of its workers when somebody ended it."
says = "Somebody ended the process while it waited for its first batch; dumps of the workers (py-spy dump --pid, strace -f) would show what they wait for. Slow workers look the same."
*/
-- variant: wait-cycle
WITH
parent AS (
    SELECT *
    FROM thread_state
    WHERE wait_on LIKE 'DataLoader.batch%'
    QUALIFY row_number() OVER (ORDER BY (proc_id IS NULL), artifact_id, row) = 1
)
SELECT
    p.artifact_id,
    p.row,
    'thread_state' AS "table",
    p.proc_id,
    p.rank,
    l.ts_ns,
    'of its worker (pid ' || l.pid || ')' AS of_whom,
    'the worker waits for the lock at ' || split_part(l.wait_on, ' ', 1) AS said,
    coalesce(' in ' || l.place, '') || CASE WHEN count(*) OVER () > 1 THEN '; ' || (count(*) OVER ()) || ' dumps show such a wait' ELSE '' END AS detail,
    l.place AS where_in_code,
    l.place AS op,
    list_filter([
        { 'artifact_id': l.artifact_id, 'row': l.row, 'table': 'thread_state', 'note': 'the worker''s main thread waits for a lock' },
        { 'artifact_id': l.place_artifact_id, 'row': l.place_row, 'table': 'thread_state', 'note': 'where the worker is in the code' }
    ], LAMBDA e: e.artifact_id IS NOT NULL) AS evidence,
    'locked-worker' AS key
FROM parent AS p
CROSS JOIN locked_worker AS l
WHERE l.proc_id IS DISTINCT FROM p.proc_id
QUALIFY row_number() OVER (ORDER BY l.artifact_id, l.row) = 1
ORDER BY p.artifact_id, p.row;
-- variant: interrupted
WITH
finished AS (
    SELECT * FROM log WHERE class = 'outcome.completed' AND role <> 'noise'
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    'of its workers' AS of_whom,
    'it had made no step when somebody interrupted it in ' || (e.fields ->> 'code') AS said,
    CASE WHEN count(f.artifact_id) > 0 THEN '; other runs went to their end (' || count(f.artifact_id) || ')' ELSE '' END AS detail,
    max(u.function || ' (' || u.file || ':' || u.line || ')') AS where_in_code,
    'high' AS severity,
    'interrupted' AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
LEFT JOIN finished AS f ON f.artifact_id <> e.artifact_id
WHERE e.signature = 'interrupted-by-user'
  AND (e.fields ->> 'code') LIKE '%\_data\_queue.get(%' ESCAPE '\'
  AND NOT EXISTS (SELECT 1 FROM metric AS m WHERE m.proc_id = e.proc_id AND m.step IS NOT NULL)
  AND NOT EXISTS (SELECT 1 FROM finished AS o WHERE o.artifact_id = e.artifact_id)
GROUP BY e.artifact_id, e.row, e.proc_id, e.rank, e.ts_ns, e.line, e.fields
ORDER BY e.ts_ns, e.artifact_id, e.row;
