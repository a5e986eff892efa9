"""The allocator's history out of a CUDA memory snapshot: events, stacks, steps, and where the history begins.

Times are microseconds since the Unix epoch in the file (0 or absent before PyTorch 2.1), nanoseconds here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import pyarrow as pa

from forensics.artifact import Frame, Stacks
from forensics.formats._columns import MAX_INT64, MAX_UINT64, Columns, clean_text

ACTIONS = {"alloc", "free_requested", "free_completed", "snapshot", "oom", "annotate"}
ACTIONS |= {"segment_alloc", "segment_free", "segment_map", "segment_unmap"}
EVENT_KEYS = {"action", "addr", "size", "stream", "time_us", "frames", "device_free", "pool_id", "category", "version"}
EVENT_KEYS |= {"compile_context", "user_metadata", "forward_frames"}
_MAX_FRAMES = 4096
_MAX_SIMILAR = 64
_STEP_NAMES = (
    ("profiler", re.compile(r"ProfilerStep#(\d{1,18})")),
    ("annotation", re.compile(r"(?:train(?:ing)?|global)?[ _]?(?:step|iter|iteration)[ _#:]{0,2}(\d{1,18})", re.I)),
)


class StackIds:
    """Ids of frame lists. Lists and frames are shared within a snapshot, so both are known again by identity.

    Valid only while the snapshot is alive.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._lists: dict[int, int | None] = {}
        self._similar: dict[tuple[int, ...], list[tuple[list[Any], int | None]]] = {}
        self._frames: dict[int, Frame] = {}

    def of(self, frames: Any) -> int | None:
        if type(frames) is not list or not frames:
            return None
        if id(frames) in self._lists:
            return self._lists[id(frames)]
        # Each event may have a list of its own of the same frames. Comparing identities takes a third of the time of
        # hashing them, and never looks into them.
        n = len(frames)
        similar = self._similar.setdefault((n, id(frames[0]), id(frames[n // 2]), id(frames[-1])), [])
        for known, stack in similar:
            if all(map(is_, known, frames)):
                self._lists[id(frames)] = stack
                return stack
        # Snapshots have the innermost frame first.
        found = self._stacks.add([self._frame(f) for f in reversed(frames[:_MAX_FRAMES])])
        if len(similar) < _MAX_SIMILAR:
            similar.append((frames, found))
        self._lists[id(frames)] = found
        return found

    def of_all(self, lists: Sequence[Any]) -> list[int | None]:
        identities = list(map(id, lists))
        known = {identity: self.of(frames) for identity, frames in dict(zip(identities, lists, strict=True)).items()}
        return [known[identity] for identity in identities]

    def _frame(self, raw: Any) -> Frame:
        frame = self._frames.get(id(raw))
        if frame is None:
            frame = self._frames[id(raw)] = _frame(raw)
        return frame


def _frame(raw: Any) -> Frame:
    if type(raw) is str:
        return Frame(clean_text(raw))
    if type(raw) is not dict:
        return Frame("??")
    name, file, line = raw.get("name"), raw.get("filename"), raw.get("line")
    return Frame(
        clean_text(name) if type(name) is str and name else "??",
        clean_text(file) if type(file) is str and file not in ("", "??") else None,  # C++ frames have neither
        line if type(line) is int and 0 < line < 1 << 31 else None,
    )


@dataclass(frozen=True)
class Step:
    number: int
    start_ns: int
    end_ns: int | None
    origin: str


def find_steps(annotations: Any) -> list[Step]:
    """Steps by their start, from record_function marks; those of the profiler win over those named like a step."""
    marks: dict[str, list[tuple[int, int, bool]]] = {}
    for mark in annotations if type(annotations) is list else []:
        if type(mark) is not dict:
            continue
        name, stage, time_us = mark.get("name"), mark.get("stage"), mark.get("time_us")
        # END marks at time 0 have been seen.
        if type(name) is not str or type(time_us) is not int or not 0 < time_us <= MAX_INT64 // 1000:
            continue
        for origin, pattern in _STEP_NAMES:
            if (match := pattern.fullmatch(name)) and stage in ("START", "END"):
                marks.setdefault(origin, []).append((time_us * 1000, int(match[1]), stage == "END"))
                break
    for origin, _ in _STEP_NAMES:
        if origin in marks:
            return _joined_steps(sorted(marks[origin]), origin)
    return []


def _joined_steps(marks: list[tuple[int, int, bool]], origin: str) -> list[Step]:
    open_since: dict[int, list[int]] = {}
    steps: list[Step] = []
    for ts_ns, number, is_end in marks:
        starts = open_since.setdefault(number, [])
        if not is_end:
            starts.append(ts_ns)
        elif len(starts) == 1:
            steps.append(Step(number, starts.pop(), ts_ns, origin))
        elif starts:  # marked once per device or thread: the outermost pair counts
            starts.pop()
    steps += [Step(number, starts[0], None, origin) for number, starts in open_since.items() if starts]
    return sorted(steps, key=lambda s: (s.start_ns, s.number))


def step_table(steps: list[Step]) -> pa.Table:
    """Rows of step."""
    return pa.table(
        {
            "step": pa.array([s.number for s in steps], pa.int64()),
            "start_ns": pa.array([s.start_ns for s in steps], pa.int64()),
            "end_ns": pa.array([s.end_ns for s in steps], pa.int64()),
            "origin": pa.array([s.origin for s in steps], pa.string()),
        }
    )


def steps_at(steps: list[Step], times: Sequence[int | None]) -> list[int | None]:
    """Number of the step in which each time lies; a step without an end lasts until the next."""
    starts = [s.start_ns for s in steps]
    found: list[int | None] = []
    for ts_ns in times:
        step = steps[bisect_right(starts, ts_ns) - 1] if ts_ns is not None and ts_ns >= starts[0] else None
        inside = step is not None and ts_ns is not None and (step.end_ns is None or ts_ns <= step.end_ns)
        found.append(step.number if step is not None and inside else None)
    return found


@dataclass
class History:
    """What the events of one device tell about its blocks."""

    device: int
    n_events: int = 0
    n_kept: int = 0
    keys: set[str] = field(default_factory=set)
    times: Sequence[int | None] = ()
    sizes: Sequence[int | None] = ()
    stacks: Sequence[int | None] = ()
    categories: Sequence[Any] = ()
    alive: dict[int, int] = field(default_factory=dict)  # address → index of the allocation that lives there
    n_stray: int = 0  # events that end something whose beginning is not in the history
    mapped: list[tuple[int, int]] = field(default_factory=list)  # address ranges obtained from the driver
    ooms: list[int | None] = field(default_factory=list)  # their times

    @cached_property
    def span(self) -> tuple[int | None, int | None]:
        known = [t for t in self.times if t is not None]
        return (min(known), max(known)) if known else (None, None)

    def holds_start_of(self, addr: int) -> bool:
        at = bisect_right(self.mapped, (addr, MAX_UINT64 + 1)) - 1
        return at >= 0 and self.mapped[at][0] <= addr < self.mapped[at][1]


def read_events(
    device: int, trace: list[Any], first_row: int, *, steps: list[Step], ids: StackIds, columns: Columns
) -> tuple[pa.Table, History]:
    """Rows of memory_event out of the entries of one device, and what they tell."""
    events = [e for e in trace if type(e) is dict and type(e.get("action")) is str and e["action"] in ACTIONS]
    rows: Iterable[int] = range(first_row, first_row + len(trace))
    if len(events) < len(trace):
        columns.bad["event.action"] += len(trace) - len(events)
        kept = set(map(id, events))
        rows = [first_row + i for i, e in enumerate(trace) if id(e) in kept]
    history = History(device, len(trace), len(events), set(chain.from_iterable(events)))
    fields = _fields(events, history.keys)
    micros = columns.wholes("event.time_us", fields["time_us"], high=MAX_INT64 // 1000)
    history.times = [t * 1000 if t else None for t in micros]
    history.sizes = columns.wholes("event.size", fields["size"])
    history.stacks = ids.of_all(fields["frames"])
    history.categories = fields.get("category", ())
    addrs = columns.wholes("event.addr", fields["addr"], high=MAX_UINT64)
    _follow(history, fields["action"], addrs)
    table = {
        "row": pa.array(rows, pa.int64()),
        "ts_ns": pa.array(history.times, pa.int64()),
        "device": pa.repeat(pa.scalar(device, pa.int32()), len(events)),
        "stream": pa.array(columns.wholes("event.stream", fields["stream"], high=MAX_UINT64), pa.uint64()),
        "action": pa.array(fields["action"], pa.string()),
        "addr": pa.array(addrs, pa.uint64()),
        "size_bytes": pa.array(history.sizes, pa.int64()),
        "stack_id": pa.array(history.stacks, pa.uint64()),
    }
    if steps:
        table["step"] = pa.array(steps_at(steps, history.times), pa.int64())
    if "pool_id" in history.keys:
        table["pool_id"] = columns.pairs("event.pool_id", fields["pool_id"])
    if "device_free" in fields:
        free = columns.wholes("event.device_free", fields["device_free"])
        table["device_free_bytes"] = pa.array(free, pa.int64())
    return pa.table(table), history


def _fields(events: list[dict[str, Any]], keys: set[str]) -> dict[str, Sequence[Any]]:
    """Values by key, None where absent. One pass over the events: they lie far apart in memory."""
    usual = ("action", "addr", "size", "stream", "time_us", "frames", "pool_id")
    try:
        values = list(map(itemgetter(*usual), events))
    except KeyError:
        values = [tuple(map(e.get, usual)) for e in events]
    columns: Iterable[Sequence[Any]] = zip(*values, strict=True) if values else [()] * len(usual)
    fields = dict(zip(usual, columns, strict=True))
    for key in keys.intersection(("device_free", "category")):
        fields[key] = [e.get(key) for e in events]
    return fields


def _follow(history: History, actions: Sequence[str], addrs: Sequence[int | None]) -> None:
    """Follows blocks and segments through the events."""
    alive: dict[int, int] = history.alive
    mapped: dict[int, int] = {}
    n_stray = 0
    for index, (action, addr) in enumerate(zip(actions, addrs, strict=True)):
        if action == "oom":
            history.ooms.append(history.times[index])
        elif addr is None:
            continue
        elif action == "alloc":
            alive[addr] = index
        elif action == "free_completed":
            if alive.pop(addr, None) is None:
                n_stray += 1
        elif action in ("segment_alloc", "segment_map"):
            mapped[addr] = max(mapped.get(addr, 0), addr + (history.sizes[index] or 0))
        elif action == "segment_free" and addr not in mapped:
            n_stray += 1
    history.n_stray = n_stray
    for addr, end in sorted(mapped.items()):
        if history.mapped and addr <= history.mapped[-1][1]:
            start, known_end = history.mapped[-1]
            history.mapped[-1] = (start, max(end, known_end))
        else:
            history.mapped.append((addr, end))
