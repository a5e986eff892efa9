"""Times of what Kubernetes tells: stamps stand on lines of their own, ages beside the events that they are of.

`kubectl get -o yaml` (or json) and `describe` give each event and each container's end a stamp within a few lines of
what happened. Tables give ages, which are times where a line above the table tells when it was printed; an age is cut
off to its last unit (`47m`), so its event may lie that much earlier.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._log_time import MONTHS, Stamp, full_stamp, time_ns

CLUSTER_WORDS = ("lastTimestamp", "eventTime", "finishedAt", "Finished: ", "LAST SEEN", "Reason  ")
_NEAR = 8  # lines within which a stamp is of the same event
_ABOVE = 5  # lines above a table in which its time is looked for
_SECONDS = {"d": 86_400, "h": 3600, "m": 60, "s": 1}

# In RE2 syntax, to find lines.
_LINES = (
    r"^\s*(?:- )?\"?(?:lastTimestamp|eventTime|finishedAt|deletionTimestamp)\"?: |^\s*Finished: "
    r"|^\s*(?:- (?:\w|\")|[{]|-{3}$)|^LAST SEEN +TYPE|^ +Type +Reason +Age "
    r"|^(?:\d+[dhms])+ |^ +(?:Normal|Warning) +\S+ +(?:\d+[dhms])+ "
)
_STAMP = re.compile(
    r"\s*(?:- )?\"?(?:lastTimestamp|eventTime|finishedAt|deletionTimestamp)\"?: \"?"
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)"
)
_FINISHED = re.compile(
    r"\s*Finished: +[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) ([+-]\d{4})"
)
_BEGINS = re.compile(r"\s*(?:- (?:\w|\")|[{]|-{3}$)")
_TABLE = re.compile(r"LAST SEEN +TYPE| +Type +Reason +Age ")
_AGE = re.compile(r"(?: +(?:Normal|Warning) +\S+ +)?((?:\d{1,6}[dhms]){1,4})(?: |$)")
_PRINTED = re.compile(r"(?<!\d)(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")


class ClusterTimes:
    """Feed it the blocks of a log that Kubernetes may speak in."""

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._stamps: list[Stamp | None] = []  # None: another object begins
        self._ages: dict[int, Stamp] = {}
        self.error_ns = 0  # how much earlier an event may lie than its age says

    def read(self, pieces: pa.Array, numbers: Callable[[pa.Array], pa.Array]) -> None:
        places = pc.indices_nonzero(pc.match_substring_regex(pieces, _LINES))
        base: Stamp | None = None
        for place, number in zip(places.to_pylist(), numbers(places).to_pylist(), strict=True):
            text = pieces[place].as_py().decode("utf-8", "replace")
            if _TABLE.match(text):
                above = [pieces[i].as_py().decode("utf-8", "replace") for i in range(max(place - _ABOVE, 0), place)]
                base = _printed(above)
            elif (m := _AGE.match(text)) is not None:
                self._note_age(m[1], number, base)
            elif (stamp := _stamp_of(text)) is not None:
                self._lines.append(number)
                self._stamps.append(stamp)
            elif _BEGINS.match(text):
                self._lines.append(number)
                self._stamps.append(None)

    def _note_age(self, age: str, number: int, base: Stamp | None) -> None:
        if base is None:
            return
        parts = re.findall(r"(\d+)([dhms])", age)
        seconds = sum(int(n) * _SECONDS[unit] for n, unit in parts)
        self._ages[number] = base._replace(ns=base.ns - seconds * 10**9)
        self.error_ns = max(self.error_ns, _SECONDS[parts[-1][1]] * 10**9)

    def stamp_of(self, line: int) -> Stamp | None:
        """The time of what stands on a line, where one is told nearby for the same object."""
        if line in self._ages:
            return self._ages[line]
        place = bisect_left(self._lines, line + 1)
        found: list[tuple[int, Stamp]] = []
        for order in (range(place - 1, -1, -1), range(place, len(self._lines))):
            for at in order:
                stamp, distance = self._stamps[at], abs(self._lines[at] - line)
                if distance > _NEAR or (stamp is None and self._lines[at] > line):
                    break
                if stamp is not None:
                    found.append((distance, stamp))
                if stamp is None or (found and found[-1][0] == distance):
                    break
        return min(found, key=lambda item: item[0])[1] if found else None


def _stamp_of(text: str) -> Stamp | None:
    if m := _STAMP.match(text):
        return full_stamp(int(m[1]), int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7]), m[8])
    m = _FINISHED.match(text)
    if m is None or m[2] not in MONTHS:
        return None
    return full_stamp(int(m[3]), MONTHS[m[2]], int(m[1]), time_ns(m[4], m[5], m[6], None), m[7])


def _printed(lines: list[str]) -> Stamp | None:
    """When a table was printed, as the nearest line above tells."""
    for line in reversed(lines):
        if m := _PRINTED.search(line):
            return full_stamp(int(m[1]), int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7]), m[8])
    return None
