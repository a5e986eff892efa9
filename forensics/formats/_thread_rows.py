"""Builds rows of `thread_state` with their stacks and lines, with bounded memory.

`thread` is the operating system's id, then the name, each where known: `2703 MainThread`. States: `running`; `waiting`;
`holding-gil`; `waiting-with-gil` (waits, and keeps every other Python thread waiting); `stopped` (by a signal or a
debugger of the job's own); `crashed` (the thread that a fatal signal or error met); `exited`; NULL where a dump does
not tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._text_lines import clean_text
from forensics.formats._wait_reason import Wait

MAX_THREADS = 200_000
MAX_FRAMES = 512  # of one stack: the first and last 256 of a deeper one
_MAX_ALL_FRAMES = 1_000_000
_MAX_TEXT = 400
_BATCH = 20_000
_MAX_LINE_NUMBER = (1 << 31) - 1

_TYPES: dict[str, pa.DataType] = {
    "row": pa.int64(),
    "proc": pa.int32(),
    "ts_ns": pa.int64(),
    "thread": pa.string(),
    "state": pa.string(),
    "wait_kind": pa.string(),
    "wait_on": pa.string(),
    "stack_id": pa.uint64(),
}


class ThreadRows:
    """Collects threads in the order of the artifact; `kept` counts them by process."""

    def __init__(self, sink: Sink, stacks: Stacks | None = None) -> None:
        """`stacks`: those of the whole artifact, which the caller then emits itself."""
        self._sink = sink
        self._own_stacks = stacks is None
        self._stacks = Stacks() if stacks is None else stacks
        self._rows: list[dict[str, Any]] = []
        self._lines: list[tuple[int, int]] = []
        self._n_frames = 0
        self._row = 0
        self.kept: Counter[int] = Counter()
        self.n_dropped = 0
        self.n_without_stack = 0

    def add(
        self,
        thread: str,
        *,
        line: int | None,
        proc: int = 0,
        state: str | None = None,
        wait: Wait | None = None,
        frames: Sequence[Frame] = (),
        ts_ns: int | None = None,
    ) -> None:
        """One thread. `frames`: innermost first, as dumps have them."""
        if self._row >= MAX_THREADS:
            self.n_dropped += 1
            return
        row = {
            "row": self._row,
            "proc": proc,
            "ts_ns": ts_ns,
            "thread": stored(thread),
            "state": state,
            "wait_kind": wait.kind if wait else None,
            "wait_on": stored(wait.on) if wait and wait.on else None,
            "stack_id": self._stack_id(frames),
        }
        self._rows.append(row)
        if line is not None:
            self._lines.append((self._row, line))
        self.kept[proc] += 1
        self._row += 1
        if len(self._rows) >= _BATCH:
            self._flush()

    def _stack_id(self, frames: Sequence[Frame]) -> int | None:
        if self._n_frames >= _MAX_ALL_FRAMES:
            self.n_without_stack += bool(frames)
            return None
        self._n_frames += len(frames)
        half = MAX_FRAMES // 2
        chosen = frames if len(frames) <= MAX_FRAMES else [*frames[:half], *frames[-half:]]
        return self._stacks.add(_storable(frame) for frame in reversed(chosen))

    def _flush(self) -> None:
        if not self._rows:
            return
        columns = {name: pa.array([row[name] for row in self._rows], kind) for name, kind in _TYPES.items()}
        self._sink.emit("thread_state", pa.table(columns))
        places = {
            "table": pa.array(["thread_state"] * len(self._lines), pa.string()),
            "row": pa.array([row for row, _ in self._lines], pa.int64()),
            "line": pa.array([line for _, line in self._lines], pa.int64()),
        }
        if self._lines:
            self._sink.emit("position", pa.table(places))
        self._rows, self._lines = [], []

    def close(self) -> None:
        """Hands over what is left, and says what was too much."""
        self._flush()
        if self._own_stacks and self._n_frames:
            self._sink.emit("stack", self._stacks.table())
        if self.n_dropped:
            self._sink.warn(
                "too-many-threads", f"{self.n_dropped} further threads were counted, not kept", "what they waited for"
            )
        if self.n_without_stack:
            self._sink.warn(
                "too-many-frames", f"{self.n_without_stack} stacks were not kept", "where those threads stood"
            )


def stored(text: str) -> str:
    return clean_text(text[:_MAX_TEXT])


def _storable(frame: Frame) -> Frame:
    line = frame.line if frame.line is not None and 0 <= frame.line <= _MAX_LINE_NUMBER else None
    return Frame(stored(frame.function), stored(frame.file) if frame.file else None, line)
