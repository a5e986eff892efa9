"""Settles the year of logs whose stamps have none.

Reads artifact, fact and the spans of other artifacts. In order of trust: a stamp of the same log that has a year, the
one year in which the log lies with artifacts that have one, a date in its name, and the time of the file's last change
where that is the day of the last line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import lru_cache

from forensics.artifact import UNKNOWN_YEAR

_DAY_NS = 86_400 * 10**9
_EPOCH = date(1970, 1, 1).toordinal()
_NEAR_DAYS = 45  # what a job left behind belongs together
_ZONES_NS = 14 * 3600 * 10**9  # wall times may be this far from UTC
_HOLE_NS = 2 * 10**9
_YEARS = range(2016, 2100)  # PyTorch began in 2016
_DATE = re.compile(r"(?<!\d)(20\d\d)[-_.]?(0[1-9]|1[0-2])[-_.]?(0[1-9]|[12]\d|3[01])(?!\d{3})")


@dataclass(frozen=True)
class Span:
    """From when to when an artifact tells of, ns of its own clock."""

    low: int
    high: int


@dataclass(frozen=True)
class Year:
    """The year for which UNKNOWN_YEAR stands in an artifact, and how that is known."""

    year: int
    how: str


def find_year(span: Span, path: str, told: int | None, dated: Sequence[Span], modified_ns: int | None) -> Year | None:
    """None when nothing tells, or two years fit equally well."""
    if told is not None:
        return Year(told, "a line of the same log has a year")
    if dated:
        placed = {year: _placed(span, year) for year in _YEARS}
        distance = {year: min(_gap(there, other) for other in dated) for year, there in placed.items()}
        nearest = min(distance.values())
        fitting = [y for y, gap in distance.items() if gap == nearest]
        if len(fitting) == 1 and nearest <= _NEAR_DAYS * _DAY_NS:
            return Year(fitting[0], "the year in which it lies with the other artifacts")
    for found in _DATE.finditer(path):
        named = _span_of_day(int(found[1]), int(found[2]), int(found[3]))
        for year in (int(found[1]), int(found[1]) - 1):
            if named and _gap(_placed(span, year), named) <= 2 * _DAY_NS:
                return Year(year, "the date in its name")
    if modified_ns is not None:
        changed = datetime.fromtimestamp(modified_ns / 1e9, UTC).year
        for year in (changed, changed - 1):
            if abs(_placed(span, year).high - modified_ns) <= _ZONES_NS + _DAY_NS:
                return Year(year, "the time of the file's last change")
    return None


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same times in few spans. Holes of up to 2 s are closed: what lies there is taken to lie with either side."""
    found: list[Span] = []
    for span in sorted(spans, key=lambda s: s.low):
        if found and span.low <= found[-1].high + _HOLE_NS:
            found[-1] = Span(found[-1].low, max(found[-1].high, span.high))
        else:
            found.append(span)
    return found


@lru_cache(maxsize=256)
def year_shifts(year: int) -> tuple[tuple[int, int, int], ...]:
    """(from, to, shift) in ns: what to add to times of the years from UNKNOWN_YEAR on, so that they are of `year` on.

    Two parts a year, since only one of the two years may have a 29 February.
    """
    parts = []
    for step in range(-1, 4):
        for (month, day), (to_year, to_month) in (((1, 1), (0, 3)), ((3, 1), (1, 1))):
            start = _day(UNKNOWN_YEAR + step, month, day)
            end = _day(UNKNOWN_YEAR + step + to_year, to_month, 1)
            parts.append((start * _DAY_NS, end * _DAY_NS, (_day(year + step, month, day) - start) * _DAY_NS))
    return tuple(parts)


def _placed(span: Span, year: int) -> Span:
    shifts = year_shifts(year)

    def place(ns: int) -> int:
        return ns + next((shift for low, high, shift in shifts if low <= ns < high), 0)

    return Span(place(span.low), place(span.high))


def _gap(one: Span, other: Span) -> int:
    """Time between two spans, 0 where they may overlap in some zone."""
    return max(0, one.low - other.high - _ZONES_NS, other.low - one.high - _ZONES_NS)


def named_dates(path: str) -> list[date]:
    """Dates in a name, each once, in their order."""
    found = []
    for m in _DATE.finditer(path):
        try:
            found.append(date(int(m[1]), int(m[2]), int(m[3])))
        except ValueError:
            continue
    return list(dict.fromkeys(found))


def _span_of_day(year: int, month: int, day: int) -> Span | None:
    try:
        start = _day(year, month, day) * _DAY_NS
    except ValueError:
        return None
    return Span(start, start + _DAY_NS)


def _day(year: int, month: int, day: int) -> int:
    return date(year, month, day).toordinal() - _EPOCH
