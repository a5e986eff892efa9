"""Writes what clocks were found to be: shifts the times of artifacts, tells offsets, errors and what they rest on.

Writes artifact.timeline, clock_offset_ns and clock_error_ns, clock_match, ingest_warning, and every time column.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from forensics.case import arrow_type, case_columns
from forensics.models.clock_readings import Reading

_TIME_COLUMNS = ("ts_ns", "started_ns", "completed_ns", "allocated_ns", "from_ns", "to_ns")


def shift_times(con: duckdb.DuckDBPyConnection, parts: Sequence[tuple[int, int, int, int]]) -> None:
    """Adds to every time of an artifact. `parts`: artifact, from, to (exclusive), what to add."""
    moving = [part for part in parts if part[3]]
    if not moving:
        return
    names = ("id", "low", "high", "add_ns")
    given = {name: pa.array(values, pa.int64()) for name, values in zip(names, zip(*moving, strict=True), strict=True)}
    con.register("shift", pa.table(given))
    for table, columns in case_columns().items():
        if "artifact_id" not in columns or table in {"outcome", "finding"}:
            continue
        for column in (c for c in _TIME_COLUMNS if c in columns):
            con.execute(
                f"UPDATE {table} SET {column} = {column} + s.add_ns FROM shift AS s"
                f" WHERE s.id = {table}.artifact_id AND {column} >= s.low AND {column} < s.high"
            )
    con.unregister("shift")


def write_clocks(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    shift_times(con, [(r.id, -(2**62), 2**62, r.offset_ns) for r in readings])
    placed = {
        "id": pa.array([r.id for r in readings], pa.int32()),
        "timeline": pa.array([r.timeline for r in readings], pa.string()),
        "offset_ns": pa.array([r.offset_ns for r in readings], pa.int64()),
        "error_ns": pa.array([r.error_ns for r in readings], pa.int64()),
    }
    con.register("given_placed", pa.table(placed))
    con.execute(
        "UPDATE artifact SET timeline = g.timeline, clock_offset_ns = g.offset_ns, clock_error_ns = g.error_ns"
        " FROM given_placed AS g WHERE g.id = artifact.id"
    )
    con.unregister("given_placed")
    rows: list[Sequence[object]] = [
        [r.id, *[None] * 5, kind, None, True, how] for r in readings for kind, how in r.notes
    ]
    by_id = {r.id: r for r in readings}
    for r in readings:
        for s, used in r.rests_on:
            difference = s.other_ns + by_id[s.other_id].offset_ns - s.ns
            place = [r.id, s.row, s.line, s.other_id, s.other_row, s.other_line]
            rows.append([*place, s.kind, difference, used, s.what])
    _append(con, "clock_match", rows)
    _append(con, "ingest_warning", [(r.id, None, None, *warning) for r in readings for warning in r.warnings])
    if len({r.timeline for r in readings}) > 1 or any(r.offset_ns for r in readings):
        _place_processes(con)


def _append(con: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Sequence[object]]) -> None:
    """In one statement: thousands of artifacts rest on dozens of events each."""
    if rows:
        columns = zip(case_columns()[table].items(), zip(*rows, strict=True), strict=True)
        con.register("given_rows", pa.table({name: pa.array(of, arrow_type(kind)) for (name, kind), of in columns}))
        con.execute(f"INSERT INTO {table} SELECT * FROM given_rows")
        con.unregister("given_rows")


# Formats tell spans and steps by their artifact's own clock; only times of the main timeline make those of the case.
def _place_processes(con: duckdb.DuckDBPyConnection) -> None:
    tables = [t for t, columns in case_columns().items() if {"artifact_id", "proc_id", "ts_ns"} <= columns.keys()]
    seen = " UNION ALL ".join(f"SELECT artifact_id, proc_id, ts_ns FROM {t}" for t in tables if t != "outcome")
    con.execute(
        f"""
        UPDATE proc SET start_ns = s.low, end_ns = s.high
        FROM (
            SELECT e.proc_id, min(e.ts_ns) AS low, max(e.ts_ns) AS high
            FROM ({seen}) AS e JOIN artifact AS a ON a.id = e.artifact_id
            WHERE a.timeline = (SELECT min(timeline) FROM artifact WHERE timeline IN ('epoch', 'wall'))
            GROUP BY e.proc_id
        ) AS s
        WHERE s.proc_id = proc.id
        """
    )
    con.execute(
        """
        UPDATE step SET start_ns = step.start_ns + o.add_ns, end_ns = step.end_ns + o.add_ns
        FROM (
            SELECT s.proc_id, min(a.clock_offset_ns) AS add_ns
            FROM (SELECT DISTINCT proc_id, artifact_id FROM slice) AS s JOIN artifact AS a ON a.id = s.artifact_id
            GROUP BY s.proc_id HAVING count(DISTINCT a.clock_offset_ns) = 1
        ) AS o
        WHERE o.proc_id = step.proc_id AND o.add_ns <> 0
        """
    )
