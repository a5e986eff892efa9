"""One clock for the case: for each artifact a timeline, an offset onto it and an error.

Reads artifact, proc, coverage, fact and the event tables; writes artifact.timeline, clock_offset_ns, clock_error_ns,
clock_match, and shifts every time of the artifacts that move. Times of different timelines cannot be compared. Absolute
times make the timeline "epoch", else wall times make "wall"; other clocks join it by events that both tell of
(landmarks), wall times only by quarters of an hour unless several events show that the clock was wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

import duckdb
import pyarrow as pa

from forensics.case import arrow_type, case_columns
from forensics.models.alignment import QUARTER_NS, Vote, estimate, zones_of_spans
from forensics.models.days import find_day
from forensics.models.landmarks import Shared, shared_events
from forensics.models.years import Span, find_year, year_shifts

# Hosts of one cluster kept by NTP; loggers may be buffered. Stamps of whole seconds are cut off, not rounded.
_HOST_ERROR_NS = 50_000_000
_WHOLE_SECOND_NS = 1_000_000_000
_BOOT_ERROR_NS = 1_000_000_000
_BOOT_DRIFT = 50e-6  # of the kernel's unadjusted clock against NTP time: that of the quartz
_TIME_COLUMNS = ("ts_ns", "started_ns", "completed_ns", "allocated_ns", "from_ns", "to_ns")
_ORDER = {"epoch": 0, "local": 1, "yearless": 1, "dayless": 1, "boot": 2, "relative": 3}


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


def align_clocks(con: duckdb.DuckDBPyConnection) -> None:
    readings = [r for r in _read(con) if r.span is not None]  # what tells no time has no clock to set
    if not readings:
        return
    _settle_years(con, readings)
    _settle_days(con, readings)
    by_id = {r.id: r for r in readings}
    for shared in shared_events(con) if len(readings) > 1 else ():
        if shared.artifact_id in by_id and shared.other_id in by_id:
            by_id[shared.artifact_id].shared.append(shared)
            by_id[shared.other_id].shared.append(shared.turned())
    dated = [r for r in readings if r.timeline is None]  # all but logs whose year nothing tells
    kinds = {r.is_wall for r in dated if r.is_dated}
    reference = "epoch" if False in kinds else "wall" if kinds else None
    if reference is not None:
        _place_reference(reference, [r for r in dated if r.is_wall == (reference == "wall") and r.is_dated])
        _join(reference, dated)
        if reference == "epoch":
            _place_by_zone(dated)
    _place_without_day([r for r in readings if r.timeline is None and r.lacks_day])
    for reading in readings:
        if reading.timeline is None:
            host = " ".join(sorted(reading.hosts))
            own = f"boot {host}".strip() if reading.clock == "boot" else f"own {reading.id}"
            reading.timeline = "wall" if reading.is_wall else own
    _write(con, readings)


def _read(con: duckdb.DuckDBPyConnection) -> list[Reading]:
    spans = {row[0]: Span(row[1], row[2]) for row in con.execute(_spans()).fetchall()}
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


def _spans() -> str:
    tables = [t for t, columns in case_columns().items() if {"artifact_id", "ts_ns"} <= columns.keys()]
    parts = " UNION ALL ".join(
        f"SELECT artifact_id, min(ts_ns) AS low, max(ts_ns) AS high FROM {t} WHERE ts_ns > 0 GROUP BY artifact_id"
        for t in tables
        if t not in {"outcome", "finding"}
    )
    return f"SELECT artifact_id, min(low), max(high) FROM ({parts}) GROUP BY artifact_id"


def _settle_years(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    """Puts logs without a year into theirs; those of which nothing tells it get a timeline of their own."""
    lost = [r for r in readings if r.clock == "yearless" and r.span is not None]
    if not lost:
        return
    told = dict(con.execute("SELECT artifact_id, min(number) FROM fact WHERE key = 'year' GROUP BY ALL").fetchall())
    modified = dict(con.execute("SELECT id, modified_ns FROM artifact").fetchall())
    dated = [r.span for r in readings if r.clock in {"epoch", "local"} and r.span is not None]
    parts = []
    for reading in lost:
        if reading.span is None:
            continue
        year = int(told[reading.id]) if reading.id in told else None
        found = find_year(reading.span, reading.path, year, dated, modified[reading.id])
        if found is None:
            reading.timeline = "wall without year"
            continue
        reading.notes.append(("year", f"{found.year}: {found.how}"))
        parts += [(reading.id, *part) for part in year_shifts(found.year)]
    unknown = [r for r in lost if r.timeline is not None and r.span is not None]
    if unknown:
        # Counted from the first of them: a date in a made-up year would be read as one.
        start = min(r.span.low for r in unknown if r.span is not None)
        parts += [(r.id, 0, 2**62, -start) for r in unknown]
    _shift(con, parts)
    moved = {row[0]: Span(row[1], row[2]) for row in con.execute(_spans()).fetchall()}
    for reading in lost:
        reading.span = moved.get(reading.id, reading.span)


def _settle_days(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    """Puts logs that tell hours only on their days, where something tells them."""
    lost = [r for r in readings if r.clock == "dayless"]
    if not lost:
        return
    told = dict(con.execute("SELECT artifact_id, min(number) FROM fact WHERE key = 'day' GROUP BY ALL").fetchall())
    dated = [r for r in readings if r.is_dated and r.clock != "dayless" and r.span is not None]
    wall = [r.span for r in dated if r.is_wall and r.span is not None]
    absolute = [r.span for r in dated if not r.is_wall and r.span is not None]
    parts = []
    for reading in lost:
        if reading.span is None:
            continue
        day = int(told[reading.id]) if reading.id in told else None
        found = find_day(reading.span, reading.path, day, wall, absolute)
        if found is None:
            reading.lacks_day = True
            continue
        name = date.fromordinal(found.ordinal).isoformat()
        reading.notes.append(("day", f"{name}: {found.how}"))
        if not found.certain:
            reading.warnings.append(
                (
                    "day-inferred",
                    f"its lines tell the hour, not the day; they are taken as of {name}: {found.how}",
                    "what came first between this and other artifacts, should it be another day",
                )
            )
        parts.append((reading.id, -(2**62), 2**62, found.shift_ns))
        reading.span = Span(reading.span.low + found.shift_ns, reading.span.high + found.shift_ns)
    _shift(con, parts)


def _place_without_day(readings: Sequence[Reading]) -> None:
    """Logs of which nothing tells the day, on one timeline where all share an hour; counted from the first of them."""
    spans = [r.span for r in readings if r.span is not None]
    if not spans:
        return
    together = max(s.low for s in spans) <= min(s.high for s in spans)
    for reading in readings:
        if reading.span is not None:
            reading.offset_ns = -(min(s.low for s in spans) if together else reading.span.low)
        reading.timeline = "wall without day" if together else f"wall without day {reading.id}"


def _place_reference(timeline: str, readings: Sequence[Reading]) -> None:
    """Places what makes the timeline, the best connected first; a clock that several events contradict is moved."""
    placed: dict[int, Reading] = {}
    known = {r.id for r in readings}
    order = sorted(readings, key=lambda r: (-len({s.other_id for s in r.shared if s.other_id in known}), r.id))
    for reading in order:
        reading.timeline = timeline
        votes = _votes(reading, placed)
        found = estimate(votes, is_wall=timeline == "wall")
        placed[reading.id] = reading
        if not votes:
            continue
        agreed = {id(vote) for vote in found.agreeing} if found else set()
        reading.rests_on = [(v.shared, id(v) in agreed) for v in votes]
        off = max(abs(v.difference_ns) for v in votes)
        if found is not None and abs(found.offset_ns) <= found.error_ns + reading.error_ns:
            # Late writing or a clock that is a little off: which of the two cannot be told, so it counts as error.
            reading.error_ns = max(reading.error_ns, abs(found.offset_ns), found.error_ns if found.is_zone else 0)
            continue
        if found is not None and (len(found.agreeing) > 1 or (found.is_zone and found.offset_ns % QUARTER_NS == 0)):
            reading.offset_ns, reading.error_ns = found.offset_ns, max(reading.error_ns, found.error_ns)
            if not found.is_zone:
                reading.warnings.append(_clock_off(found.offset_ns, len(found.agreeing)))
        else:
            reading.error_ns = max(reading.error_ns, off)
            reading.warnings.append(
                (
                    "clocks-disagree",
                    f"{len(votes)} events that other artifacts tell of too lie up to {off / 1e9:.1f} s apart; "
                    "too few agree to set the clock by",
                    "what came first between this and other artifacts, within that time",
                )
            )


def _clock_off(offset_ns: int, n_events: int) -> tuple[str, str, str]:
    return (
        "clock-off",
        f"its clock was {abs(offset_ns) / 1e9:.1f} s {'behind' if offset_ns > 0 else 'ahead'}: "
        f"{n_events} events that other artifacts tell of too agree; times were corrected",
        "nothing, unless those events are not the same",
    )


def _votes(reading: Reading, placed: Mapping[int, Reading]) -> list[Vote]:
    votes = []
    for shared in reading.shared:
        other = placed.get(shared.other_id)
        if other is not None and other.timeline is not None:
            difference = shared.other_ns + other.offset_ns - shared.ns
            votes.append(Vote(difference, shared.slack_ns + other.error_ns + reading.error_ns, shared))
    return votes


def _join(timeline: str, readings: Sequence[Reading]) -> None:
    """Sets further clocks by those on the timeline, most events first, until no event is left."""
    while True:
        placed = {r.id: r for r in readings if r.timeline is not None}
        waiting = [(r, _votes(r, placed)) for r in readings if r.timeline is None]
        waiting.sort(key=lambda item: (_ORDER.get(item[0].clock, 9), -len(item[1]), item[0].id))
        for reading, votes in waiting:
            found = estimate(votes, is_wall=reading.is_wall)
            if found is None or (reading.is_wall and not found.is_zone and len(found.agreeing) < 2):
                continue
            agreed = {id(vote) for vote in found.agreeing}
            reading.rests_on = [(v.shared, id(v) in agreed) for v in votes]
            reading.timeline, reading.offset_ns = timeline, found.offset_ns
            reading.error_ns = max(reading.error_ns, found.error_ns)
            _qualify(reading, len(found.agreeing), is_zone=found.is_zone)
            break
        else:
            return


def _qualify(reading: Reading, n_agreeing: int, *, is_zone: bool) -> None:
    """Says what a clock set by few events is worth."""
    if reading.clock == "boot" and reading.span is not None:
        at = [shared.ns for shared, used in reading.rests_on if used]
        furthest = max(max(abs(reading.span.high - ns), abs(reading.span.low - ns)) for ns in at)
        reading.error_ns += int(_BOOT_DRIFT * furthest)
    if is_zone:
        return
    if reading.is_wall:
        reading.warnings.append(_clock_off(reading.offset_ns % QUARTER_NS, n_agreeing))
    elif n_agreeing == 1:
        what = next(shared.what for shared, used in reading.rests_on if used)
        reading.warnings.append(
            (
                "one-shared-event",
                f"its clock is set by a single event that another artifact tells of too: {what[:120]}",
                "when its events happened, should the two not be the same",
            )
        )


def _place_by_zone(readings: Sequence[Reading]) -> None:
    """Wall times that share no event: the zone of their host's other logs, else the one in which the spans overlap."""
    waiting = [r for r in readings if r.is_wall and r.is_dated and r.span is not None]
    zoned = [r for r in readings if r.is_wall and r.timeline == "epoch" and r.offset_ns % QUARTER_NS == 0]
    for reading in list(waiting):
        near = [r for r in zoned if r.hosts & reading.hosts] or zoned
        zones = {r.offset_ns for r in near}
        if len(zones) == 1:
            reading.timeline, reading.offset_ns = "epoch", zones.pop()
            reading.error_ns = max(reading.error_ns, *(r.error_ns for r in near))
            reading.notes.append(("zone", f"as that of {near[0].path}"))
            waiting.remove(reading)
    absolute = [r.span for r in readings if r.clock == "epoch" and r.span is not None]
    spans = [r.span for r in waiting if r.span is not None]
    fits = zones_of_spans(spans, absolute)
    for reading in waiting if len(fits) == 1 else ():  # of several none is better than another; they stay "wall"
        reading.timeline, reading.offset_ns = "epoch", fits[0]
        reading.notes.append(("zone", "the only one in which the wall times overlap the absolute ones"))


def _shift(con: duckdb.DuckDBPyConnection, parts: Sequence[tuple[int, int, int, int]]) -> None:
    """Adds to every time of an artifact. `parts`: artifact, from, to (exclusive), what to add."""
    moving = [part for part in parts if part[3]]
    if not moving:
        return
    con.execute("CREATE OR REPLACE TEMP TABLE shift (id INTEGER, low BIGINT, high BIGINT, add_ns BIGINT)")
    con.executemany("INSERT INTO shift VALUES (?, ?, ?, ?)", [list(part) for part in moving])
    for table, columns in case_columns().items():
        if "artifact_id" not in columns or table in {"outcome", "finding"}:
            continue
        for column in (c for c in _TIME_COLUMNS if c in columns):
            con.execute(
                f"UPDATE {table} SET {column} = {column} + s.add_ns FROM shift AS s"
                f" WHERE s.id = {table}.artifact_id AND {column} >= s.low AND {column} < s.high"
            )
    con.execute("DROP TABLE shift")


def _write(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    _shift(con, [(r.id, -(2**62), 2**62, r.offset_ns) for r in readings])
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
    rows: list[list[object]] = [[r.id, *[None] * 5, kind, None, True, how] for r in readings for kind, how in r.notes]
    by_id = {r.id: r for r in readings}
    for r in readings:
        for s, used in r.rests_on:
            difference = s.other_ns + by_id[s.other_id].offset_ns - s.ns
            place = [r.id, s.row, s.line, s.other_id, s.other_row, s.other_line]
            rows.append([*place, s.kind, difference, used, s.what])
    if rows:
        # One statement: thousands of artifacts rest on hundreds of events each.
        kinds = case_columns()["clock_match"]
        columns = zip(kinds.items(), zip(*rows, strict=True), strict=True)
        given = pa.table({name: pa.array(values, arrow_type(kind)) for (name, kind), values in columns})
        con.register("given_matches", given)
        con.execute("INSERT INTO clock_match SELECT * FROM given_matches")
        con.unregister("given_matches")
    told = [[r.id, None, None, *warning] for r in readings for warning in r.warnings]
    if told:
        con.executemany("INSERT INTO ingest_warning VALUES (?, ?, ?, ?, ?, ?)", told)
    if len({r.timeline for r in readings}) > 1 or any(r.offset_ns for r in readings):
        _place_processes(con)


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
