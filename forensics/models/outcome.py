"""How each process, and each attempt as a whole, ended: completion and failure evidence in one table.

Reads log_event, fact, proc; writes outcome. Exit codes are proof, statements of the scheduler strong, the job's own
closing words strong (what it prints after its last step), everything else an indication. That somebody cancelled a job
does not say that it failed.
"""

from __future__ import annotations

import duckdb

# What speaks of the job as a whole speaks of its last attempt.
_OUTCOME = """
INSERT INTO outcome
WITH last AS (SELECT coalesce(max(attempt), 0) AS attempt FROM proc)
SELECT proc_id, attempt, result, strength, artifact_id, line, ts_ns, detail
FROM (
    SELECT p.id AS proc_id, p.attempt, CASE WHEN p.exit_code = 0 THEN 'completed' ELSE 'failed' END AS result,
        'proof' AS strength, NULL AS artifact_id, NULL AS line, p.end_ns AS ts_ns, 'exit code ' || p.exit_code AS detail
    FROM proc AS p
    WHERE p.exit_code IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM fact AS f WHERE f.key = 'exit_code' AND f.number IS NOT NULL)
    UNION ALL
    SELECT f.proc_id, coalesce(p.attempt, (SELECT attempt FROM last)),
        CASE WHEN f.number = 0 THEN 'completed' ELSE 'failed' END,
        'proof', f.artifact_id, f.line, NULL, 'exit code ' || CAST(f.number AS BIGINT)
    FROM fact AS f LEFT JOIN proc AS p ON p.id = f.proc_id
    WHERE f.key = 'exit_code' AND f.number IS NOT NULL
    UNION ALL
    SELECT e.proc_id, coalesce(e.attempt, (SELECT attempt FROM last)), 'completed', 'strong', e.artifact_id, e.line,
        e.ts_ns, briefly(e.message, 200)
    FROM log AS e
    WHERE e.class = 'outcome.completed' AND e.role <> 'noise'
    UNION ALL
    SELECT e.proc_id, coalesce(e.attempt, (SELECT attempt FROM last)),
        CASE WHEN (e.fields ->> 'exit_code') = '0' THEN 'completed' ELSE 'failed' END,
        'proof', e.artifact_id, e.line, e.ts_ns, 'exit code ' || (e.fields ->> 'exit_code')
    FROM log AS e
    WHERE e.role <> 'noise' AND e.class = 'outcome.exit' AND (e.fields ->> 'exit_code') IS NOT NULL
    UNION ALL
    SELECT e.proc_id, coalesce(e.attempt, (SELECT attempt FROM last)), 'failed',
        CASE WHEN e.source IN ('torchrun', 'mpi', 'slurm', 'kubernetes', 'kernel') THEN 'strong' ELSE 'indication' END,
        e.artifact_id, e.line, e.ts_ns, error_text(e.exception, briefly(e.message, 200))
    FROM log AS e
    WHERE e.role IN ('primary', 'symptom', 'secondary')
      AND (e.exception IS NOT NULL OR e.level = 'fatal' OR e.class LIKE 'sched.%' OR e.source = 'torchrun')
      AND e.class <> 'sched.cancel'
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
)
ORDER BY attempt, proc_id, ts_ns, artifact_id, line, result, detail
"""


def derive_outcome(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(_OUTCOME)
    con.execute(
        "INSERT INTO coverage"
        " SELECT DISTINCT coalesce(artifact_id, 0), proc_id, 'outcome', NULL::BIGINT, NULL::BIGINT, true, 1, 1"
        " FROM outcome ORDER BY ALL"
    )
