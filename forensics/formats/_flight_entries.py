"""Entries of a flight recorder dump as rows of `collective`.

Unstated by the dump: entries number groups by a counter of the process (`pg_id`) and name them (`process_group`); a
point-to-point name such as `nccl:recv 3<-0` counts ranks within the group; the JSON form writes 0 for "never".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

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
_FEW_OPERANDS = 64  # shapes and types of one call that are compared by content
_FEW_CHARACTERS = 1000  # sizes and letters of them
_FEW_FRAMES = 100
_OPERANDS = ("input_sizes", "output_sizes", "input_dtypes", "output_dtypes")
_KEYS = (
    *_OPERANDS,
    *("frames", "time_created_ns", "time_created_us", "time_discovered_started_ns", "time_discovered_completed_ns"),
    *("collective_seq_id", "p2p_seq_id", "is_p2p", "state", "retired", "duration_ms", "timeout_ms"),
    *("thread_id", "thread_name"),
)
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


class _Operands(NamedTuple):
    shapes: str | None  # as JSON; None where unknown or long
    dtype: str | None
    in_bytes: int | None
    out_bytes: int | None


class EntryRows:
    """Builds the rows of one dump, column by column; `columns.bad` counts, per field, the values that did not fit.

    What is long is read once for each object: a hostile pickle can share one list among a million entries.
    """

    def __init__(self, sink: Sink, columns: Columns, stacks: Stacks) -> None:
        self.columns = columns
        self._sink = sink
        self._stacks = stacks
        self._stack_ids: dict[int | tuple[int, ...], int | None] = {}  # by id() of the list of frames, or of the frames
        self._operands: dict[Any, _Operands] = {}
        self._threads: dict[tuple[Any, ...], str | None] = {}
        self._kept: list[Any] = []  # what ids are known of, so that none is given to something else
        self.count = 0
        self.n_stacks = 0
        self.span: tuple[int | None, int | None] = (None, None)

    def add(self, entries: Sequence[dict[str, Any]], groups: Sequence[tuple[int, Sequence[int] | None] | None]) -> None:
        """Emits the rows of entries; `groups`: number and ranks of the group of each."""
        for first in range(0, len(entries), _BATCH_ROWS):
            self._add_batch(entries[first : first + _BATCH_ROWS], groups[first : first + _BATCH_ROWS])

    def _add_batch(
        self, entries: Sequence[dict[str, Any]], groups: Sequence[tuple[int, Sequence[int] | None] | None]
    ) -> None:
        columns, given, names = self.columns, _gathered(entries), list(map(call_name, entries))
        times = self._times(given, "time_created_ns", "time_created_us")
        operands = list(map(self._operands_of, zip(*(given[key] for key in _OPERANDS), strict=True)))
        sequences = given["collective_seq_id"]
        if None in sequences:  # older dumps
            sequences = [e["collective_seq_id"] if "collective_seq_id" in e else e.get("seq_id") for e in entries]
        stack_ids = list(map(self._stack, given["frames"]))
        values: dict[str, Sequence[Any]] = {
            "row": range(self.count, self.count + len(entries)),
            "ts_ns": times,
            "group_id": [None if group is None else group[0] for group in groups],
            "sequence": columns.wholes("collective_seq_id", sequences, -1),
            "p2p_sequence": columns.wholes("p2p_seq_id", given["p2p_seq_id"], -1),
            "is_p2p": self._flags(given, "is_p2p"),
            "peer_rank": [None] * len(entries),
            "operation": [name.operation for name in names],
            **dict(zip(_Operands._fields, zip(*operands, strict=True), strict=True)),
            "state": self._states(given["state"]),
            "retired": self._flags(given, "retired"),
            "started_ns": self._times(given, "time_discovered_started_ns"),
            "completed_ns": self._times(given, "time_discovered_completed_ns"),
            "dur_ns": _all_milliseconds(given["duration_ms"]),
            "timeout_ns": self._timeouts(given["timeout_ms"]),
            "thread": list(map(self._thread, given["thread_id"], given["thread_name"])),
            "stack_id": stack_ids,
        }
        if any(name.peer is not None for name in names):
            values["is_p2p"], values["peer_rank"] = _peers(names, values["is_p2p"], groups)
        table = {name: pa.array(values[name], kind) for name, kind in COLUMNS.items()}
        self._sink.emit("collective", pa.table(table))
        self.count += len(entries)
        self.n_stacks += sum(stack is not None for stack in stack_ids)
        known = [time for time in times if time is not None]
        known += [time for time in self.span if time is not None]
        if known:
            self.span = min(known), max(known)

    def _operands_of(self, values: tuple[Any, Any, Any, Any]) -> _Operands:
        key = _content_of(values)
        if key is None:
            key = id(values[0]), id(values[1]), id(values[2]), id(values[3])
        found = self._operands.get(key)
        if found is None:
            found = self._operands[key] = _read_operands(values)
            self._kept.append(values)
        return found

    def _timeouts(self, given: Sequence[Any]) -> list[int | None]:
        found = _all_milliseconds(given)
        self.columns.bad["timeout_ms"] += found.count(None) - given.count(None)
        return found

    def _times(self, given: dict[str, Sequence[Any]], key: str, in_us: str = "") -> list[int | None]:
        whole = self.columns.whole
        found = [time or None for time in self.columns.wholes(key, given[key])]
        if in_us and None in found:
            for number, time_us in enumerate(given[in_us]):
                if found[number] is None:
                    found[number] = (whole(in_us, time_us, 0, 1 << 53) or 0) * 1000 or None
        return found

    def _flags(self, given: dict[str, Sequence[Any]], key: str) -> Sequence[bool | None]:
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

    def _thread(self, number: Any, name: Any) -> str | None:
        key = (number, name) if type(number) is str is type(name) else (id(number), id(name), "ids")
        if key not in self._threads:
            parts = [self.columns.text(f"thread_{n}", part) for n, part in (("id", number), ("name", name))]
            self._threads[key] = " ".join(part[:200] for part in parts if part) or None
            self._kept.append((number, name))
        return self._threads[key]

    def _stack(self, frames: Any) -> int | None:
        if type(frames) is not list or not frames:
            return None
        known = self._stack_ids
        if id(frames) in known:
            return known[id(frames)]
        # Writers share frames rather than lists of them.
        key = tuple(map(id, frames[:MAX_FRAMES]))
        if key not in known:
            known[key] = self._stacks.add(_frames(frames))
            self._kept.append(frames)
        if len(frames) > _FEW_FRAMES:
            known[id(frames)] = known[key]
            self._kept.append(frames)
        return known[key]


def _content_of(values: Sequence[Any]) -> Any:
    """A key for sizes and types that are few; None for others, which are then known by their identity."""
    try:
        if sum(map(len, values)) > _FEW_OPERANDS or sum(map(len, chain(*values))) > _FEW_CHARACTERS:
            return None
        key = tuple(map(tuple, values[0])), tuple(map(tuple, values[1])), tuple(values[2]), tuple(values[3])
        flat = set(map(type, chain(*key[0], *key[1])))
        return key if flat <= {int} and set(map(type, key[2] + key[3])) <= {str} else None
    except TypeError:  # something without a length among them
        return None


def _gathered(entries: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """The values of each key that a row is made of, None where an entry lacks it."""
    present = set().union(*entries)
    found: dict[str, Sequence[Any]] = dict.fromkeys(_KEYS, [None] * len(entries))
    common = [key for key in _KEYS if key in present]
    try:
        found.update(zip(common, zip(*map(itemgetter(*common, *common[:1]), entries), strict=True), strict=False))
    except (KeyError, TypeError):  # some entries lack some keys; no keys at all
        found.update((key, [entry.get(key) for entry in entries]) for key in common)
    return found


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


def _peers(
    names: Sequence[CallName], told: Sequence[bool | None], groups: Sequence[tuple[int, Sequence[int] | None] | None]
) -> tuple[list[bool | None], list[int | None]]:
    """Whether calls are point to point, and the global rank of the other end, as their names say."""
    flags, peers = list(told), [None] * len(names)  # type: list[bool | None], list[int | None]
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        if name.peer is not None:
            flags[number] = True if flags[number] is None else flags[number]
            ranks = None if group is None else group[1]
            peers[number] = ranks[name.peer] if ranks is not None and name.peer < len(ranks) else None
    return flags, peers


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
    known: dict[Any, int | None] = {None: None}
    found = []
    for value in values:
        if type(value) is int:
            if value not in known:
                known[value] = _milliseconds(value)
            found.append(known[value])
        else:
            found.append(None if value is None else _milliseconds(value))
    return found


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
