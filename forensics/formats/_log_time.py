"""Time stamps of log prefixes, and the one clock that a log's events are placed on.

Stamps without a zone follow the host's wall clock: they are kept as they are written (clock "local"). Stamps without a
year (glog, syslog, vLLM) take it from a stamp of the same log that has one. Where none comes early enough, the log's
times lie in the years from UNKNOWN_YEAR on (clock "yearless"), and the case settles later which year that was.

Stamps of the hour alone take their day from the stamps before them, and go on with the next one at midnight. Where the
log has no date, its first day is 1 January of UNKNOWN_YEAR (clock "dayless"), and the case settles which day that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from forensics.artifact import UNKNOWN_YEAR
from forensics.formats._log_days import Days

_DAY_NS = 86_400 * 10**9
_EPOCH = date(1970, 1, 1).toordinal()
_BACK_DAYS = 31  # how far lines of several writers may lie out of order
_WALL = {"local", "yearless", "dayless"}
_LEAST_CLOCK_NS = 60 * 10**9  # times that begin within a minute of midnight are rather times since a start
_NAMED_NEAR_NS = 600 * 10**9  # a moment that a text names is that of the job where its lines were written within this
# Zones differ from UTC by quarters of an hour, up to 14 hours; most lines follow the one before within a minute.
_QUARTER_NS = 15 * 60 * 10**9
_MAX_QUARTERS = 56
_NO_ZONE = 10**6
_NEAR_NS = 60 * 10**9
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}


class Stamp(NamedTuple):
    """A time as written. `kind`: epoch, local, boot, yearless or dayless; `ns` of a yearless one counts from 1 January,
    that of a dayless one from midnight."""

    kind: str
    ns: int
    month: int = 0
    day: int = 0


@lru_cache(maxsize=512)
def _days(year: int, month: int, day: int) -> int | None:
    try:
        return date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        return None


def time_ns(hour: str, minute: str, second: str, fraction: str | None) -> int:
    """Nanoseconds since midnight."""
    seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
    return seconds * 10**9 + (int(fraction[:9].ljust(9, "0")) if fraction else 0)


def full_stamp(year: int, month: int, day: int, ns: int, zone: str | None) -> Stamp | None:
    days = _days(year, month, day)
    if days is None:
        return None
    total = days * _DAY_NS + ns
    if not zone:
        return Stamp("local", total, month, day)
    if zone not in {"Z", "z"}:
        digits = zone[1:].replace(":", "").ljust(4, "0")
        offset = (int(digits[:2]) * 60 + int(digits[2:4])) * 60 * 10**9
        total -= offset if zone[0] == "+" else -offset
    return Stamp("epoch", total, month, day)


def yearless_stamp(month: int, day: int, ns: int) -> Stamp | None:
    days, first = _days(UNKNOWN_YEAR, month, day), _days(UNKNOWN_YEAR, 1, 1)
    return None if days is None or first is None else Stamp("yearless", (days - first) * _DAY_NS + ns, month, day)


def dayless_stamp(hour: str, minute: str, second: str, fraction: str | None) -> Stamp | None:
    is_time = int(hour) < 24 and int(minute) < 60 and int(second) < 61
    return Stamp("dayless", time_ns(hour, minute, second, fraction)) if is_time else None


class Clock:
    """Gives stamps of one log as ns of one clock; None for stamps that do not belong to it."""

    def __init__(self) -> None:
        self.kind = "none"
        self.n_foreign = 0
        self.met_yearless = False
        self.found_year: int | None = None  # what UNKNOWN_YEAR stands for, once a stamp has told
        self.days: Days | None = None  # where lines tell the hour only
        self._zone_ns: int | None = None  # wall time less UTC, where the log shows both
        self._latest: Stamp | None = None
        self._day: int | None = None  # of the latest stamp, since the epoch
        self._is_reached = False  # whether that stamp stands before the lines at hand, not somewhere in the log

    def survey(self, stamps: list[Stamp], moments: Sequence[Stamp], *, timed: bool = False) -> None:
        """Settles kind, year, day and zone by the stamps at the log's beginning and the moments that its text names.

        `timed`: lines begin with a time of day, whatever follows.
        """
        times = [stamp for stamp in stamps if stamp.kind == "dayless"]
        stamps = [stamp for stamp in stamps if stamp.kind != "dayless"]
        if times and not stamps and times[0].ns >= _LEAST_CLOCK_NS:
            self.days = Days(_moment_of(times, moments), timed=timed)
            self.kind = "dayless" if self.days.is_relative else "local"
            return
        seen = Counter(_family(stamp) for stamp in stamps)
        self.met_yearless = any(stamp.kind == "yearless" for stamp in stamps)
        if not seen:
            return
        self.kind = max(sorted(seen), key=lambda kind: seen[kind])
        self._day = next((stamp.ns // _DAY_NS for stamp in stamps if stamp.kind in {"local", "epoch"}), None)
        if self._day is None:
            days = {(stamp.month, stamp.day) for stamp in stamps if stamp.kind == "yearless"}
            named = [moment.ns // _DAY_NS for moment in moments if (moment.month, moment.day) in days]
            self._day = next(iter(named), None)
        if seen["wall"] and seen["epoch"]:
            self._zone_ns = self._zone(stamps)
        if self.kind == "wall":
            self.kind = "yearless" if self._day is None else "local" if self._zone_ns is None else "epoch"
        near = next((stamp.ns for stamp in stamps if stamp.kind == "local"), None)
        if times and near is not None and (self.kind == "local" or self._zone_ns is not None):
            self.days = Days(near // 10**9, timed=timed)

    def _zone(self, stamps: list[Stamp]) -> int | None:
        """The zone in which wall times and absolute times of neighbouring lines are one; None when they disagree."""
        quarters: Counter[int] = Counter()
        for one, other in pairwise(stamps):
            if {_family(one), _family(other)} != {"wall", "epoch"}:
                continue
            wall, absolute = (one, other) if _family(one) == "wall" else (other, one)
            ns = wall.ns if wall.kind == "local" else self._nearest(wall, absolute.ns // _DAY_NS, 182)
            quarter, rest = divmod(ns - absolute.ns + _NEAR_NS, _QUARTER_NS)
            quarters[quarter if rest <= 2 * _NEAR_NS and abs(quarter) <= _MAX_QUARTERS else _NO_ZONE] += 1
        quarter, n = max(quarters.items(), key=lambda item: item[1], default=(_NO_ZONE, 0))
        agreed = n > 1 and n * 3 >= quarters.total() * 2 and quarter != _NO_ZONE
        return quarter * _QUARTER_NS if agreed else None

    def follows(self, stamp: Stamp) -> bool:
        """Whether a stamp is known to be of this clock."""
        if stamp.kind == "dayless":
            return self.days is not None
        if self.kind == "dayless":
            return stamp.kind == "local"
        if self.kind == stamp.kind or (self.kind in _WALL and stamp.kind in _WALL):
            return True
        return self._zone_ns is not None and self.kind == "epoch" and stamp.kind in _WALL

    def may_change_year(self, stamps: Iterable[Stamp]) -> bool:
        """Whether some of these stamps and the latest one lie too far apart to be of one year in any order."""
        dates = [stamp for stamp in (*stamps, self._latest) if stamp is not None and stamp.month]
        days = [_days(UNKNOWN_YEAR, stamp.month, stamp.day) or 0 for stamp in dates]
        return bool(days) and max(days) - min(days) > _BACK_DAYS

    def ns(self, stamp: Stamp | None, line: int | None = None) -> int | None:
        """`line`: that of the stamp, where it is known; the last one read, else."""
        if stamp is None or (stamp.kind == "dayless" and self.days is None):
            return None
        if self.kind == "none":
            self.kind = stamp.kind
        if not self.follows(stamp):
            self.n_foreign += 1
            return None
        if stamp.kind == "boot":
            return stamp.ns
        if self.days is not None and (self.kind == "dayless" or stamp.kind == "dayless"):
            ns = self.days.midnight_ns(line) + stamp.ns % _DAY_NS
        elif self.kind == "yearless" or stamp.kind == "yearless":
            ns, self.met_yearless = self._with_year(stamp), True
        else:
            ns = stamp.ns
            self._note(stamp, ns)
        # The zone is known only of logs whose own clock is absolute.
        return ns - self._zone_ns if self._zone_ns is not None and stamp.kind in _WALL else ns

    def _note(self, stamp: Stamp, ns: int) -> None:
        self._latest, self._day, self._is_reached = stamp, ns // _DAY_NS, True

    def _with_year(self, stamp: Stamp) -> int:
        """The time in the year that fits what came before: December and January in one log are one winter."""
        if self._day is None:
            ns = _in_year(UNKNOWN_YEAR, stamp)
        elif self._latest is not None and (self._latest.month, self._latest.day) == (stamp.month, stamp.day):
            ns = self._day * _DAY_NS + stamp.ns % _DAY_NS
        else:
            # Logs go forward, by months when nothing happens; what only stands somewhere in the log may lie behind.
            ns = self._nearest(stamp, self._day, _BACK_DAYS if self._is_reached else 182)
        if self.kind == "yearless" and stamp.kind == "local" and self.found_year is None:
            self.found_year = UNKNOWN_YEAR + _year_of(stamp.ns // _DAY_NS) - _year_of(ns // _DAY_NS)
        self._note(stamp, ns)
        return ns

    @staticmethod
    def _nearest(stamp: Stamp, day: int, back: int) -> int:
        """The time of a stamp in the first year in which it lies at most `back` days before a day."""
        times = [_in_year(_year_of(day) + step, stamp) for step in (-1, 0, 1)]
        return next((ns for ns in times if ns >= (day - back) * _DAY_NS), times[-1])


def _moment_of(times: Sequence[Stamp], moments: Sequence[Stamp]) -> int | None:
    """Seconds of the first named moment, where all that fit the times of some lines are of one day."""
    fitting = [m.ns for m in moments if any(abs(m.ns % _DAY_NS - time.ns) <= _NAMED_NEAR_NS for time in times)]
    return min(fitting) // 10**9 if len({ns // _DAY_NS for ns in fitting}) == 1 else None


def _family(stamp: Stamp) -> str:
    return "wall" if stamp.kind in _WALL else stamp.kind


def _year_of(day: int) -> int:
    return date.fromordinal(day + _EPOCH).year


def _in_year(year: int, stamp: Stamp) -> int:
    day = _days(year, stamp.month, stamp.day)
    if day is None:
        day = _days(year, 3, 1) or 0  # 29 February of a year that has none
    return day * _DAY_NS + stamp.ns % _DAY_NS
