"""Entries of a flight recorder dump as rows of `collective`; the JSON form writes 0 for "never"."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._collective_names import ITEM_BYTES
from forensics.formats._columns import MAX_INT64, Columns, clean_text
from forensics.formats._flight_calls import Called, CallKey, Given, read_once
from forensics.formats._lenient_json import as_float

MAX_FRAMES = 500
MAX_SHAPES = 1024  # of one operation's inputs or outputs; coalesced operations have hundreds
MAX_DIMENSIONS = 64
_MAX_SECONDS = 1 << 33
_MAX_SHAPES_TEXT = 4000
_BATCH_ROWS = 32_768
_CONTENT_BYTES = 1 << 27  # of sizes and types of a dump that are compared by content
_FEW_FRAMES = 100
_OPERANDS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_STATES = {"scheduled", "started", "completed"}
_COLUMNS: dict[str, pa.DataType] = {
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


class _Operands(NamedTuple):
    shapes: str | None  # as JSON; None where unknown or long
    dtype: str | None
    in_bytes: int | None
    out_bytes: int | None


class EntryRows:
    """Builds the rows of one dump, column by column; `columns.bad` counts, per field, the values that did not fit.

    What entries share is read once: a hostile pickle can share one long list among a million entries. Where content
    is too much to be compared, values are known by their identity, which `given` keeps from being reused.
    """

    def __init__(self, sink: Sink, columns: Columns, stacks: Stacks) -> None:
        self.columns = columns
        self._sink = sink
        self._stacks = stacks
        self._stack_ids: dict[Any, int | None] = {}
        self._operands: dict[Any, _Operands] = {}
        self._threads: dict[Any, str | None] = {}
        self._content_left = _CONTENT_BYTES
        self.count = 0
        self.n_stacks = 0
        self.span: tuple[int | None, int | None] = (None, None)

    def add(self, given: Given, keys: Sequence[CallKey], calls: Mapping[CallKey, Called]) -> None:
        """Emits a row for each entry; `keys`: of its call."""
        if 0 < len(keys) <= _BATCH_ROWS:  # most are, and copies of all columns take a tenth of the time
            self._add_batch(given, keys, calls)
            return
        for first in range(0, len(keys), _BATCH_ROWS):
            batch = slice(first, first + _BATCH_ROWS)
            self._add_batch({key: values[batch] for key, values in given.items()}, keys[batch], calls)

    def _add_batch(self, given: Given, keys: Sequence[CallKey], calls: Mapping[CallKey, Called]) -> None:
        wholes, n = self.columns.wholes, len(keys)
        times = self._times(given, "time_created_ns", "time_created_us")
        operands = read_once(self._operands, *self._operand_keys(given), _read_operands)
        stacks = given["frames"]
        stack_ids = read_once(self._stack_ids, [_stack_key(frames) for frames in stacks], stacks, self._stack)
        group_ids, operations, points, peers = zip(*map(calls.__getitem__, keys), strict=True)
        sequences = given["collective_seq_id"]
        if None in sequences:  # older dumps
            sequences = [b if a is None else a for a, b in zip(sequences, given["seq_id"], strict=True)]
        values: dict[str, Any] = {
            "row": np.arange(self.count, self.count + n),
            "ts_ns": times,
            "group_id": group_ids,
            "sequence": wholes("collective_seq_id", sequences, -1),
            "p2p_sequence": wholes("p2p_seq_id", given["p2p_seq_id"], -1),
            "is_p2p": self._flags(given, "is_p2p"),
            "peer_rank": peers,
            "operation": operations,
            **dict(zip(_Operands._fields, zip(*operands, strict=True), strict=True)),
            "state": self._states(given["state"]),
            "retired": self._flags(given, "retired"),
            "started_ns": self._times(given, "time_discovered_started_ns"),
            "completed_ns": self._times(given, "time_discovered_completed_ns"),
            "dur_ns": _all_milliseconds(given["duration_ms"]),
            "timeout_ns": self._timeouts(given["timeout_ms"]),
            "thread": self._thread_names(given["thread_id"], given["thread_name"]),
            "stack_id": stack_ids,
        }
        table = {name: pa.array(values[name], kind) for name, kind in _COLUMNS.items()}
        if True in points:
            table["is_p2p"] = pc.if_else(pc.and_(points, pc.is_null(table["is_p2p"])), True, table["is_p2p"])
        self._sink.emit("collective", pa.table(table))
        self.count += n
        self.n_stacks += n - stack_ids.count(None)
        known = [time for time in (*self.span, *times) if time is not None]
        if known:
            self.span = min(known), max(known)

    def _operand_keys(self, given: Given) -> tuple[list[Any], list[Any]]:
        """Keys of sizes and types of each entry, and these."""
        rows = list(zip(*(given[key] for key in _OPERANDS), strict=True))
        keys: list[Any] = []
        try:
            # Version 4 writes what is shared once, so even one key of a hostile dump is no longer than the dump.
            for key in map(marshal.dumps, rows, repeat(4)):
                self._content_left -= len(key)
                if self._content_left < 0:
                    break
                keys.append(key)
        except ValueError:  # nested too deeply
            pass
        return keys + [tuple(map(id, row)) for row in rows[len(keys) :]], rows

    def _timeouts(self, given: Sequence[Any]) -> list[int | None]:
        found = _all_milliseconds(given)
        self.columns.bad["timeout_ms"] += found.count(None) - given.count(None)
        return found

    def _times(self, given: Given, key: str, in_us: str = "") -> Sequence[int | None]:
        found = self.columns.wholes(key, given[key])
        if 0 in found:
            found = [time or None for time in found]
        if in_us and None in found:
            whole, times_us = self.columns.whole, given[in_us]
            found = [
                (whole(in_us, time_us, 0, 1 << 53) or 0) * 1000 or None if time is None else time
                for time, time_us in zip(found, times_us, strict=True)
            ]
        return found

    def _flags(self, given: Given, key: str) -> Sequence[bool | None]:
        values = given[key]
        kinds = set(map(type, values)) - {bool, type(None)}
        if kinds:
            self.columns.bad[key] += sum(type(value) in kinds for value in values)
            values = [value if type(value) is bool else None for value in values]
        return values

    def _states(self, given: Sequence[Any]) -> Sequence[str | None]:
        values = self.columns.texts("state", given)
        if set(values) <= {*_STATES, None}:
            return values
        self.columns.bad["state"] += sum(value is not None and value not in _STATES for value in values)
        return [value if value in _STATES else None for value in values]

    def _thread_names(self, numbers: Sequence[Any], names: Sequence[Any]) -> list[str | None]:
        rows = list(zip(numbers, names, strict=True))
        are_texts = set(map(type, numbers)) | set(map(type, names)) <= {str, type(None)}
        return read_once(
            self._threads, rows if are_texts else [tuple(map(id, row)) for row in rows], rows, self._thread
        )

    def _thread(self, row: tuple[Any, Any]) -> str | None:
        parts = [self.columns.text(f"thread_{n}", part) for n, part in zip(("id", "name"), row, strict=True)]
        return " ".join(part[:200] for part in parts if part) or None

    def _stack(self, frames: Any) -> int | None:
        return self._stacks.add(_frames(frames)) if type(frames) is list else None


def _stack_key(frames: Any) -> Any:
    """Writers share frames rather than lists of them."""
    if type(frames) is not list:
        return None
    return tuple(map(id, frames)) if len(frames) <= _FEW_FRAMES else id(frames)


def _read_operands(values: tuple[Any, Any, Any, Any]) -> _Operands:
    dtype = _one_dtype(values[2], values[3])
    shapes = [_shapes(values[0]), _shapes(values[1])]
    text = orjson.dumps(shapes).decode() if shapes != [None, None] else None
    return _Operands(
        text if text is not None and len(text) <= _MAX_SHAPES_TEXT else None,
        dtype,
        _bytes(shapes[0], values[2], dtype),
        _bytes(shapes[1], values[3], dtype),
    )


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


def _all_milliseconds(values: Sequence[Any]) -> list[int | None]:
    """Milliseconds as nanoseconds; few distinct values of timeouts, none of times that were not taken."""
    if set(map(type, values)) <= {int, type(None)}:
        present = [value for value in values if value is not None]
        if not present or max(present) < MAX_INT64 > -min(present):  # of wider ones, any number can have equal hashes
            return read_once({}, values, values, _milliseconds)
    return list(map(_milliseconds, values))


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
