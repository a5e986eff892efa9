"""The earliest sign that something was wrong, over all processes and sources, known to a rule or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import duckdb

from forensics.citations import Citations
from forensics.finding import Anomaly, Moment

_MAX_ANOMALIES = 200
_MAX_TIED = 3
_MAX_NAMES = 100  # that are looked for in all texts of the job
_PROGRAMS = "python|pt_|torch|ray|vllm|sglang|trt|triton|deepspeed|accelerate|mpi|orte|prte"  # what jobs run as
_LEAD_NS = 60 * 10**9  # a job's first line comes seconds after its processes take their devices

# Lines of kernels and drivers that tell of another job or time: their logs hold all that happened to a host.
# A process is another's by its name only, as a container numbers processes anew and helpers of the job tell no number;
# what anything else among the evidence names belongs to the job.
_FOREIGN = rf"""
WITH
told AS (
    SELECT e.artifact_id, e.proc_id, e.ts_ns, a.timeline, coalesce(a.clock_error_ns, 0) AS error_ns,
        e.class = 'outcome.completed' OR (e.class = 'outcome.exit' AND e.fields ->> 'exit_code' = '0') AS is_end
    FROM log AS e JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.source NOT IN ('kernel', 'driver', 'host', 'slurm', 'kubernetes', 'lsf', 'scheduler')
    UNION ALL
    SELECT s.artifact_id, s.proc_id, s.ts_ns, a.timeline, coalesce(a.clock_error_ns, 0), false
    FROM sample AS s JOIN artifact AS a ON a.id = s.artifact_id WHERE s.source IN ('metrics', 'log')
),
span AS (
    SELECT timeline, min(ts_ns) AS start_ns, max(ts_ns) FILTER (WHERE is_end) AS completed_ns, max(error_ns) AS error_ns
    FROM told WHERE ts_ns IS NOT NULL AND timeline IS NOT NULL GROUP BY timeline
),
machine AS (
    SELECT DISTINCT lower(split_part(p.host, '.', 1)) AS name
    FROM told AS t JOIN proc AS p ON p.id = t.proc_id WHERE p.host IS NOT NULL
),
word AS (
    SELECT message AS text FROM log WHERE source NOT IN ('kernel', 'driver') AND message IS NOT NULL
    UNION ALL SELECT value FROM fact WHERE scope <> 'note'
),
line AS (
    SELECT e.artifact_id, e.row, e.ts_ns, a.timeline, coalesce(a.clock_error_ns, 0) AS error_ns,
        lower(split_part(e.host, '.', 1)) AS host, e.fields ->> 'process' AS process, e.fields ->> 'pid' AS pid
    FROM log AS e JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.source IN ('kernel', 'driver') AND e.role <> 'noise'
),
other_host AS (
    SELECT h.host FROM (SELECT DISTINCT host FROM line ORDER BY host LIMIT {_MAX_NAMES}) AS h
    WHERE EXISTS (SELECT 1 FROM machine)
      AND h.host NOT IN (SELECT name FROM machine)
      AND NOT EXISTS (SELECT 1 FROM word WHERE contains(lower(text), h.host))
      AND NOT EXISTS (SELECT 1 FROM fact WHERE regexp_matches(key, '(?i)node_?list|host_?file|hosts'))
),
other_process AS (
    SELECT n.process FROM (SELECT DISTINCT process FROM line ORDER BY process LIMIT {_MAX_NAMES}) AS n
    WHERE EXISTS (SELECT 1 FROM told)
      AND NOT regexp_matches(n.process, '(?i)^({_PROGRAMS})')
      AND NOT EXISTS (SELECT 1 FROM word WHERE contains(text, n.process))
)
SELECT l.artifact_id, l.row
FROM line AS l LEFT JOIN span AS s ON s.timeline = l.timeline
WHERE l.ts_ns < s.start_ns - {_LEAD_NS} - s.error_ns - l.error_ns
   OR l.ts_ns > s.completed_ns + s.error_ns + l.error_ns
   OR l.host IN (SELECT host FROM other_host)
   OR (
       l.process IN (SELECT process FROM other_process)
       AND NOT EXISTS (SELECT 1 FROM proc AS p WHERE CAST(p.pid AS VARCHAR) = l.pid)
   )
"""


def earliest_anomaly(con: duckdb.DuckDBPyConnection, citations: Citations) -> Anomaly | None:
    """The first error or non-finite value over all processes, known to a rule or not.

    Others of which the clocks cannot say that they came later are named with it, one of each process.
    """
    rows = con.execute(
        f"""
        SELECT c.message, c.rank, c.ts_ns, c.artifact_id, c.line, c.byte, c.weak, c.proc_id,
            a.timeline, a.clock_error_ns, p.host, u.function || ' (' || u.file || ':' || u.line || ')', c.row
        FROM (
            SELECT error_text(exception, message) AS message,
                rank, ts_ns, artifact_id, line, byte,
                CASE WHEN role = 'evidence' THEN 1 ELSE 0 END AS weak, proc_id, stack_id, NULL AS row
            FROM log
            WHERE (role IN ('primary', 'symptom', 'secondary') OR class IN ('line.error', 'env.command'))
              AND coalesce(class, '') NOT LIKE 'outcome.%' AND coalesce(fields ->> 'handled', 'false') <> 'true'
              AND (artifact_id, row) NOT IN ({_FOREIGN})
            UNION ALL
            SELECT name || ' is ' || value, rank, ts_ns, artifact_id, line, NULL, 0, proc_id, NULL, NULL
            FROM metric WHERE name IN ('loss', 'grad_norm') AND NOT isfinite(value)
            UNION ALL
            -- The allocator's own record: whether the job caught the exception is not in it.
            SELECT 'device ' || device || ' ran out of memory: ' || size_bytes || ' bytes were asked for',
                rank, ts_ns, artifact_id, NULL, NULL, 0, proc_id, stack_id, row
            FROM memory_event WHERE action = 'oom'
        ) AS c
        JOIN artifact AS a ON a.id = c.artifact_id
        LEFT JOIN proc AS p ON p.id = c.proc_id
        LEFT JOIN frame AS k ON k.id = c.stack_id
        LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
        -- One of each process and file: within a file the first is the first.
        QUALIFY row_number() OVER (
            PARTITION BY c.artifact_id, c.proc_id ORDER BY c.weak, c.ts_ns NULLS LAST, c.line
        ) = 1
        ORDER BY c.weak, a.timeline IS NULL, a.timeline = 'epoch' DESC, a.timeline = 'wall' DESC, a.timeline,
            c.ts_ns NULLS LAST, c.artifact_id, c.line
        LIMIT ?
        """,
        [_MAX_ANOMALIES],
    ).fetchall()
    if not rows:
        return None
    first, tied = rows[0], [row for row in rows[1:] if row[6] == rows[0][6] and _may_be_as_early(row, rows[0])]
    named = [_anomaly(row, citations) for row in (first, *tied[:_MAX_TIED])]
    found = [anomaly for anomaly in named if anomaly is not None]
    return replace(found[0], not_told_apart=tuple(found[1:])) if found and named[0] is not None else None


def _may_be_as_early(row: Sequence[Any], first: Sequence[Any]) -> bool:
    """Whether the clocks leave open which came first. What another rank says in the same file is in order there."""
    if row[2] is None or first[2] is None or row[7] == first[7]:
        return False
    if row[3] == first[3] and (row[10] is None or row[10] == first[10]):
        return False
    return not Moment(row[2], row[8], row[9]).is_after(Moment(first[2], first[8], first[9]))


def _anomaly(row: Sequence[Any], citations: Citations) -> Anomaly | None:
    place = {"artifact_id": row[3], "line": row[4], "byte": row[5], "row": row[12]}
    evidence = citations.cite({key: value for key, value in place.items() if key != "row" or value is not None})
    where = f", in {row[11]}" if row[11] else ""
    return Anomaly(" ".join(str(row[0]).split())[:300] + where, row[1], row[2], evidence) if evidence else None
