"""The critical path of each device of each trace: what decided, instant by instant, when its work was done.

Reads slice, string, device_time; writes critical_path. From the end of the last work the path goes back in time. Work
started when the work before it on its stream ended, where it had been launched by then; when another stream's work
ended, where it stood queued up to that moment; else when it was launched. Before a launch the path runs on the host, up
to the last call that waited for the device, and from there on in the work that this call waited for. So its stretches
touch each other: their sum is the time from the first launch to the end, to the nanosecond.

A launch that returns no sooner than its own work ends (a copy to pageable memory) counts as a wait. Waits of all
threads of the process count, since a thread may launch what another one waited for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

import duckdb

from forensics.models.intervals import START_DELAY_NS, list_work_and_waits

MAX_WORK = 2_000_000  # of one device; about 10 s
# An idle device starts what is launched within some ten us; what waits longer, and starts as other work ends, had to.
LATENCY_NS = 30_000

_WORK = """
SELECT w.row, w.from_ns, w.to_ns, w.stream, w.class, w.name_id, l.row, l.ts_ns, l.ts_ns + l.dur_ns
FROM interval_work AS w
LEFT JOIN slice AS l ON l.artifact_id = w.artifact_id AND l.row = w.launch_row
WHERE w.artifact_id = $artifact AND w.proc_id IS NOT DISTINCT FROM $proc AND w.device = $device
ORDER BY w.from_ns, w.row
"""
_HOST_WAITS = """
SELECT what, from_ns, to_ns FROM interval_wait
WHERE artifact_id = $artifact AND proc_id IS NOT DISTINCT FROM $proc ORDER BY from_ns, to_ns
"""


@dataclass(frozen=True)
class Work:
    """Work of a device; times in ns. `launched_ns`, `returned_ns`: begin and end of the call that launched it."""

    row: int
    from_ns: int
    to_ns: int
    stream: int | None
    kind: str
    name_id: int | None
    launch_row: int | None
    launched_ns: int | None
    returned_ns: int | None


@dataclass(frozen=True)
class Stretch:
    """`row`: the work, or the call that launched the work after it; None where none is recorded."""

    kind: str  # compute | communication | copy | queue | launch | return | host | unknown
    from_ns: int
    to_ns: int
    row: int | None
    name_id: int | None = None


class Walk:
    """The way back through the work of one device, in the order of `from_ns`, and the calls that waited for it.

    It ends at `start_ns`, or else at the first launch.
    """

    def __init__(self, work: Sequence[Work], waits: Sequence[tuple[int, int]], start_ns: int | None = None) -> None:
        self._ends = sorted((w.to_ns, number) for number, w in enumerate(work))
        self._work = work
        self._before: list[int | None] = []
        last: dict[int | None, int] = {}
        for number, one in enumerate(work):
            self._before.append(last.get(one.stream))
            last[one.stream] = number
        blocking = [
            (w.launched_ns, w.returned_ns)
            for w in work
            if w.launched_ns is not None and w.returned_ns is not None and w.returned_ns >= w.to_ns
        ]
        waited = (
            (to_ns, found) for from_ns, to_ns in {*waits, *blocking} if (found := self._waited_for(from_ns, to_ns))
        )
        self._waits = sorted(waited)
        launches = [w.launched_ns for w in work if w.launched_ns is not None]
        self._start = min([work[0].from_ns, *launches] if start_ns is None else [work[0].from_ns, start_ns])

    def back(self, end_ns: int | None = None) -> Iterator[Stretch]:
        """The stretches from the last one on; they end at `end_ns`, where the host is later than the device."""
        number: int | None = self._ends[-1][1]
        assert number is not None
        at = self._work[number].to_ns
        if end_ns is not None and end_ns > at:
            number, at = yield from self._on_host(end_ns, None)
        while number is not None:
            one = self._work[number]
            if at > one.from_ns:
                yield Stretch(one.kind, one.from_ns, at, one.row, one.name_id)
            number, at = yield from self._before_start(number, min(at, one.from_ns))

    def _before_start(self, number: int, at: int) -> Generator[Stretch, None, tuple[int | None, int]]:
        """What the work waited for before `at`: other work (its number), or the host and then what that waited for."""
        one = self._work[number]
        before, other = self._before[number], self._ended(at, number)
        ready = (
            None if one.launched_ns is None else min(one.launched_ns, at)
        )  # clocks of host and device differ a little
        if ready is None or (before is not None and self._work[before].to_ns >= ready):
            chosen = before
            if chosen is None or at - self._work[chosen].to_ns > START_DELAY_NS:
                is_near = other is not None and at - self._work[other].to_ns <= START_DELAY_NS
                chosen = other if is_near or chosen is None else chosen
        else:
            stood = at - ready > LATENCY_NS and other is not None and at - self._work[other].to_ns <= START_DELAY_NS
            chosen = other if stood and other is not None and self._work[other].to_ns > ready else None
            if chosen is None:
                if ready < at:
                    yield Stretch("launch", ready, at, one.launch_row)
                return (yield from self._on_host(ready, one.launch_row))
        if chosen is None:
            return None, at
        ended = self._work[chosen].to_ns
        if ended < at:
            yield Stretch("unknown" if ready is None else "queue", ended, at, one.row)
        return chosen, min(at, ended)

    def _ended(self, at: int, beside: int) -> int | None:
        """The work that ended last up to `at`, without that one."""
        place = bisect_right(self._ends, (at, len(self._work))) - 1
        return self._ends[place][1] if place >= 0 and self._ends[place][1] != beside else None

    def _waited_for(self, from_ns: int, to_ns: int) -> tuple[int, int] | None:
        """End and number of the work that ended last within a call; None where the call did not wait for any."""
        place = bisect_right(self._ends, (to_ns, len(self._work))) - 1
        return self._ends[place] if place >= 0 and self._ends[place][0] > from_ns else None

    def _on_host(self, at: int, row: int | None) -> Generator[Stretch, None, tuple[int | None, int]]:
        place = bisect_right(self._waits, at, key=itemgetter(0)) - 1
        returned, (ended, number) = self._waits[place] if place >= 0 else (self._start, (self._start, None))
        if at > returned:
            yield Stretch("host", returned, at, row)
        if returned > ended:
            yield Stretch("return", ended, returned, row)
        return number, ended


def derive_critical_paths(con: duckdb.DuckDBPyConnection) -> None:
    devices = (
        "SELECT artifact_id, proc_id, device FROM device_time WHERE n_work <= ? ORDER BY artifact_id, proc_id, device"
    )
    found = con.execute(devices, [MAX_WORK]).fetchall()
    if not found:
        return
    list_work_and_waits(con)
    for of in found:
        _insert(con, of, path_of(con, *of))
    con.execute("DROP TABLE interval_work")
    con.execute("DROP TABLE interval_wait")


def path_of(con: duckdb.DuckDBPyConnection, artifact: int, proc: int | None, device: int) -> list[Stretch]:
    """The critical path of one device from its end on; needs the tables of list_work_and_waits."""
    work, waits = read_work(con, artifact, proc, device), read_waits(con, artifact, proc)
    path = list(Walk(work, waits["sync"]).back()) if work else []
    for what in ("input", "allocation"):
        path = _told_apart(path, what, waits[what])
    return path


def read_work(con: duckdb.DuckDBPyConnection, artifact: int, proc: int | None, device: int) -> list[Work]:
    """Work of one device in the order in which it began; needs the tables of list_work_and_waits."""
    known = {"artifact": artifact, "proc": proc, "device": device}
    return [Work(*row) for row in con.execute(_WORK, known).fetchall()]


def read_waits(
    con: duckdb.DuckDBPyConnection, artifact: int, proc: int | None
) -> defaultdict[str, list[tuple[int, int]]]:
    """Begin and end (ns) of the host's waits by what they wait for: sync, input, allocation; as read_work."""
    waits: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for what, from_ns, to_ns in con.execute(_HOST_WAITS, {"artifact": artifact, "proc": proc}).fetchall():
        waits[what].append((from_ns, to_ns))
    return waits


def _told_apart(path: Sequence[Stretch], what: str, spans: Sequence[tuple[int, int]]) -> list[Stretch]:
    """The path with host stretches divided: first what lies in one of the spans, then the rest of it."""
    if not spans:
        return list(path)
    begins: list[int] = []
    ends: list[int] = []
    for from_ns, to_ns in spans:  # joined where they overlap
        if ends and from_ns <= ends[-1]:
            ends[-1] = max(ends[-1], to_ns)
        else:
            begins.append(from_ns)
            ends.append(to_ns)
    covered = [0, *accumulate(end - begin for begin, end in zip(begins, ends, strict=True))]

    def upto(at: int) -> int:
        place = bisect_right(begins, at) - 1
        return covered[place] + min(at, ends[place]) - begins[place] if place >= 0 else 0

    found = []
    for one in path:
        inside = upto(one.to_ns) - upto(one.from_ns) if one.kind == "host" else 0
        if inside:
            found.append(Stretch(what, one.from_ns, one.from_ns + inside, one.row))
        if one.to_ns - one.from_ns > inside:
            found.append(Stretch(one.kind, one.from_ns + inside, one.to_ns, one.row, one.name_id))
    return found


def _insert(con: duckdb.DuckDBPyConnection, of: tuple[int, int | None, int], path: Sequence[Stretch]) -> None:
    groups: dict[tuple[str, int | None], list[Stretch]] = defaultdict(list)
    for one in path:
        groups[one.kind, one.name_id].append(one)
    rows = []
    for (kind, name_id), parts in groups.items():
        longest = max(parts, key=lambda part: (part.to_ns - part.from_ns, -part.from_ns))
        total = sum(part.to_ns - part.from_ns for part in parts)
        rows.append((*of, kind, longest.row, name_id, len(parts), total, longest.to_ns - longest.from_ns))
    rows.sort(key=lambda row: (row[3], -row[7], row[5] or 0))
    if not rows:
        return
    con.executemany(
        "INSERT INTO critical_path"
        " (artifact_id, proc_id, device, kind, row, name_id, n_stretches, total_ns, longest_ns)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        rows,
    )
