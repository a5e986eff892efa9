/*
title = "The serving engine died of an error of its worker"
severity = "critical"
scope = "job"
proves = """
The wrapper says that the engine is dead, and this is the first error of any process of the engine that is on record before or
under it."""
cannot_prove = """
Why that error came about, beyond what it says itself; and what the worker met before logging began."""
message = "The engine died of {first_error}{where_told}; {wrapper} only reports it{felt}"
fix = "Start with this error and the frames below it; what comes after (EngineDeadError, 'Worker failed with error', failed requests) is its echo. Restart the engine: a dead one takes no requests."
causes = [{ state = "rank-gone", of = "rank" }]
requires = [
    { state = "rank-failed", of = "rank" }, { state = "device-full", of = "device" }, { state = "context-poisoned", of = "process" },
    { state = "capture-broken", of = "process" }, { state = "host-full", of = "host" }, { state = "rank-stalled", of = "rank" },
    { state = "device-lost", of = "device" }, { state = "job-stopped", of = "job" },
]
references = ["https://docs.vllm.ai/en/latest/usage/troubleshooting.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
wrapper AS (
    SELECT *
    FROM log
    WHERE class IN ('serving.engine-dead', 'serving.worker-died')
      AND role IN ('secondary', 'primary')
      AND coalesce(fields ->> 'handled', 'false') <> 'true'
),
dead AS (
    SELECT
        count(*) AS n_said,
        min(ts_ns) AS first_ns,
        max(ts_ns) AS last_ns,
        arg_min(split_part(message, chr(10), 1), (artifact_id, row)) AS said
    FROM wrapper
),
failure AS (
    -- An error of the engine that is none of the wrapper's words, on the lines of the wrapper or before its last one.
    SELECT
        e.*,
        u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
        e.role = 'primary' OR e.exception IS NOT NULL AS is_own
    FROM log AS e
    LEFT JOIN frame AS k ON k.id = e.stack_id
    LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE (e.role = 'primary' OR (e.exception IS NOT NULL AND e.role IN ('evidence', 'secondary', 'performance')))
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
      AND coalesce(e.class, '') NOT IN ('serving.engine-dead', 'serving.worker-died', 'serving.hang', 'serving.request', 'serving.request-failed')
      AND coalesce(e.exception, '') NOT LIKE '%Warning'
      AND coalesce(e.exception, '') NOT LIKE '%CancelledError'
      AND NOT EXISTS (SELECT 1 FROM wrapper AS w WHERE w.artifact_id = e.artifact_id AND w.line = e.line)
      AND EXISTS (
          SELECT 1 FROM wrapper AS w
          WHERE (w.artifact_id = e.artifact_id AND e.line <= w.line + 400) OR (w.artifact_id <> e.artifact_id AND coalesce(e.ts_ns <= w.ts_ns + 60e9, true))
      )
),
origin AS (
    SELECT *
    FROM failure
    QUALIFY row_number() OVER (ORDER BY role <> 'primary', ts_ns NULLS LAST, artifact_id, line, row) = 1
),
probe AS (
    -- Answers of health probes that were no longer well, and requests that the server answered with an error.
    SELECT
        (SELECT count(*) FROM metric WHERE name = 'health' AND source = 'gauge' AND value = 0) AS n_ill,
        (SELECT count(*) FROM log WHERE class = 'serving.request-failed' AND role <> 'noise') AS n_failed
),
place AS (
    SELECT artifact_id, row, line, proc_id, rank, ts_ns FROM wrapper
    QUALIFY row_number() OVER (ORDER BY ts_ns NULLS LAST, artifact_id, line, row) = 1
)
SELECT
    coalesce(o.artifact_id, p.artifact_id) AS artifact_id,
    coalesce(o.row, p.row) AS row,
    coalesce(o.line, p.line) AS line,
    coalesce(o.proc_id, p.proc_id) AS proc_id,
    coalesce(o.rank, p.rank) AS rank,
    coalesce(o.ts_ns, p.ts_ns) AS ts_ns,
    CASE WHEN o.row IS NULL THEN 'symptom' ELSE 'cause' END AS role,
    CASE WHEN o.row IS NULL THEN 'something that is not on record' ELSE briefly(error_text(o.exception, split_part(o.message, chr(10), 1)), 240) END AS first_error,
    coalesce(' at ' || o.where_in_code, '') || coalesce(' in ' || (o.fields ->> 'actor'), '') AS where_told,
    '"' || briefly(d.said, 100) || '"' AS wrapper,
    CASE WHEN b.n_failed > 0 THEN '; ' || b.n_failed || ' requests were answered with an error' ELSE '' END
    || CASE WHEN b.n_ill > 0 THEN '; ' || b.n_ill || ' health probes failed' ELSE '' END AS felt,
    o.where_in_code,
    coalesce(o.exception, o.signature, 'engine') AS key,
    [{'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'the wrapper: ' || d.n_said || ' times'}] AS evidence
FROM place AS p
CROSS JOIN dead AS d
CROSS JOIN probe AS b
LEFT JOIN origin AS o ON true
-- While a program ends, its server process may see the engine go before it: no error, and the job was done.
WHERE o.row IS NOT NULL OR NOT EXISTS (SELECT 1 FROM outcome AS c WHERE c.result = 'completed' AND c.strength <> 'indication')
ORDER BY artifact_id, row;
