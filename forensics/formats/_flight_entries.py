"""Entries of a flight recorder dump as rows of `collective`.

Unstated by the dump: entries number groups by a counter of the process (`pg_id`) and name them (`process_group`); a
point-to-point name such as `nccl:recv 3<-0` counts ranks within the group; the JSON form writes 0 for "never".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._collective_names import ITEM_BYTES, operation_name
from forensics.formats._columns import Columns, clean_text
from forensics.formats._lenient_json import as_float

MAX_FRAMES = 500
MAX_SHAPES = 1024  # of one operation's inputs or outputs; coalesced operations have hundreds
MAX_DIMENSIONS = 64
_MAX_SECONDS = 1 << 33
_MAX_SHAPES_TEXT = 4000
_BATCH_ROWS = 16_384
_NAME = re.compile(r"(?:([a-z][a-z0-9]{0,15}):)?(.{1,200})", re.DOTALL)
_P2P = re.compile(r"(send|recv)[ _]?(\d{1,7})\s?(?:->|<-)\s?(\d{1,7})")
_STATES = {"scheduled", "started", "completed"}
COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("row", "ts_ns"), pa.int64()),
    "group_id": pa.int32(),
    **dict.fromkeys(("sequence", "p2p_sequence"), pa.int64()),
    "is_p2p": pa.bool_(),
    "peer_rank": pa.int32(),
    **dict.fromkeys(("operation", "dtype"), pa.string()),
    **dict.fromkeys(("in_bytes", "out_bytes"), pa.int64()),
    **dict.fromkeys(("shapes", "state"), pa.string()),
    "retired": pa.bool_(),
    **dict.fromkeys(("started_ns", "completed_ns", "dur_ns", "timeout_ns"), pa.int64()),
    "thread": pa.string(),
    "stack_id": pa.uint64(),
}


@dataclass(frozen=True)
class CallName:
    """What a profiling name says: `nccl:recv 3<-0` is an operation of rank 3 of the group with rank 0 of the group."""

    backend: str | None
    operation: str  # operations that differ in spelling only have one name
    own: int | None = None
    peer: int | None = None


def call_name(entry: dict[str, Any]) -> CallName:
    name = entry.get("profiling_name")
    return _parsed_name(name[:200]) if isinstance(name, str) else CallName(None, "unknown")


@lru_cache(maxsize=4096)
def _parsed_name(name: str) -> CallName:
    found = _NAME.fullmatch(clean_text(name, 200))
    if found is None:
        return CallName(None, "unknown")
    operation = operation_name(found[2].strip().split(" ")[0])
    pair = _P2P.search(name)
    return CallName(found[1], operation, *((int(pair[2]), int(pair[3])) if pair else (None, None)))


@dataclass(frozen=True)
class _Operands:
    shapes: str | None  # as JSON; None where unknown or long
    dtype: str | None
    in_bytes: int | None
    out_bytes: int | None


class EntryRows:
    """Builds the rows of one dump; `columns.bad` counts, per field, the values that did not fit.

    What is long is read once for each object: a hostile pickle can share one list among a million entries.
    """

    def __init__(self, sink: Sink, columns: Columns, stacks: Stacks) -> None:
        self.columns = columns
        self._sink = sink
        self._stacks = stacks
        self._stack_ids: dict[int, int | None] = {}  # by id() of the list of frames
        self._operands: dict[tuple[int, ...], _Operands] = {}
        self._threads: dict[tuple[int, int], str | None] = {}
        self._rows: list[dict[str, Any]] = []
        self.count = 0
        self.n_stacks = 0
        self.span: tuple[int | None, int | None] = (None, None)

    def add(self, entry: dict[str, Any], group_id: int | None, ranks: Sequence[int] | None) -> None:
        whole, columns, name = self.columns.whole, self.columns, call_name(entry)
        state = columns.text("state", entry.get("state"))
        if state not in _STATES:
            columns.bad["state"] += state is not None
            state = None
        operands = self._operands_of(entry)
        row: dict[str, Any] = {
            "row": self.count,
            "ts_ns": self._time(entry, "time_created_ns", "time_created_us"),
            "group_id": group_id,
            "sequence": whole("collective_seq_id", entry.get("collective_seq_id", entry.get("seq_id")), -1),
            "p2p_sequence": whole("p2p_seq_id", entry.get("p2p_seq_id"), -1),
            "is_p2p": self._flag(entry, "is_p2p"),
            "operation": name.operation,
            "dtype": operands.dtype,
            "in_bytes": operands.in_bytes,
            "out_bytes": operands.out_bytes,
            "shapes": operands.shapes,
            "state": state,
            "retired": self._flag(entry, "retired"),
            "started_ns": self._time(entry, "time_discovered_started_ns"),
            "completed_ns": self._time(entry, "time_discovered_completed_ns"),
            "dur_ns": _milliseconds(entry.get("duration_ms")),
            "timeout_ns": self._timeout(entry),
            "thread": self._thread(entry),
            "stack_id": self._stack(entry.get("frames")),
        }
        if name.peer is not None:
            row["is_p2p"] = True if row["is_p2p"] is None else row["is_p2p"]
            row["peer_rank"] = ranks[name.peer] if ranks is not None and name.peer < len(ranks) else None
        self._rows.append(row)
        self.count += 1
        if row["ts_ns"] is not None:
            first, last = (row["ts_ns"] if t is None else t for t in self.span)
            self.span = min(first, row["ts_ns"]), max(last, row["ts_ns"])
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            columns = {n: pa.array([row.get(n) for row in self._rows], kind) for n, kind in COLUMNS.items()}
            self._sink.emit("collective", pa.table(columns))
            self._rows.clear()

    def _operands_of(self, entry: dict[str, Any]) -> _Operands:
        values = [entry.get(key) for key in ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")]
        key = tuple(map(id, values))
        if key not in self._operands:
            dtype = _one_dtype(values[2], values[3])
            shapes = [_shapes(values[0]), _shapes(values[1])]
            text = orjson.dumps(shapes).decode() if shapes != [None, None] else None
            self._operands[key] = _Operands(
                text if text is not None and len(text) <= _MAX_SHAPES_TEXT else None,
                dtype,
                _bytes(shapes[0], values[2], dtype),
                _bytes(shapes[1], values[3], dtype),
            )
        return self._operands[key]

    def _timeout(self, entry: dict[str, Any]) -> int | None:
        found = _milliseconds(entry.get("timeout_ms"))
        self.columns.bad["timeout_ms"] += found is None and entry.get("timeout_ms") is not None
        return found

    def _time(self, entry: dict[str, Any], key: str, in_us: str = "") -> int | None:
        value = entry.get(key)
        found = (self.columns.whole(key, value) or None) if value is not None else None
        if found is None and in_us:
            found = (self.columns.whole(in_us, entry.get(in_us), 0, 1 << 53) or 0) * 1000 or None
        return found

    def _flag(self, entry: dict[str, Any], key: str) -> bool | None:
        value = entry.get(key)
        if value is not None and type(value) is not bool:
            self.columns.bad[key] += 1
            return None
        return value

    def _thread(self, entry: dict[str, Any]) -> str | None:
        told = entry.get("thread_id"), entry.get("thread_name")
        key = (id(told[0]), id(told[1]))
        if key not in self._threads:
            parts = [self.columns.text(f"thread_{n}", part) for n, part in zip(("id", "name"), told, strict=True)]
            self._threads[key] = " ".join(part[:200] for part in parts if part) or None
        return self._threads[key]

    def _stack(self, frames: Any) -> int | None:
        if type(frames) is not list or not frames:
            return None
        if id(frames) not in self._stack_ids:
            self._stack_ids[id(frames)] = self._stacks.add(_frames(frames))
        found = self._stack_ids[id(frames)]
        self.n_stacks += found is not None
        return found


def _frames(frames: list[Any]) -> Iterable[Frame]:
    """Outermost first; dumps list the innermost first."""
    for frame in reversed(frames[:MAX_FRAMES]):
        if type(frame) is dict and isinstance(frame.get("name"), str):
            file, line = frame.get("filename"), frame.get("line")
            known = type(line) is int and 0 <= line < 1 << 31
            yield Frame(
                clean_text(frame["name"], 1000),
                clean_text(file, 1000) if isinstance(file, str) and file else None,
                line if known else None,
            )


def _milliseconds(value: Any) -> int | None:
    number = as_float(value)
    return int(number * 1e6) if number is not None and 0 <= number < _MAX_SECONDS * 1000 else None


def _shapes(value: Any) -> list[list[int]] | None:
    """Shapes as lists of sizes; None where they are of no such kind. Walks no deeper than two levels."""
    if type(value) not in (list, tuple) or len(value) > MAX_SHAPES:
        return None
    for shape in value:
        if type(shape) not in (list, tuple) or len(shape) > MAX_DIMENSIONS:
            return None
        if any(type(size) is not int or not 0 <= size < 1 << 62 for size in shape):
            return None
    return [list(shape) for shape in value]


def _one_dtype(*lists: Any) -> str | None:
    """The element type; several are joined by commas, those of the outputs stand in where there are no inputs."""
    for value in lists:
        if type(value) in (list, tuple) and value and all(isinstance(v, str) for v in value[:MAX_SHAPES]):
            return clean_text(",".join(dict.fromkeys(v[:40] for v in value[:MAX_SHAPES])), 400)
    return None


def _bytes(shapes: list[list[int]] | None, dtypes: Any, dtype: str | None) -> int | None:
    if shapes is None:
        return None
    own = list(dtypes) if type(dtypes) in (list, tuple) and len(dtypes) == len(shapes) else [dtype] * len(shapes)
    total = 0
    for shape, kind in zip(shapes, own, strict=True):
        named = kind if isinstance(kind, str) else ""
        item = 1 if named.startswith("Float8") else ITEM_BYTES.get(named)
        if item is None:
            return None
        numel = item
        for size in shape:
            numel *= size
            if numel >= 1 << 62:
                return None
        total += numel
    return total if total < 1 << 63 else None
