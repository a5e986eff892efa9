"""Collects the events of one log, in file order, and hands them to the sink in batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._log_fields import Value

BATCH = 8192
MAX_PENDING = 40_000
MAX_EVENTS = 200_000
# Rows of one signature of one process, and of all, above which some are kept of each kind and process. In the last
# part of a log bounds hold anew: what begins a flood and what ends the log is kept.
MAX_SAME = 1_000
MAX_OF_ALL = 20_000
MAX_OF_EACH = 10
_MAX_LAST = 20_000  # rows of the last part above MAX_EVENTS
_MAX_REPEATS = 20_000
_MAX_EXCEPTIONS = 256  # types that are counted each for itself
_REPEATED_CHARACTERS = 2_000
_FAILURES = {"primary", "symptom", "secondary"}
_NONE: frozenset[str] = frozenset()


@dataclass(slots=True)
class Event:
    proc: int
    line: int
    byte: int | None
    ts_ns: int | None
    step: int | None
    source: str
    level: str | None
    signature: str | None
    cls: str | None
    role: str
    exception: str | None = None
    message: str | None = None
    stack_id: int | None = None
    fields: dict[str, Value] = field(default_factory=dict)
    kind: str = ""  # under which it is counted


@dataclass(slots=True)
class Repeats:
    """Events that one row stands for: the first of them, how many they are, and the line of the last."""

    event: Event
    n: int
    last_line: int


@dataclass
class _Part:
    """What was counted in a part of a log, the first line of which is `first_line`."""

    first_line: int
    bound: int
    of_kind: Counter[tuple[int, str]] = field(default_factory=Counter)
    of_name: Counter[tuple[int, str]] = field(default_factory=Counter)  # signature, or class where no entry names it
    of_all: Counter[str] = field(default_factory=Counter)
    full: dict[int, set[str]] = field(default_factory=dict)
    repeats: dict[tuple[int, str], Repeats] = field(default_factory=dict)

    def takes(self, proc: int, kind: str, name: str, n_rows: int) -> bool:
        """Whether one more row of a kind is kept; if so, counts it."""
        many = self.of_name[proc, name] >= MAX_SAME or self.of_all[name] >= MAX_OF_ALL
        if n_rows >= self.bound or (many and self.of_kind[proc, kind] >= MAX_OF_EACH):
            return False
        self.of_kind[proc, kind] += 1
        self.of_name[proc, name] += 1
        self.of_all[name] += 1
        return True


class EventRows:
    """`steps`: the last step that each process has told so far. A failure of a process that went on with later steps
    says how many these were: `later_steps` (where nothing tells writers apart, steps of whoever wrote)."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.steps: Mapping[int, int] = {}
        self._pending: list[Event] = []
        self._row = 0
        self._parts = [_Part(0, MAX_EVENTS)]
        self._said: set[tuple[int | None, str | None]] = set()
        self._exceptions: set[str] = set()
        self.n_full = 0  # grows with what is counted only
        self.kept: Counter[int] = Counter()
        self.n_dropped = 0

    def add(self, event: Event) -> None:
        name = event.signature or event.cls or ""
        kind = event.kind or name
        part = self._part(event.line)
        self._said.add((event.proc, event.signature))
        self._said.add((None, event.signature))
        if kind in part.full.get(event.proc, _NONE):
            self.drop(event.proc, (kind,), event.line)
        elif part.takes(event.proc, kind, name, self._row + len(self._pending)):
            self.kept[event.proc] += 1
            self._pending.append(event)
        else:
            part.full.setdefault(event.proc, set()).add(kind)
            self.n_full += 1
            if len(part.repeats) < _MAX_REPEATS:
                event.message = event.message and event.message[:_REPEATED_CHARACTERS]
                part.repeats[event.proc, kind] = Repeats(event, 1, event.line)
            else:
                self.n_dropped += 1

    def drop(self, proc: int, kinds: Iterable[str], line: int, n: int = 1) -> None:
        """Counts events of which no rows are kept, up to a line."""
        repeated = self._part(line).repeats
        for kind in kinds:
            self.n_dropped += n
            if repeats := repeated.get((proc, kind)):
                repeats.n += n
                repeats.last_line = max(repeats.last_line, line)

    def full(self, proc: int, line: int | None = None) -> frozenset[str] | set[str]:
        """Kinds of which no more rows of a process are kept, at a line or (None) from now on."""
        part = self._parts[-1] if line is None else self._part(line)
        return part.full.get(proc, _NONE)

    def _part(self, line: int) -> _Part:
        return self._parts[-1] if line >= self._parts[-1].first_line else self._parts[0]

    def exception_kind(self, cls: str, exception: str) -> str:
        """The kind of an exception that no entry names."""
        name = exception.rsplit(".", 1)[-1][:80]
        if name not in self._exceptions and len(self._exceptions) < _MAX_EXCEPTIONS:
            self._exceptions.add(name)
        return f"{cls}:{name}" if name in self._exceptions else cls

    def holds(self, proc: int | None, signature: str | None) -> bool:
        """Whether the process (None: any) has a row of a signature already."""
        return (proc, signature) in self._said and (proc is None or signature is not None)

    def begin_last_part(self, first_line: int) -> None:
        """From that line on the bounds hold anew."""
        self._parts.append(_Part(first_line, MAX_EVENTS + _MAX_LAST))
        self.n_full += 1

    def _end_repeats(self) -> None:
        for repeats in (repeats for part in self._parts for repeats in part.repeats.values()):
            if repeats.n > 1:
                repeats.event.fields.update(n_repeats=repeats.n, last_line=repeats.last_line)
            self.kept[repeats.event.proc] += 1
            self._pending.append(repeats.event)

    def settle(self, before_line: int | None, *, held: bool = False) -> None:
        """Hands over rows of lines before `before_line` (None: all), once they are many. `held`: a verdict may come."""
        limit = MAX_PENDING if held or before_line is not None else BATCH
        if len(self._pending) < limit:
            return
        self._pending.sort(key=lambda event: event.line)
        cut = len(self._pending)
        if before_line is not None and len(self._pending) < 2 * MAX_PENDING:
            cut = next((i for i, event in enumerate(self._pending) if event.line >= before_line), cut)
        self._emit(self._pending[:cut])
        del self._pending[:cut]

    def close(self) -> None:
        self._end_repeats()
        self._pending.sort(key=lambda event: event.line)
        self._emit(self._pending)
        self._pending = []

    def mark_noise(self, from_line: int, context: str) -> None:
        """Says of pending rows from a line on that they were expected."""
        for event in self._pending:
            if event.line >= from_line:
                event.role = "noise"
                event.fields["context"] = context

    def _note_later_steps(self, event: Event) -> None:
        last = self.steps.get(event.proc)
        if event.role in _FAILURES and event.step is not None and last is not None and last > event.step:
            event.fields["later_steps"] = last - event.step

    def _emit(self, events: list[Event]) -> None:
        if not events:
            return
        for event in events:
            self._note_later_steps(event)
        columns: dict[str, Any] = {
            "row": pa.array(range(self._row, self._row + len(events)), pa.int64()),
            "proc": pa.array([e.proc for e in events], pa.int32()),
            "step": pa.array([e.step for e in events], pa.int64()),
            "ts_ns": pa.array([e.ts_ns for e in events], pa.int64()),
            "line": pa.array([e.line for e in events], pa.int64()),
            "byte": pa.array([e.byte for e in events], pa.int64()),
            "source": pa.array([e.source for e in events], pa.string()),
            "level": pa.array([e.level for e in events], pa.string()),
            "signature": pa.array([e.signature for e in events], pa.string()),
            "class": pa.array([e.cls for e in events], pa.string()),
            "role": pa.array([e.role for e in events], pa.string()),
            "exception": pa.array([e.exception for e in events], pa.string()),
            "message": pa.array([e.message for e in events], pa.string()),
            "stack_id": pa.array([e.stack_id for e in events], pa.uint64()),
            "fields": pa.array([json.dumps(e.fields) if e.fields else None for e in events], pa.string()),
        }
        self._sink.emit("log_event", pa.table(columns))
        self._row += len(events)
