"""Gives other artifacts of a job that was started again to the attempt that they tell of: by time, else by steps.

Reads attempt_told (artifacts of which the attempt is known) and the aligned clocks; moves rows of the others. An
artifact that lies between the last line of one life and the first of the next stays with the earlier one, since dumps
are written at a failure. Metrics without times are split where their steps fall back as often as the job was restarted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import duckdb

from forensics.case import case_columns
from forensics.models.attempts import process_of_attempt

# First time of each later life: by the logs that tell of the restart, on the timeline that most artifacts are on.
_STARTS = """
WITH
told AS (
    SELECT a.timeline, p.attempt, e.ts_ns
    FROM (
        SELECT artifact_id, proc_id, ts_ns FROM log_event UNION ALL SELECT artifact_id, proc_id, ts_ns FROM sample
    ) AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    JOIN proc AS p ON p.id = e.proc_id
    WHERE p.attempt_origin IS NOT NULL AND p.attempt_origin <> 'run' AND e.ts_ns IS NOT NULL AND a.timeline IS NOT NULL
)
SELECT timeline, attempt, min(ts_ns) FROM told GROUP BY timeline, attempt ORDER BY timeline, attempt
"""
# Artifacts of which nothing says the attempt, with their processes.
_UNTOLD = """
SELECT DISTINCT e.artifact_id, e.proc_id, a.timeline
FROM ({events}) AS e
JOIN artifact AS a ON a.id = e.artifact_id
WHERE e.proc_id IS NOT NULL AND a.id NOT IN (SELECT artifact_id FROM attempt_told)
ORDER BY ALL
"""
_FALLS = """
SELECT line FROM (
    SELECT line, step, lag(step) OVER (ORDER BY line, row) AS before
    FROM sample WHERE artifact_id = ? AND proc_id = ? AND step IS NOT NULL AND line IS NOT NULL
) WHERE step < before ORDER BY line
"""


def follow_attempts(con: duckdb.DuckDBPyConnection) -> None:
    attempts = [row[0] for row in con.execute("SELECT DISTINCT attempt FROM proc ORDER BY 1").fetchall()]
    if len(attempts) < 2 or con.execute("SELECT 1 FROM proc WHERE attempt_origin = 'run' LIMIT 1").fetchall():
        return
    starts: dict[str, list[tuple[int, int]]] = {}
    for timeline, attempt, first_ns in con.execute(_STARTS).fetchall():
        starts.setdefault(timeline, []).append((first_ns, attempt))
    timed = [t for t, columns in case_columns().items() if {"artifact_id", "proc_id", "ts_ns"} <= columns.keys()]
    tables = [t for t in timed if t != "outcome"]
    events = " UNION ".join(f"SELECT DISTINCT artifact_id, proc_id FROM {t}" for t in tables)
    for artifact_id, proc_id, timeline in con.execute(_UNTOLD.format(events=events)).fetchall():
        moments = sorted(starts.get(timeline, []))
        if len(moments) > 1 and moments == sorted(moments, key=lambda m: m[1]):
            _by_time(con, tables, artifact_id, proc_id, moments)
        elif len(falls := con.execute(_FALLS, [artifact_id, proc_id]).fetchall()) == len(attempts) - 1:
            _by_steps(con, artifact_id, proc_id, [row[0] for row in falls], attempts)


def _by_time(
    con: duckdb.DuckDBPyConnection,
    tables: Sequence[str],
    artifact_id: int,
    proc_id: int,
    moments: Sequence[tuple[int, int]],
) -> None:
    seen = " UNION ALL ".join(f"SELECT ts_ns FROM {t} WHERE artifact_id = ? AND proc_id = ?" for t in tables)
    span = f"SELECT min(ts_ns), max(ts_ns) FROM ({seen})"
    low, high = con.execute(span, [artifact_id, proc_id] * len(tables)).fetchall()[0]
    if low is None:
        return
    first, last = (max(0, bisect_right([m[0] for m in moments], ns) - 1) for ns in (low, high))
    if first == last:
        if moments[first][1] != _attempt(con, proc_id):
            give(con, artifact_id, proc_id, moments[first][1], "TRUE", [], whole=True)
        return
    for position in range(first, last + 1):
        end = moments[position + 1][0] if position < last else 2**62
        start = moments[position][0] if position > first else -(2**62)
        if moments[position][1] != _attempt(con, proc_id):
            give(con, artifact_id, proc_id, moments[position][1], "ts_ns >= ? AND ts_ns < ?", [start, end])


def _by_steps(
    con: duckdb.DuckDBPyConnection, artifact_id: int, proc_id: int, falls: Sequence[int], attempts: Sequence[int]
) -> None:
    for number, line in enumerate(falls):
        end = falls[number + 1] if number + 1 < len(falls) else 2**62
        give(con, artifact_id, proc_id, attempts[number + 1], "line >= ? AND line < ?", [line, end], tables=("sample",))


def _attempt(con: duckdb.DuckDBPyConnection, proc_id: int) -> int:
    found: int = con.execute("SELECT attempt FROM proc WHERE id = ?", [proc_id]).fetchall()[0][0]
    return found


def give(
    con: duckdb.DuckDBPyConnection, artifact_id: int, proc_id: int, attempt: int, where: str, values: list[int],
    *, whole: bool = False, tables: Sequence[str] = ("log_event", "sample", "slice", "thread_state"),
) -> None:  # fmt: skip
    """Moves rows of a process to that of another attempt. `whole`: all that the artifact says of it."""
    new = process_of_attempt(con, proc_id, attempt)
    if whole:
        tables = [t for t, columns in case_columns().items() if {"artifact_id", "proc_id"} <= columns.keys()]
    for table in tables:
        con.execute(
            f"UPDATE {table} SET proc_id = ? WHERE artifact_id = ? AND proc_id = ? AND {where}",
            [new, artifact_id, proc_id, *values],
        )
    if whole:
        con.execute(
            "UPDATE step SET proc_id = ? WHERE proc_id = ? AND origin IN ('profiler', 'annotation')"
            " AND NOT EXISTS (SELECT 1 FROM slice AS s WHERE s.proc_id = step.proc_id)",
            [new, proc_id],
        )
    else:
        con.execute(
            "INSERT INTO coverage SELECT artifact_id, ?, capability, NULL, NULL, complete, n_read, n_kept"
            " FROM coverage WHERE artifact_id = ? AND proc_id = ? ORDER BY ALL",
            [new, artifact_id, proc_id],
        )
