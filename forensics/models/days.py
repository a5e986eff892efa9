"""Settles the day of logs whose stamps tell the hour only.

In order of trust: a stamp of the same log that has a date, the one day on which the log lies with artifacts that have
dates, and a date in its name. Events that others tell of too may place what is left (`clocks`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from forensics.artifact import UNKNOWN_YEAR
from forensics.models.alignment import zones_of_spans
from forensics.models.years import Span, merged, named_dates

_DAY_NS = 86_400 * 10**9
_EPOCH = date(1970, 1, 1).toordinal()
_FIRST = date(UNKNOWN_YEAR, 1, 1).toordinal()
_NEAR_NS = 3600 * 10**9  # a launcher's log may end, or a kernel's begin, this far from the ranks' own
_MAX_DAYS = 40  # of what is looked at: over more days nothing is settled


@dataclass(frozen=True)
class Day:
    """The day for which 1 January of UNKNOWN_YEAR stands, as an ordinal. `certain`: the log itself tells it."""

    ordinal: int
    how: str
    certain: bool = False

    @property
    def shift_ns(self) -> int:
        return (self.ordinal - _FIRST) * _DAY_NS


@dataclass(frozen=True)
class Dated:
    """When artifacts with dates tell of something, and the days on which a log may begin that lies with one of them."""

    spans: tuple[Span, ...]
    days: tuple[int, ...]

    @classmethod
    def of(cls, spans: Iterable[Span]) -> Dated:
        distinct = set(spans)
        return cls(tuple(merged(distinct)), tuple(sorted(_days(distinct))))


def find_day(span: Span, path: str, told: int | None, wall: Dated, absolute: Dated) -> Day | None:
    """None when nothing tells, or several days fit. `wall`: times of the same kind with dates; `absolute`: of UTC."""
    if told is not None:
        return Day(told, "a line of the same log has a date", certain=True)
    fitting = [day for day in wall.days if any(_overlap(_on(span, day), other) for other in wall.spans)]
    if not fitting:
        fitting = [day for day in absolute.days if any(zones_of_spans([_on(span, day)], [s]) for s in absolute.spans)]
    if len(fitting) == 1:
        return Day(fitting[0], "the day on which it lies with other artifacts")
    named = {found.toordinal() for found in named_dates(path)}
    if len(named) == 1 and (not fitting or named & set(fitting)):
        return Day(named.pop(), "the date in its name")
    return None


def _days(spans: Iterable[Span]) -> set[int]:
    days: set[int] = set()
    for span in spans:
        low, high = span.low // _DAY_NS + _EPOCH, span.high // _DAY_NS + _EPOCH
        if high - low <= _MAX_DAYS:
            days.update(range(low - 2, high + 2))
    return days


def _on(span: Span, day: int) -> Span:
    shift = (day - _FIRST) * _DAY_NS
    return Span(span.low + shift, span.high + shift)


def _overlap(one: Span, other: Span) -> bool:
    return one.low <= other.high + _NEAR_NS and other.low <= one.high + _NEAR_NS
