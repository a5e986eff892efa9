"""Time stamps of log prefixes, and the one clock that a log's events are placed on.

Stamps without a zone follow the host's wall clock: they are kept as they are written (clock "local"). Stamps without a
year (glog, syslog, vLLM) take it from a stamp of the same log that has one.
"""

from __future__ import annotations

from collections import Counter
from datetime import date
from functools import lru_cache
from typing import NamedTuple

_DAY_NS = 86_400 * 10**9
_EPOCH = date(1970, 1, 1).toordinal()
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}


class Stamp(NamedTuple):
    """A time as written. `kind`: epoch, local, boot or yearless; `ns` of a yearless one counts from 1 January."""

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
    days = _days(2000, month, day)  # a leap year, so that 29 February exists
    return None if days is None else Stamp("yearless", (days - (_days(2000, 1, 1) or 0)) * _DAY_NS + ns, month, day)


class Clock:
    """Gives stamps of one log as ns of one clock; None for stamps that do not belong to it."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()
        self.kind = "none"
        self.n_foreign = 0
        self._year: int | None = None
        self._month = 0

    def survey(self, stamps: list[Stamp], dates: list[tuple[str, str, str]]) -> None:
        """Settles kind and year by the stamps at the log's beginning and by dates in its text on the same days."""
        self._seen.update("local" if stamp.kind == "yearless" else stamp.kind for stamp in stamps)
        if self._seen:
            self.kind = max(sorted(self._seen), key=lambda kind: self._seen[kind])
        for stamp in stamps:
            if stamp.kind in {"local", "epoch"}:
                self._note_year(stamp)
                return
        days = {(stamp.month, stamp.day) for stamp in stamps if stamp.kind == "yearless"}
        for year, month, day in dates:
            if (int(month), int(day)) in days:
                self._year, self._month = int(year), int(month)
                return

    def follows(self, stamp: Stamp) -> bool:
        """Whether a stamp is known to be of this clock."""
        return self.kind == ("local" if stamp.kind == "yearless" else stamp.kind)

    def ns(self, stamp: Stamp | None) -> int | None:
        if stamp is None:
            return None
        kind = "local" if stamp.kind == "yearless" else stamp.kind
        if self.kind == "none":
            self.kind = kind
        if kind != self.kind:
            self.n_foreign += 1
            return None
        if stamp.kind == "yearless":
            return self._with_year(stamp)
        if kind != "boot":
            self._note_year(stamp)
        return stamp.ns

    def _note_year(self, stamp: Stamp) -> None:
        self._year = date.fromordinal(stamp.ns // _DAY_NS + _EPOCH).year
        self._month = stamp.month

    def _with_year(self, stamp: Stamp) -> int | None:
        if self._year is None:
            return None
        # December and January in one log are one winter, not eleven months apart.
        step = (stamp.month <= 2 and self._month >= 11) - (stamp.month >= 11 and self._month <= 2)
        days = _days(self._year + step, stamp.month, stamp.day)
        return None if days is None else days * _DAY_NS + stamp.ns % _DAY_NS
