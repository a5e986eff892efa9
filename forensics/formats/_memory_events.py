"""Rows of memory_event out of the events of a CUDA memory snapshot, as dicts or as columns, in bounded memory.

Times are microseconds since the Unix epoch in the file (0 or absent before PyTorch 2.1), nanoseconds here. Steps stand
behind the events in the file, so rows wait for them: as Arrow tables, beyond `_HELD_BYTES` in a temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import IO, Any

import numpy as np
import pyarrow as pa

from forensics.formats._columns import MAX_INT64, MAX_UINT64, Columns
from forensics.formats._memory_history import ACTIONS, Array, Batch, History, Optional, StackIds
from forensics.formats._memory_steps import Step, steps_at
from forensics.formats._pickle_memo import distinct
from forensics.formats._pickle_records import Records

# Keys of events that become columns; whether they are numbers.
COLUMNS = dict.fromkeys(("addr", "size", "stream", "time_us", "device_free"), True)
COLUMNS |= dict.fromkeys(("action", "frames", "pool_id", "category", "user_metadata", "compile_context"), False)
EVENT_KEYS = {*COLUMNS, "version", "forward_frames"}
_TEXTS = {"pool_id": "pool_id", "category": "category", "user_metadata": "metadata", "compile_context": "compile_id"}
_HIGHEST = {"addr": MAX_UINT64, "stream": MAX_UINT64, "time_us": MAX_INT64 // 1000}
_ACTION_NUMBERS = {name: number for number, name in enumerate(ACTIONS)}
_HELD_BYTES = 256 << 20
_EMITTED_ROWS = 1 << 19
_WAITING_EVENTS = 1000


class Words:
    """Numbers of texts, in order of appearance; -1 for none."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, text: str | None) -> int:
        if text is None:
            return -1
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def text(self, number: int) -> str | None:
        return self.texts[number] if number >= 0 else None


class EventReader:
    def __init__(self, ids: StackIds, columns: Columns) -> None:
        self.ids = ids
        self.columns = columns
        self.histories: dict[int, History] = {}
        self.words = Words()
        self.n_read = 0
        self._held = _Held()
        self._waiting: tuple[int, list[Any]] = (0, [])  # device and events
        self._known: dict[str, dict[int, Any]] = {}  # column → number of a value → what it stands for

    def read(self, device: int, items: Sequence[Any]) -> None:
        """Adds events of one device; a few at a time, they wait for more."""
        if self._waiting[0] != device:
            self.flush()
            self._waiting = (device, [])
        self._waiting[1].extend(items)
        if len(self._waiting[1]) >= _WAITING_EVENTS:
            self.flush()

    def flush(self) -> None:
        """Adds the events that wait."""
        device, items = self._waiting
        self._waiting = (device, [])
        if not items:
            return
        numbers = np.array([_action_of(item) for item in items], np.int8)
        rows = np.arange(self.n_read, self.n_read + len(items))
        kept = numbers >= 0
        keys = {k for k in set(chain.from_iterable(i for i in items if type(i) is dict)) if type(k) is str}
        if not kept.all():
            items = [item for item, number in zip(items, numbers, strict=True) if number >= 0]
        field = {key: [e.get(key) for e in items] for key in COLUMNS if key in keys}.get
        n = len(items)
        batch = Batch(
            rows[kept],
            numbers[kept],
            _nanoseconds(self._numbers("time_us", field("time_us"), n)),
            addr=self._numbers("addr", field("addr"), n),
            size=self._numbers("size", field("size"), n),
            stream=self._numbers("stream", field("stream"), n),
            device_free=self._numbers("device_free", field("device_free"), n),
            stack=_optional(list(map(self.ids.of, field("frames") or ())), n),
            texts={k: np.array([self._word(k, v) for v in field(k) or ()], np.int32) for k in _TEXTS if k in keys},
        )
        self._add(device, batch, len(rows), keys)

    def read_records(self, device: int, records: Records, values: Sequence[Any]) -> None:
        """Adds events of one device; what is no number is an index of `values`."""
        self.flush()
        rows = np.arange(self.n_read, self.n_read + records.n)
        actions = self._translated("action", records, values, _action_number, np.int8)
        kept = actions >= 0
        stacks = self._translated("frames", records, values, lambda v: self.ids.of(v) or 0, np.uint64)
        texts = {
            key: self._translated(key, records, values, partial(self._word, key), np.int32)[kept]
            for key in _TEXTS
            if records.codes[key].any()
        }
        numbers = {key: Optional(v[kept], there[kept]) for key, (v, there) in records.numbers.items()}
        for key, (found, there) in numbers.items():
            if (wide := found > _HIGHEST.get(key, MAX_INT64)).any():
                self.columns.bad[f"event.{key}"] += int(np.count_nonzero(wide & there))
                numbers[key] = Optional(found, there & ~wide)
        batch = Batch(
            rows[kept],
            actions[kept],
            _nanoseconds(numbers["time_us"]),
            addr=numbers["addr"],
            size=numbers["size"],
            stream=numbers["stream"],
            device_free=numbers["device_free"],
            stack=Optional(stacks[kept], stacks[kept] != 0),
            texts=texts,
        )
        self._add(device, batch, records.n, records.others)

    def _add(self, device: int, batch: Batch, n_read: int, keys: set[str]) -> None:
        if len(batch.rows) < n_read:
            self.columns.bad["event.action"] += n_read - len(batch.rows)
        history = self.histories.setdefault(device, History(device))
        history.n_events += n_read
        history.keys |= keys
        self.n_read += n_read
        history.follow(batch)
        if len(batch.rows):
            self._held.add(_held_table(device, batch))

    def _numbers(self, key: str, found: Sequence[Any] | None, n: int) -> Optional:
        if found is None:
            return _optional([], n)
        return _optional(self.columns.wholes(f"event.{key}", found, high=_HIGHEST.get(key, MAX_INT64)), n)

    def _translated(
        self, key: str, records: Records, values: Sequence[Any], meaning: Callable[[Any], int], kind: Any
    ) -> Array:
        """What each value of a column stands for; the meaning of nothing for those that are absent."""
        found, places = distinct(records.codes[key], len(values))
        known = self._known.setdefault(key, {})
        numbers = found.tolist()
        for number in numbers:
            if number not in known:
                known[number] = meaning(values[number])
        return np.array([known[number] for number in numbers], kind)[places]

    def _word(self, key: str, value: Any) -> int:
        if key == "pool_id":
            return self.words.number(self.columns.pair("event.pool_id", value))
        text = self.columns.text(f"event.{key}", value)
        return self.words.number(category(text) if key == "category" else text if text not in ("", "N/A") else None)

    def tables(self, steps: list[Step]) -> Iterator[pa.Table]:
        """Rows of memory_event, about half a million at a time."""
        texts = pa.array(self.words.texts, pa.string())
        waiting: list[pa.Table] = []
        for held in self._held.tables():
            columns = dict(zip(held.column_names, held.columns, strict=True))
            columns["action"] = pa.array(ACTIONS, pa.string()).take(columns["action"])
            for name in _TEXTS.values():
                columns[name] = texts.take(columns[name])
            if steps:
                columns["step"] = steps_at(steps, columns["ts_ns"].fill_null(0).to_numpy())
            waiting.append(pa.table(columns))
            if sum(table.num_rows for table in waiting) >= _EMITTED_ROWS:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)


def category(text: str | None) -> str | None:
    """Categories as the profiler names them, with the schema's word for optimizer state."""
    if text is None or text.lower() in ("", "unknown"):
        return None
    return "optimizer" if text.lower() == "optimizer_state" else text.lower()[:40]


def _action_of(item: Any) -> int:
    return _action_number(item.get("action")) if type(item) is dict else -1


def _action_number(action: Any) -> int:
    return _ACTION_NUMBERS.get(action, -1) if type(action) is str else -1


def _optional(found: Sequence[int | None], n: int) -> Optional:
    """The column of `n` values; no values stand for `n` that are absent."""
    if not found:
        return Optional(np.zeros(n, np.uint64), np.zeros(n, np.bool_))
    there = np.array([v is not None for v in found], np.bool_)
    return Optional(np.array([v or 0 for v in found], np.uint64), there)


def _nanoseconds(micros: Optional) -> Array:
    return np.where(micros.there, micros.values, 0).astype(np.int64) * 1000


def _held_table(device: int, batch: Batch) -> pa.Table:
    n = len(batch.rows)
    columns = {
        "row": pa.array(batch.rows, pa.int64()),
        "ts_ns": pa.array(batch.ts_ns, pa.int64(), mask=_mask(batch.ts_ns != 0)),
        "device": pa.repeat(pa.scalar(device, pa.int32()), n),
        "stream": pa.array(batch.stream.values, pa.uint64(), mask=_mask(batch.stream.there)),
        "action": pa.array(batch.actions, pa.int8()),
        "addr": pa.array(batch.addr.values, pa.uint64(), mask=_mask(batch.addr.there)),
        "size_bytes": pa.array(batch.size.values.astype(np.int64), pa.int64(), mask=_mask(batch.size.there)),
        "stack_id": pa.array(batch.stack.values, pa.uint64(), mask=_mask(batch.stack.there)),
    }
    free = batch.device_free
    columns["device_free_bytes"] = (
        pa.array(free.values.astype(np.int64), pa.int64(), mask=~free.there)
        if free.there.any()
        else _nulls(n, pa.int64())
    )
    for key, name in _TEXTS.items():
        numbers = batch.texts.get(key)
        columns[name] = (
            _nulls(n, pa.int32()) if numbers is None else pa.array(numbers, pa.int32(), mask=_mask(numbers >= 0))
        )
    return pa.table(columns)


def _mask(there: Array) -> Array | None:
    return None if there.all() else ~there


def _nulls(n: int, kind: pa.DataType) -> pa.Array:
    return pa.nulls(n, kind)


class _Held:
    """Tables that wait, in order."""

    def __init__(self) -> None:
        self._small: list[pa.Table] = []
        self._tables: list[pa.Table] = []
        self._file: IO[bytes] | None = None
        self._n_spilled = 0

    def add(self, table: pa.Table) -> None:
        # Tables of a few rows would cost more than their rows.
        self._small.append(table)
        if table.num_rows > 10_000 or len(self._small) >= 256:
            self._tables.append(pa.concat_tables(self._small).combine_chunks())
            self._small.clear()
            if sum(t.nbytes for t in self._tables) > _HELD_BYTES:
                self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed behind the last table)
        for table in self._tables:
            with pa.ipc.new_stream(self._file, table.schema) as writer:
                writer.write_table(table)
        self._n_spilled += len(self._tables)
        self._tables.clear()

    def tables(self) -> Iterator[pa.Table]:
        if self._file is not None:
            self._file.seek(0)
            for _ in range(self._n_spilled):
                with pa.ipc.open_stream(self._file) as reader:
                    yield reader.read_all()
            self._file.close()
        yield from self._tables
        if self._small:
            yield pa.concat_tables(self._small).combine_chunks()
