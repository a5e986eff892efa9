"""One clock for the case: for each artifact a timeline, an offset onto it and an error.

Reads artifact, proc, coverage, fact and the event tables; writes artifact.timeline, clock_offset_ns, clock_error_ns,
clock_match, and shifts every time of the artifacts that move. Times of different timelines cannot be compared. Absolute
times make the timeline "epoch", else wall times make "wall"; other clocks join it by events that both tell of
(landmarks), wall times only by quarters of an hour unless several events show that the clock was wrong.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import date
from heapq import heapify, heappop, heappush

import duckdb

from forensics.models.alignment import QUARTER_NS, Vote, estimate, zones_of_spans
from forensics.models.clock_readings import Reading, read_clocks, spans_query
from forensics.models.clock_tables import shift_times, write_clocks
from forensics.models.days import Dated, find_day
from forensics.models.landmarks import shared_events
from forensics.models.years import Span, find_year, merged, year_shifts

_BOOT_DRIFT = 50e-6  # of the kernel's unadjusted clock against NTP time: that of the quartz
_ORDER = {"epoch": 0, "local": 1, "yearless": 1, "dayless": 1, "boot": 2, "relative": 3}


def align_clocks(con: duckdb.DuckDBPyConnection) -> None:
    readings = [r for r in read_clocks(con) if r.span is not None]  # what tells no time has no clock to set
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
    write_clocks(con, readings)


def _settle_years(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    """Puts logs without a year into theirs; those of which nothing tells it get a timeline of their own."""
    lost = [r for r in readings if r.clock == "yearless" and r.span is not None]
    if not lost:
        return
    told = dict(con.execute("SELECT artifact_id, min(number) FROM fact WHERE key = 'year' GROUP BY ALL").fetchall())
    modified = dict(con.execute("SELECT id, modified_ns FROM artifact").fetchall())
    dated = merged(r.span for r in readings if r.clock in {"epoch", "local"} and r.span is not None)
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
    shift_times(con, parts)
    moved = {row[0]: Span(row[1], row[2]) for row in con.execute(spans_query()).fetchall()}
    for reading in lost:
        reading.span = moved.get(reading.id, reading.span)


def _settle_days(con: duckdb.DuckDBPyConnection, readings: Sequence[Reading]) -> None:
    """Puts logs that tell hours only on their days, where something tells them."""
    lost = [r for r in readings if r.clock == "dayless"]
    if not lost:
        return
    told = dict(con.execute("SELECT artifact_id, min(number) FROM fact WHERE key = 'day' GROUP BY ALL").fetchall())
    dated = [r for r in readings if r.is_dated and r.clock != "dayless" and r.span is not None]
    wall = Dated.of(r.span for r in dated if r.is_wall and r.span is not None)
    absolute = Dated.of(r.span for r in dated if not r.is_wall and r.span is not None)
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
    shift_times(con, parts)


def _place_without_day(readings: Sequence[Reading]) -> None:
    """Logs of which nothing tells the day, on one timeline where all share an hour; counted from the first of them."""
    spans = [r.span for r in readings if r.span is not None]
    if not spans:
        return
    first = min(s.low for s in spans)
    together = max(s.low for s in spans) <= min(s.high for s in spans)
    for reading in readings:
        if reading.span is not None:
            reading.offset_ns = -(first if together else reading.span.low)
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
    placed = {r.id: r for r in readings if r.timeline is not None}
    waiting = {r.id: r for r in readings if r.timeline is None}
    n_votes = {id_: sum(s.other_id in placed for s in r.shared) for id_, r in waiting.items()}

    def turn(reading: Reading) -> tuple[int, int, int]:
        return _ORDER.get(reading.clock, 9), -n_votes[reading.id], reading.id

    turns = [turn(r) for r in waiting.values()]
    heapify(turns)
    while turns:
        reading = waiting.get(turns[0][2])
        if heappop(turns) != (turn(reading) if reading else None) or reading is None or not _set(reading, placed):
            continue  # set before, or asked again when more is placed
        reading.timeline = timeline
        placed[reading.id] = waiting.pop(reading.id)
        for other, n in Counter(s.other_id for s in reading.shared if s.other_id in waiting).items():
            n_votes[other] += n
            heappush(turns, turn(waiting[other]))


def _set(reading: Reading, placed: Mapping[int, Reading]) -> bool:
    """Whether what is placed tells its offset."""
    votes = _votes(reading, placed)
    found = estimate(votes, is_wall=reading.is_wall)
    if found is None or (reading.is_wall and not found.is_zone and len(found.agreeing) < 2):
        return False
    agreed = {id(vote) for vote in found.agreeing}
    reading.rests_on = [(v.shared, id(v) in agreed) for v in votes]
    reading.offset_ns = found.offset_ns
    reading.error_ns = max(reading.error_ns, found.error_ns)
    _qualify(reading, len(found.agreeing), is_zone=found.is_zone)
    return True


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
    of_host: dict[str, list[Reading]] = defaultdict(list)
    for reading in zoned:
        for host in reading.hosts:
            of_host[host].append(reading)
    zones: dict[frozenset[str], tuple[int, int, str] | None] = {}
    for reading in waiting:
        hosts = reading.hosts.intersection(of_host)
        if hosts not in zones:
            near = [r for host in hosts for r in of_host[host]] if hosts else zoned
            zones[hosts] = _only_zone(near)
        found = zones[hosts]
        if found is not None:
            reading.timeline, reading.offset_ns = "epoch", found[0]
            reading.error_ns = max(reading.error_ns, found[1])
            reading.notes.append(("zone", f"as that of {found[2]}"))
    waiting = [r for r in waiting if r.timeline is None]
    absolute = [r.span for r in readings if r.clock == "epoch" and r.span is not None]
    spans = [r.span for r in waiting if r.span is not None]
    fits = zones_of_spans(spans, absolute)
    for reading in waiting if len(fits) == 1 else ():  # of several none is better than another; they stay "wall"
        reading.timeline, reading.offset_ns = "epoch", fits[0]
        reading.notes.append(("zone", "the only one in which the wall times overlap the absolute ones"))


def _only_zone(zoned: Sequence[Reading]) -> tuple[int, int, str] | None:
    """Offset, error and an example of the one zone that all have."""
    if len({r.offset_ns for r in zoned}) != 1:
        return None
    return zoned[0].offset_ns, max(r.error_ns for r in zoned), min((r.id, r.path) for r in zoned)[1]
