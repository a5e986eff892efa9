"""Parses the events of a profiler trace into Arrow tables, slice by slice, in the order of the file.

DuckDB's JSON reader parses a slice of whole events with typed columns. It refuses all of it for one value that does
not fit: then the pieces of the slice are read alone, and a refused piece is mended event by event, its values are
made to fit, and it is read the same way. Slices are parsed on as many threads as are given.
"""

from __future__ import annotations

import os
import re
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.case import connect
from forensics.errors import Untrusted
from forensics.formats._json_events import EventStream, Piece
from forensics.formats._json_repair import Mended, split_events
from forensics.formats._kineto_columns import (
    BYTES,
    BYTEZ,
    NEW_ERA,
    NUMBERS,
    TEXTS,
    TIMES,
    absent_members,
    old_members,
    select_counters,
    select_events,
)
from forensics.formats._kineto_fit import first_event, fitting
from forensics.formats._kineto_typing import nanoseconds
from forensics.formats._text_lines import clean_text
from forensics.memory import spare_bytes

MEMORY_LIMIT = "256MB"  # beyond, DuckDB uses the folder for temporary files
_NO_MORE_THREADS = 8  # each holds slices in memory

_MANY_AT_ONCE = 32  # events of the same nanosecond
_ERA_BYTES = 4 << 20  # looked at to find how this trace spells its members
# DuckDB before 2 reads decimals as doubles, which hold 16 digits.
_LONG_TIME = re.compile(rb'"(?:ts|dur)"\s*:\s*\d{14,}\.\d') if int(duckdb.__version__.split(".")[0]) < 2 else None
# What DuckDB takes without complaint, booleans as 1 and 0, and anything as text. It is looked for where a trace begins:
# to look everywhere takes a tenth longer.
_WRONG_KIND = re.compile(
    rb'"(?:%b)"\s*:\s*(?:true|false)\b|"(?:%b)"\s*:\s*(?:[\[{]|true|false)'
    % ("|".join((*TIMES, *NUMBERS)).encode(), "|".join(TEXTS).encode())
)
_COUNTER_COLUMNS = ("row", "name", "ts_ns", "args")
_NO_COUNTERS = pa.table(
    {name: pa.array([], pa.int64() if name in {"row", "ts_ns"} else pa.string()) for name in _COUNTER_COLUMNS}
)
T = TypeVar("T")


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    """One in-memory database for all loads of this process: to open one takes as long as to load a small trace."""
    spill = Path(tempfile.gettempdir()) / f"forensics-trace-{os.getpid()}"
    return connect(temp_directory=str(spill), memory_limit=MEMORY_LIMIT)


def open_cursor(threads: int) -> duckdb.DuckDBPyConnection:
    con = _database().cursor()
    con.execute(f"SET threads = {max(1, threads)}")
    con.execute("SET preserve_insertion_order = true")
    return con


class _File:
    """A file in memory for DuckDB to read, used again and again; on disk where the system has none in memory."""

    def __init__(self) -> None:
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
            self._file = os.memfd_create("events.json")
            self.path = f"/proc/self/fd/{self._file}"
        else:
            self._folder = tempfile.TemporaryDirectory(prefix="forensics-trace-")
            self.path = str(Path(self._folder.name) / "events.json")
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def put(self, *parts: bytes | memoryview) -> str:
        os.lseek(self._file, 0, os.SEEK_SET)
        size = 0
        for part in parts:
            rest = memoryview(part)
            size += len(rest)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        os.ftruncate(self._file, size)  # after writing: its memory stays for the next slice
        return self.path

    def close(self) -> None:
        os.close(self._file)
        if self._folder:
            self._folder.cleanup()


@dataclass
class Damage:
    """What had to be done to broken events."""

    n_mended: int = 0
    n_stripped: int = 0
    n_lost: int = 0
    lost_bytes: int = 0
    n_skipped: int = 0  # stretches between events that are no event
    refused: Counter[str] = field(default_factory=Counter)  # values that no column can hold, by member
    first_refused: dict[str, str] = field(default_factory=dict)
    first_byte: int | None = None

    def refuse(self, member: str, value: object, *, byte: int) -> None:
        self._at(byte)
        self.refused[member] += 1
        self.first_refused.setdefault(member, f"{clean_text(repr(value)[:40])} at byte {byte}")

    def _at(self, byte: int) -> None:
        self.first_byte = byte if self.first_byte is None else min(self.first_byte, byte)

    def skip(self, between: bytes, byte: int) -> None:
        size = len(between.strip(b" \t\r\n,"))
        if size:
            self._at(byte)
            self.n_skipped += 1
            self.lost_bytes += size

    def note(self, event: Mended, byte: int) -> None:
        if event.how == "whole":
            return
        self._at(byte)
        self.n_mended += event.how == "mended"
        self.n_stripped += event.how == "stripped"
        if event.how == "lost":
            self.n_lost += 1
            self.lost_bytes += event.end - event.start

    def add(self, other: Damage) -> None:
        for name in ("n_mended", "n_stripped", "n_lost", "lost_bytes", "n_skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.refused.update(other.refused)
        self.first_refused = {**other.first_refused, **self.first_refused}
        if other.first_byte is not None:
            self._at(other.first_byte)


@dataclass
class Slice:
    """Consecutive events of one document; rows are counted from its first event."""

    document: int
    events: pa.Table  # as `select_events` gives them
    counters: pa.Table  # row, name, ts_ns, args as JSON
    positions: list[tuple[int, int]]  # row, byte
    damage: Damage = field(default_factory=Damage)


class _Parser:
    """Parses on one thread."""

    def __init__(self, threads: int) -> None:
        self.con = open_cursor(1)
        self._file = _File()
        self._old: frozenset[str] | None = None
        self._exact = True  # values are of the right kind, as far as was looked

    def close(self) -> None:
        self.con.close()
        self._file.close()

    def parse(self, pieces: Sequence[Piece], document: int) -> Slice:
        data = pieces[0].data
        absent = absent_members(data)
        if "Bytez" not in absent:
            data = data.replace(BYTES, BYTEZ)
        if self._old is None:
            self._old = old_members(data[pieces[0].start : pieces[0].start + _ERA_BYTES])
            self._exact = not _WRONG_KIND.search(data, pieces[0].start, pieces[0].start + _ERA_BYTES)
        exact = self._exact and not (_LONG_TIME and _LONG_TIME.search(data))
        start, end = pieces[0].start, pieces[-1].end
        size = max(piece.end - piece.start for piece in pieces) + 1024
        path = self._file.put(b"[", memoryview(data)[start:end], b"]")
        events = self._read(path, size, self._old, absent) if exact else None
        if events is not None:
            counters = self._counters(path, size) if _has_counters(events) else _NO_COUNTERS
            return Slice(document, events, counters, _positions(pieces, events))
        return self._piece_by_piece(data, pieces, document, self._old if exact else None)

    def _piece_by_piece(self, data: bytes, pieces: Sequence[Piece], document: int, old: frozenset[str] | None) -> Slice:
        tables: list[pa.Table] = []
        counters = [_NO_COUNTERS]
        done = Slice(document, None, _NO_COUNTERS, [])
        first = 0
        for piece in pieces:
            size = piece.end - piece.start + 1024
            path = self._file.put(b"[", memoryview(data)[piece.start : piece.end], b"]")
            events = None if old is None else self._read(path, size, old)
            if events is None:
                text = self._mended(piece, done.damage)
                path, size = self._file.put(b"[", text, b"]"), len(text) + 1024
                events = self._read(path, size, NEW_ERA)
                if events is None:
                    done.damage.n_lost += 1
                    done.damage.lost_bytes += piece.end - piece.start
                    continue
            if events.num_rows:
                done.positions.append((first, piece.byte))
            if _has_counters(events):
                counters.append(_from_row(self._counters(path, size), first))
            tables.append(events)
            first += events.num_rows
        none = self._read(self._file.put(b"[]"), 1024, NEW_ERA)
        done.events, done.counters = pa.concat_tables([*tables, none]), pa.concat_tables(counters)
        return done

    def _mended(self, piece: Piece, damage: Damage) -> bytes:
        events = []
        at = piece.start
        for event in split_events(piece.data, piece.start, piece.end):
            damage.skip(piece.data[at : event.start], piece.byte + at - piece.start)
            damage.note(event, piece.byte + event.start - piece.start)
            refuse = partial(damage.refuse, byte=piece.byte + event.start - piece.start)
            events.append(fitting(event.fields, event.text, refuse) if event.fields else b"{}")
            at = event.end
        damage.skip(piece.data[at : piece.end], piece.byte + at - piece.start)
        return b",".join(events)

    def _read(self, path: str, size: int, old: frozenset[str], absent: frozenset[str] = frozenset()) -> pa.Table | None:
        try:
            return self.con.sql(select_events(path, size, old, absent)).to_arrow_table()
        except duckdb.OutOfMemoryException as error:
            if spare_bytes() is not None:
                raise MemoryError(str(error)) from error
            raise Untrusted(f"trace: needs more than {MEMORY_LIMIT} of memory and temporary disk ({error})") from error
        except duckdb.Error:
            return None

    def _counters(self, path: str, size: int) -> pa.Table:
        return self.con.sql(select_counters(path, size)).to_arrow_table().cast(_NO_COUNTERS.schema)


def _has_counters(events: pa.Table) -> bool:
    return bool(pc.any(pc.equal(events.column("ph"), "C")).as_py())


def _from_row(rows: pa.Table, first: int) -> pa.Table:
    return rows.set_column(0, "row", pc.add(rows.column("row"), pa.scalar(first, pa.int64())))


def _positions(pieces: Sequence[Piece], events: pa.Table) -> list[tuple[int, int]]:
    """Row and byte of the first event of each piece, found by its time; left out where another looks the same."""
    if not events.num_rows:
        return []
    found = [(0, pieces[0].byte)]
    ts_ns, known = nanoseconds(events.column("ts").combine_chunks())
    for piece in pieces[1:]:
        told = first_event(piece.data, piece.start, piece.end)
        if told is not None:
            rows = np.flatnonzero(known & (ts_ns == told.ts_ns))[:_MANY_AT_ONCE]
            same = [row for row in rows.tolist() if all(events.column(k)[row].as_py() == told.texts[k] for k in TEXTS)]
            if len(same) == 1 and len(rows) < _MANY_AT_ONCE:
                found.append((same[0], piece.byte))
    return found


class EventReader(Generic[T]):
    """Reads all slices of a stream; `prepare` is done to each on the thread that parsed it."""

    def __init__(self, events: EventStream, threads: int, prepare: Callable[[Slice], T]) -> None:
        self._events = events
        self._prepare = prepare
        self._threads = min(max(1, threads), _NO_MORE_THREADS)
        self._local = threading.local()
        self._parsers: list[_Parser] = []
        self.reached = 0  # offset of the events that are read next, or now
        self._pool = ThreadPoolExecutor(self._threads) if self._threads > 1 else None

    def __enter__(self) -> EventReader[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool:
            self._pool.shutdown(cancel_futures=True)
        for parser in self._parsers:
            parser.close()

    def results(self) -> Iterator[T]:
        """What `prepare` gave, in the order of the stream."""
        waiting: deque[Future[T]] = deque()
        for pieces in self._events.chunks():
            if not pieces:
                continue
            document = len(self._events.array_bytes) - 1
            self.reached = self.reached if waiting else pieces[0].byte
            # A small trace is not worth a second thread.
            if self._pool is None or (not waiting and self._events.ended):
                while waiting:
                    yield waiting.popleft().result()
                yield self._work(pieces, document)
                continue
            waiting.append(self._pool.submit(self._work, pieces, document))
            if len(waiting) > self._threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _work(self, pieces: Sequence[Piece], document: int) -> T:
        parser: _Parser | None = getattr(self._local, "parser", None)
        if parser is None:
            parser = self._local.parser = _Parser(self._threads)
            self._parsers.append(parser)
        return self._prepare(parser.parse(pieces, document))
