"""What the events of a slice are: kinds, places, exact times, out of the columns that DuckDB read.

Texts repeat from event to event, so each distinct one is looked at once and events hold its number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._kineto_columns import ARGS, KINDS

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[Any]

MEMORY = "memory"
_MEMORY_NAMES = ("[memory]", "[OutOfMemory]")
_LEGACY = ("CPU functions", "CUDA functions")  # the legacy autograd profiler gives no categories, but these processes
_KIND_OF = {cat: kind for kind, cats in KINDS.items() for cat in cats}
_ON_DEVICE = ("kernel", "memcpy", "memset", "gpu_annotation", "sync")
_ON_HOST = ("cpu_op", "python_function", "runtime", "driver", "annotation", "instant", "overhead", MEMORY)
# Not rows of their own: metadata, flows, counters, the ends of begun slices.
_NO_ROWS = ("M", "s", "t", "f", "C", "E", "e", "c")
_COPYING = re.compile("[Mm]em(cpy|set)")
_WHOLE = re.compile(r"\s*[+-]?\d{1,19}\s*")
_LAST_DIGITS = re.compile(r"[0-9]{1,18}$")
_MAX = (1 << 63) - 1
_ARROW = {"BIGINT": pa.int64(), "UBIGINT": pa.uint64(), "VARCHAR": pa.string(), "JSON": pa.string()}
_TYPES = {column: _ARROW[kind] for column, kind in ARGS.values()}


class Coded:
    """A column of texts: for each event the number of its text, -1 where there is none."""

    def __init__(self, column: pa.Array) -> None:
        encoded = column.dictionary_encode()
        self.texts: list[str] = encoded.dictionary.to_pylist()
        self.codes: Numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)

    def where(self, *texts: str) -> Mask:
        """Which events have one of the texts."""
        return self.of_each([text in texts for text in self.texts], False)

    def of_each(self, values: Sequence[Any], missing: Any, kind: Any = np.bool_) -> Numbers:
        """For each event what belongs to its text; `values`: one for each of `texts`."""
        return np.array([*values, missing], kind)[self.codes]

    def whole(self, of: Callable[[str], int | None]) -> pa.Array:
        """For each event the number that `of` finds in its text."""
        return pa.array([of(text) for text in self.texts], pa.int64()).take(_indices(self.codes))

    def take(self, rows: Numbers) -> pa.Array:
        """The texts of some events, dictionary-encoded, without texts that none of them has."""
        return dictionary(self.codes[rows], self.texts)


def dictionary(codes: Numbers, texts: Sequence[str]) -> pa.Array:
    """A dictionary-encoded column of the texts that `codes` name."""
    used = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=len(texts)))
    places = np.full(len(texts) + 1, -1, np.int32)
    places[used] = np.arange(len(used), dtype=np.int32)
    kept = pa.array([texts[number] for number in used.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(_indices(places[codes]), kept)


def _indices(codes: Numbers) -> pa.Array:
    return pa.array(codes, pa.int32(), mask=codes < 0 if (codes < 0).any() else None)


class Events:
    """The events of one slice; columns have a value for each of them.

    `ts_ns` and `dur_ns` are 0 where `has_ts` and `has_dur` say that there is none. `kind` numbers `kinds`, -1: no row.
    """

    def __init__(self, table: pa.Table, document: int) -> None:
        self._table = table.combine_chunks()
        self._document = document
        self.n = table.num_rows
        self.phase, self.category, self.name = self._coded("ph"), self._categories(), Coded(self.name_column)
        self.ts_ns, self.has_ts = nanoseconds(self.column("ts"))
        self.dur_ns, self.has_dur = nanoseconds(self.column("dur"))
        self.kinds: list[str] = []
        self.kind = self._kind()
        self.on_device = self._on_device()

    def column(self, name: str) -> pa.Array:
        """A column as it was read; one that was not asked for has no values."""
        if name not in self._table.column_names:
            return pa.nulls(self.n, _TYPES[name])
        column = self._table.column(name)
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        return array.storage if isinstance(array, pa.ExtensionArray) else array

    @property
    def name_column(self) -> pa.Array:
        return self.column("name").fill_null("")

    def _coded(self, name: str) -> Coded:
        return Coded(self.column(name))

    @cached_property
    def process(self) -> Coded:
        return self._coded("pid")

    @cached_property
    def thread(self) -> Coded:
        return self._coded("tid")

    def _categories(self) -> Coded:
        column = self.column("cat")
        if column.null_count and self.process.where(*_LEGACY).any():
            legacy = pa.array(self.process.where(*_LEGACY))
            column = pc.coalesce(column, pc.if_else(legacy, self.column("pid"), pa.scalar(None, pa.string())))
        return Coded(column)

    def _kind(self) -> Numbers:
        self.kinds = [MEMORY, "instant"]
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        of_category = [numbers.setdefault(kind_of(cat), len(numbers)) for cat in (*self.category.texts, None)]
        self.kinds = list(numbers)
        kind = np.array(of_category, np.int32)[self.category.codes]
        sliced = self.phase.where("X", "B")
        if not sliced.all():
            kind[~sliced] = -1
            instant = self.phase.of_each([ph not in {"X", "B", *_NO_ROWS} for ph in self.phase.texts], False)
            if instant.any():
                kind[instant] = numbers["instant"]
                kind[instant & self.name.where(*_MEMORY_NAMES)] = numbers[MEMORY]
        return kind

    def of_kind(self, *kinds: str) -> Mask:
        chosen: Mask = np.array([*(kind in kinds for kind in self.kinds), False])[self.kind]
        return chosen

    def _on_device(self) -> Mask:
        """Other backends' device work tells its device or stream."""
        on_device = self.of_kind(*_ON_DEVICE)
        other = (self.kind >= 0) & ~on_device & ~self.of_kind(*_ON_HOST)
        if other.any():
            on_device |= other & (valid(self.column("device")) | valid(self.column("stream")))
        return on_device

    @cached_property
    def thread_key(self) -> Numbers:
        """A number for process and thread of this document."""
        pairs = self.process.codes.astype(np.int64) * (len(self.thread.texts) + 1) + self.thread.codes
        encoded = pa.array(pairs).dictionary_encode()
        processes, threads = [*self.process.texts, None], [*self.thread.texts, None]
        firsts = np.zeros(len(encoded.dictionary), np.int64)
        firsts[encoded.indices.to_numpy()] = np.arange(self.n)
        keys = [
            _key(f"{processes[self.process.codes[at]]!r}\0{threads[self.thread.codes[at]]!r}\0{self._document}")
            for at in firsts
        ]
        key: Numbers = np.array(keys, np.uint64)[encoded.indices.to_numpy()]
        return key

    def taken(self, rows: Numbers) -> Rows:
        return Rows(self, rows)


class Rows:
    """Some events, as columns of rows."""

    def __init__(self, events: Events, rows: Numbers) -> None:
        self._events = events
        self.rows = rows
        self._all = len(rows) == events.n
        self._indices = pa.array(rows, pa.int64())

    def __getitem__(self, name: str) -> pa.Array:
        """A column as it was read."""
        column = self._events.column(name)
        if column.null_count == len(column):  # most members are in few events
            return pa.nulls(len(self.rows), column.type)
        return column if self._all else column.take(self._indices)

    def row(self) -> pa.Array:
        return self._indices

    def ts_ns(self) -> pa.Array:
        return _numbers(self._events.ts_ns[self.rows], self._events.has_ts[self.rows])

    def dur_ns(self) -> pa.Array:
        return _numbers(self._events.dur_ns[self.rows], self._events.has_dur[self.rows])

    def lasted_ns(self) -> Numbers:
        """Duration, 0 where there is none."""
        return np.maximum(self._events.dur_ns[self.rows], 0)

    def thread_key(self) -> pa.Array:
        return pa.array(self._events.thread_key[self.rows])

    def on_device(self) -> Mask:
        return self._events.on_device[self.rows]

    def kind(self) -> pa.Array:
        return dictionary(self._events.kind[self.rows], self._events.kinds)

    def name(self) -> pa.Array:
        return self._events.name.take(self.rows)

    def thread(self) -> pa.Array:
        """The thread's number, of what ran on the host."""
        number = self._events.thread.whole(whole_number)
        return only(~self._events.on_device, number).take(self._indices)

    def device(self) -> pa.Array:
        events = self._events
        if not events.on_device.any():
            return pa.nulls(len(self.rows), pa.int32())
        number = pc.coalesce(events.column("device"), events.process.whole(whole_number))
        small = pc.and_(pc.greater_equal(number, -(1 << 31)), pc.less(number, 1 << 31))
        return only(events.on_device, pc.if_else(small, number, None)).take(self._indices).cast(pa.int32())

    def stream(self) -> pa.Array:
        events = self._events
        if not events.on_device.any():
            return pa.nulls(len(self.rows), pa.int64())
        given = events.column("stream")
        given = pc.if_else(pc.equal(given, -1), pa.scalar(None, pa.int64()), given)
        number = pc.coalesce(given, events.column("wait_stream"), events.thread.whole(_last_digits))
        return only(events.on_device, number).take(self._indices)

    def bytes(self) -> pa.Array:
        """Of copies and fills, and of runtime calls named after them."""
        events = self._events
        size = pc.coalesce(self["bytes"], self["size"])
        if size.null_count == len(size):
            return size
        named = events.name.of_each([_COPYING.search(text) is not None for text in events.name.texts], False)
        copies = events.of_kind("memcpy", "memset") | (events.of_kind("runtime") & named)
        return only(copies[self.rows], size)


def only(mask: Mask, values: pa.Array) -> pa.Array:
    """The values, NULL where the mask does not hold."""
    return pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def valid(column: pa.Array) -> Mask:
    known: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return known


def whole_number(text: str) -> int | None:
    """The integer that a text spells, of 64 bits."""
    try:
        number = int(text) if _WHOLE.fullmatch(text) else round(float(text))
    except (ValueError, OverflowError):  # no number, nan, inf
        return None
    return number if -_MAX - 1 <= number <= _MAX else None


def _last_digits(text: str) -> int | None:
    found = _LAST_DIGITS.search(text)
    return int(found[0]) if found else None


def kind_of(cat: str | None) -> str:
    if cat is None:
        return "uncategorised"
    return _KIND_OF.get(cat) or (
        "runtime" if cat.endswith("_runtime") else "driver" if cat.endswith("_driver") else cat
    )


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _numbers(values: Numbers, known: Mask) -> pa.Array:
    return pa.array(values, mask=None if known.all() else ~known)


def nanoseconds(column: pa.Array) -> tuple[Numbers, Mask]:
    """Microseconds with three decimals as nanoseconds, 0 where there are none, and where there are some.

    The 128 bits of a decimal hold just that integer.
    """
    words = np.frombuffer(column.buffers()[1], np.int64, 2 * len(column), 16 * column.offset).reshape(-1, 2)
    low, high = words[:, 0], words[:, 1]
    known = valid(column) & (high == low >> 63)
    return np.where(known, low, 0), known
