"""Columns of a flight recorder dump's entries, and what these are calls of: operation and group.

Unstated by the dump: entries number groups by a counter of the process (`pg_id`) and name them (`process_group`); a
point-to-point name such as `nccl:recv 3<-0` counts ranks within the group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from forensics.formats._collective_names import operation_name
from forensics.formats._columns import MAX_INT64, clean_text
from forensics.formats._lenient_json import as_int

V = TypeVar("V")
R = TypeVar("R")
CallKey = tuple[str | None, str | None, int | None, str | None]
Given = dict[str, Sequence[Any]]  # the values of each key, None where an entry lacks it

_KEYS = (
    *("process_group", "pg_id", "profiling_name", "record_id", "collective_seq_id", "seq_id", "p2p_seq_id", "is_p2p"),
    *("input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "state", "retired", "frames"),
    *("time_created_ns", "time_created_us", "time_discovered_started_ns", "time_discovered_completed_ns"),
    *("duration_ms", "timeout_ms", "thread_id", "thread_name"),
)
_MOST_KEYS = 64
_NAME = re.compile(r"(?:([a-z][a-z0-9]{0,15}):)?(.{1,200})", re.DOTALL)
_P2P = re.compile(r"(send|recv)[ _]?(\d{1,7})\s?(?:->|<-)\s?(\d{1,7})")


class Operation(NamedTuple):
    """What a profiling name says: `nccl:recv 3<-0` is an operation of rank 3 of the group with rank 0 of the group."""

    backend: str | None
    name: str  # operations that differ in spelling only have one
    own: int | None = None
    peer: int | None = None


class Call(NamedTuple):
    """What entries that are alike in it say of their group and operation."""

    group_name: str | None
    description: str | None
    number: int | None  # of the group in this process
    profiling_name: str | None

    @property
    def operation(self) -> Operation:
        return Operation(None, "unknown") if self.profiling_name is None else _operation(self.profiling_name[:200])

    @property
    def group(self) -> tuple[str | None, str | None]:
        """Name and description; releases before 2.4 give the process-local number only."""
        if self.group_name is not None:
            return _cleaned(self.group_name), _cleaned(self.description or "") or None
        return (str(self.number), None) if self.number is not None else (None, None)


class Called(NamedTuple):
    """What a row says of its call."""

    group_id: int | None
    operation: str
    points: bool  # to another rank, by its name
    peer_rank: int | None


def gathered(entries: Sequence[dict[str, Any]]) -> Given:
    """The columns that rows are made of."""
    keys = list(entries[0]) if entries else []
    same = len(keys) <= _MOST_KEYS and set(map(len, entries)) == {len(keys)}
    if same and all(map(keys.__eq__, map(list, entries))):
        values = list(chain.from_iterable(map(dict.values, entries)))
        found = {key: values[number :: len(keys)] for number, key in enumerate(keys)}
        absent = [None] * len(entries)
        return {key: found.get(key, absent) for key in _KEYS}
    return {key: [entry.get(key) for entry in entries] for key in _KEYS}


def call_keys(given: Given) -> list[CallKey]:
    """The fields of the `Call` of each entry."""
    pairs, numbers, names = given["process_group"], given["pg_id"], given["profiling_name"]
    if set(map(type, pairs)) <= {tuple, list} and set(map(len, pairs)) == {2}:
        columns = (*zip(*pairs, strict=True), numbers, names)
        are_plain = [set(map(type, column)) for column in columns] == [{str}, {str}, {int}, {str}]
        if are_plain and min(numbers) >= 0 and max(numbers) <= MAX_INT64:
            return list(zip(*columns, strict=True))
    return list(map(_call_key, pairs, numbers, names))


def _call_key(pair: Any, number: Any, name: Any) -> CallKey:
    named = type(pair) in (tuple, list) and len(pair) == 2 and type(pair[0]) is type(pair[1]) is str
    group, description = pair if named else (None, None)
    return group, description, as_int(number, 0), name if type(name) is str else None


def read_once(known: dict[Any, R], keys: Sequence[Any], values: Iterable[V], read: Callable[[V], R]) -> list[R]:
    """What `read` makes of each value; values of equal keys are taken to be equal. `known`: what was read before."""
    for key, value in dict(zip(keys, values, strict=True)).items():
        if key not in known:
            known[key] = read(value)
    return list(map(known.__getitem__, keys))


@lru_cache(maxsize=4096)
def _operation(profiling_name: str) -> Operation:
    found = _NAME.fullmatch(clean_text(profiling_name, 200))
    if found is None:
        return Operation(None, "unknown")
    name = operation_name(found[2].strip().split(" ")[0])
    pair = _P2P.search(profiling_name)
    return Operation(found[1], name, *((int(pair[2]), int(pair[3])) if pair else (None, None)))


def _cleaned(text: str) -> str:
    return clean_text(text, 200)
