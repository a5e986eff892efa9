"""The clocks of a case's artifacts as they were read: what kind, of which hosts, from when to when, how exact.

Reads artifact, proc, coverage and the event tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import duckdb

from forensics.case import case_columns
from forensics.models.landmarks import Shared
from forensics.models.years import Span

# Hosts of one cluster kept by NTP; loggers may be buffered. Stamps of whole seconds are cut off, not rounded.
_HOST_ERROR_NS = 50_000_000
_WHOLE_SECOND_NS = 1_000_000_000
_BOOT_ERROR_NS = 1_000_000_000


@dataclass
class Reading:
    """The clock of one artifact, and what became of it."""

    id: int
    path: str
    clock: str
    hosts: frozenset[str]
    span: Span | None
    error_ns: int
    timeline: str | None = None
    offset_ns: int = 0
    lacks_day: bool = False
    shared: list[Shared] = field(default_factory=list)
    rests_on: list[tuple[Shared, bool]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)  # kind, detail: zones and years
    warnings: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def is_wall(self) -> bool:
        return self.clock in {"local", "yearless", "dayless"}

    @property
    def is_dated(self) -> bool:
        return self.timeline is None and (self.clock == "epoch" or self.is_wall) and not self.lacks_day


def read_clocks(con: duckdb.DuckDBPyConnection) -> list[Reading]:
    spans = {row[0]: Span(row[1], row[2]) for row in con.execute(spans_query()).fetchall()}
    hosts = con.execute(
        "SELECT c.artifact_id, list(DISTINCT p.host) FROM ("
        "SELECT artifact_id, proc_id FROM coverage UNION SELECT artifact_id, proc_id FROM log_event) AS c"
        " JOIN proc AS p ON p.id = c.proc_id WHERE p.host IS NOT NULL GROUP BY c.artifact_id"
    ).fetchall()
    named = {row[0]: frozenset(row[1]) for row in hosts}
    query = "SELECT id, path, clock, clock_error_ns FROM artifact WHERE clock <> 'none' ORDER BY id"
    rows = con.execute(query).fetchall()
    own_error = {"boot": _BOOT_ERROR_NS, "relative": 0}
    coarse = {row[0] for row in con.execute(_whole_seconds()).fetchall()}
    readings = []
    for number, path, clock, told in rows:
        error = told if told is not None else own_error.get(clock, _HOST_ERROR_NS)
        error = max(error, _WHOLE_SECOND_NS) if number in coarse else error
        readings.append(Reading(number, path, clock, named.get(number, frozenset()), spans.get(number), error))
    return readings


def _whole_seconds() -> str:
    """Artifacts of which every time is a whole second."""
    parts = " UNION ALL ".join(f"SELECT artifact_id, ts_ns FROM {t}" for t in ("log_event", "sample", "thread_state"))
    return (
        f"SELECT artifact_id FROM ({parts}) WHERE ts_ns IS NOT NULL"
        f" GROUP BY artifact_id HAVING bool_and(ts_ns % {_WHOLE_SECOND_NS} = 0)"
    )


def spans_query() -> str:
    tables = [t for t, columns in case_columns().items() if {"artifact_id", "ts_ns"} <= columns.keys()]
    parts = " UNION ALL ".join(
        f"SELECT artifact_id, min(ts_ns) AS low, max(ts_ns) AS high FROM {t} WHERE ts_ns > 0 GROUP BY artifact_id"
        for t in tables
        if t not in {"outcome", "finding"}
    )
    return f"SELECT artifact_id, min(low), max(high) FROM ({parts}) GROUP BY artifact_id"
