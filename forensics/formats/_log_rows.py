"""Collects the events of one log, in file order, and hands them to the sink in batches."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._log_fields import Value

BATCH = 8192
MAX_PENDING = 40_000
MAX_EVENTS = 200_000
MAX_SAME = 5_000  # events of one signature of one process
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


class EventRows:
    """`steps`: the last step that each process has told so far. A failure of a process that went on with later steps
    says how many these were: `later_steps` (where nothing tells writers apart, steps of whoever wrote)."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.steps: Mapping[int, int] = {}
        self._pending: list[Event] = []
        self._row = 0
        self._same: Counter[tuple[int, str]] = Counter()
        self._signatures: set[str | None] = set()
        self._full: dict[int, set[str]] = {}
        self.n_full = 0  # signatures of processes of which no more rows are kept
        self.kept: Counter[int] = Counter()
        self.n_dropped = 0

    def add(self, event: Event) -> None:
        key = (event.proc, event.signature or event.cls or "")
        self._same[key] += 1
        self._signatures.add(event.signature)
        if self._same[key] > MAX_SAME or self._row + len(self._pending) >= MAX_EVENTS:
            full = self._full.setdefault(event.proc, set())
            self.n_full += key[1] not in full
            full.add(key[1])
            self.n_dropped += 1
            return
        self.kept[event.proc] += 1
        self._pending.append(event)

    def full(self, proc: int) -> frozenset[str] | set[str]:
        """Signatures of which no more rows of a process are kept."""
        return self._full.get(proc, _NONE)

    def holds(self, proc: int | None, signature: str | None) -> bool:
        """Whether the process (None: any) has a row of a signature already."""
        if proc is None:
            return signature in self._signatures
        return signature is not None and (proc, signature) in self._same

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
