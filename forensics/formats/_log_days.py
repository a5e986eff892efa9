"""Days of a log whose lines tell the hour only: each line is of the day of the lines before it, or of the next one.

All lines are looked at, not only those that become rows: midnight passes between lines that say nothing else.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import UNKNOWN_YEAR

DAY_NS = 86_400 * 10**9
EPOCH = date(1970, 1, 1).toordinal()
FIRST_DAY = date(UNKNOWN_YEAR, 1, 1).toordinal() - EPOCH
# Logs go forward, but rarely by more than half a day, and lines of several writers lie out of order, but rarely by an
# hour: 23:59 and then 00:01 is the next day, 00:01 and then 23:59 the one before.
_BACK_S = 12 * 3600
_FORWARD_S = 23 * 3600
_DAY_S = 86_400

# In RE2 syntax: what launchers put before lines, a date that some lines have, the time, what tells it as one.
_MARKS = r"^(?:\[[^\]\n]{1,60}\]:? ?|[\w.-]{1,60}: |\d{1,5}: ){0,2}"
_TIME = (
    r"\[?(?:(?P<date>\d{4}[-/]\d\d[-/]\d\d)[T _,-])?(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)"
    r"(?:[.,]\d{1,9})?(?P<zone> ?(?:Z|[+-]\d\d:?\d\d)(?:\W|$))?"
)
_LEVEL = (
    r"\]?[\s\[|:-]{0,8}(?:[\w.:-]{1,60}\]?(?: - | ?))?\[?(?:TRACE|DEBUG|INFO|NOTICE|WARN|ERR|CRITICAL|FATAL|SEVERE)"
)
_ANY = r"(?:\]|\s|$)"


class Days:
    """`near_s`: a moment that is known to be of the log's beginning, in seconds since the epoch of a wall clock.

    Without one, days are counted from FIRST_DAY on, and `found` is what that day was, once a line with a date tells it.
    """

    def __init__(self, near_s: int | None, *, timed: bool) -> None:
        """`timed`: a time is one whatever follows."""
        self._pattern = _MARKS + _TIME + (_ANY if timed else f"(?:{_LEVEL})")
        self._dated = _MARKS + _TIME
        self._latest_s = near_s
        self.is_relative = near_s is None
        self._first_lines: list[int] = []
        self._days: list[int] = []
        self.found: date | None = None
        self.changes = False  # in the last block that was read

    def read(self, pieces: pa.Array, numbers: Callable[[pa.Array], pa.Array]) -> None:
        """Notes on which lines of a block days begin. `numbers` gives the line numbers of pieces by their places."""
        n_before = len(self._days)
        dated = pc.extract_regex(pieces, self._dated)
        has_date = pc.fill_null(pc.not_equal(pc.binary_length(dated.field("date")), 0), False)
        timed = pc.fill_null(pc.match_substring_regex(pieces, self._pattern), False)
        taken = pc.indices_nonzero(pc.and_(dated.is_valid(), pc.or_(has_date, timed)))
        if len(taken):
            self._note(dated.take(taken), numbers(taken))
        self.changes = len(self._days) > n_before + (n_before == 0)

    def midnight_ns(self, line: int | None) -> int:
        """The beginning of the day of a line, of the last one where None; ns."""
        if not self._days:
            return FIRST_DAY * DAY_NS if self._latest_s is None else self._latest_s // _DAY_S * DAY_NS
        place = len(self._days) if line is None else bisect_right(self._first_lines, line)
        return self._days[max(place - 1, 0)] * DAY_NS

    def _note(self, found: pa.StructArray, lines: pa.Array) -> None:
        seconds = pa.scalar(0, pa.int64())
        for name in ("hour", "minute", "second"):
            seconds = pc.add(pc.multiply(seconds, 60), _numbers(found.field(name)))
        # A day can only begin at a date, and where a time lies far from the one before.
        step = pc.pairwise_diff(seconds)
        far = pc.or_(pc.less(step, -_BACK_S), pc.greater(step, _FORWARD_S))
        dates, zones = found.field("date"), found.field("zone")
        begins = pc.or_(pc.fill_null(far, False), pc.greater(pc.binary_length(dates), 0))
        places = pc.indices_nonzero(begins).to_pylist()
        for place in sorted({0, len(found) - 1, *places, *(place - 1 for place in places if place)}):
            if not zones[place].as_py():
                self._go_to(seconds[place].as_py(), lines[place].as_py(), dates[place].as_py().decode())

    def _go_to(self, second: int, line: int, named: str) -> None:
        """Takes a time of day, on a date where one is `named`."""
        before = FIRST_DAY * _DAY_S + second if self._latest_s is None else self._latest_s
        now = before - before % _DAY_S + second
        if now - before < -_BACK_S:
            now += _DAY_S
        elif now - before > _FORWARD_S:
            now -= _DAY_S
        if named:
            now = self._on(named, now)
        self._latest_s = now
        if not self._days or self._days[-1] != now // _DAY_S:
            self._first_lines.append(line)
            self._days.append(now // _DAY_S)

    def _on(self, named: str, now: int) -> int:
        try:
            day = date(int(named[:4]), int(named[5:7]), int(named[8:10])).toordinal()
        except ValueError:
            return now
        if not self.is_relative:
            return (day - EPOCH) * _DAY_S + now % _DAY_S
        if self.found is None:
            self.found = date.fromordinal(day - now // _DAY_S + FIRST_DAY)
        return (day - self.found.toordinal() + FIRST_DAY) * _DAY_S + now % _DAY_S


def _numbers(texts: pa.Array) -> pa.Array:
    return texts.cast(pa.string()).cast(pa.int64())
