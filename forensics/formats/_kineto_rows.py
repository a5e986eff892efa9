"""Brings the events of a profiler trace into a temporary DuckDB table `event`, in the order of the file.

DuckDB's JSON reader parses pieces of whole events with typed columns. It refuses a whole piece for one value that
does not fit, so a refused piece is mended event by event, its values are made to fit, and it is read the same way.
`rowid` of `event` is the index of the event in the file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import orjson

from forensics.case import connect
from forensics.errors import Untrusted
from forensics.formats._json_events import Piece
from forensics.formats._json_repair import Mended, split_events

MEMORY_LIMIT = "1GB"  # beyond, DuckDB uses the folder for temporary files

# Member of an event's args: column, type. Addresses can use all 64 bits; the others never exceed 63.
_ARGS = {
    "External id": ("external", "BIGINT"),
    "correlation": ("correlation", "BIGINT"),
    "Sequence number": ("sequence", "BIGINT"),
    "Fwd thread id": ("forward_thread", "BIGINT"),
    "device": ("device", "BIGINT"),
    "stream": ("stream", "BIGINT"),
    "wait_on_stream": ("wait_stream", "BIGINT"),
    "bytes": ("bytes", "BIGINT"),
    "size": ("size", "BIGINT"),
    "graph id": ("graph_id", "BIGINT"),
    "Input Dims": ("shapes", "JSON"),
    "Call stack": ("calls", "VARCHAR"),
    "labels": ("label", "VARCHAR"),
    "Addr": ("addr", "UBIGINT"),
    "Bytez": ("changed_bytes", "BIGINT"),
    "Total Allocated": ("allocated", "BIGINT"),
    "Total Reserved": ("reserved", "BIGINT"),
    "Device Type": ("device_type", "BIGINT"),
    "Device Id": ("device_id", "BIGINT"),
}
# DuckDB's structs do not tell upper from lower case: "Bytes" of [memory] from "bytes" of copies.
_BYTES, _BYTEZ = b'"Bytes":', b'"Bytez":'  # same length, so that no offset changes
_BEFORE_2022 = {"External id": "external id", "Input Dims": "Input dims"}
_NAMES = {"Bytes": "Bytez", **{old: new for new, old in _BEFORE_2022.items()}}
_TEXTS = ("ph", "cat", "name", "pid", "tid", "id")
_COUNTER_COLUMNS = {"ph": "VARCHAR", "name": "VARCHAR", "pid": "VARCHAR", "ts": "DECIMAL(20,3)", "args": "JSON"}
# The legacy autograd profiler gives no categories.
_SELECT = """
SELECT list_position({paths}, filename) - 1 + {piece} AS piece, {document} AS document, ph,
    CASE WHEN cat IS NULL AND pid IN ('CPU functions', 'CUDA functions') THEN pid ELSE cat END AS cat,
    name, pid, tid, hash(pid, tid, {document}) AS thread, id,
    TRY_CAST(ts * 1000 AS BIGINT) AS ts_ns, TRY_CAST(dur * 1000 AS BIGINT) AS dur_ns, {args}
FROM {source}
"""


@dataclass(frozen=True)
class _Era:
    """How one release spells the members of args."""

    columns: str
    args: str


@lru_cache(maxsize=8)
def _era(old: frozenset[str]) -> _Era:
    keys = {_BEFORE_2022[key] if key in old else key: value for key, value in _ARGS.items()}
    struct = "STRUCT(" + ", ".join(f'"{key}" {kind}' for key, (_, kind) in keys.items()) + ")"
    # Microseconds with three decimals need more digits than a double has.
    columns = {**dict.fromkeys(_TEXTS, "VARCHAR"), "ts": "DECIMAL(20,3)", "dur": "DECIMAL(20,3)", "args": struct}
    return _Era(_columns_sql(columns), ", ".join(f'args."{key}" AS {column}' for key, (column, _) in keys.items()))


_NEW_ERA = frozenset[str]()
# DuckDB before 2 reads decimals as doubles, which hold 16 digits.
_LONG_TIME = re.compile(rb'"(?:ts|dur)"\s*:\s*\d{14,}\.\d') if int(duckdb.__version__.split(".")[0]) < 2 else None
_DECIMAL = re.compile(r"[+-]?\d{1,16}(?:\.\d{1,18})?")


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    """One in-memory database for all loads of this process: to open one takes as long as to load a small trace."""
    spill = Path(tempfile.gettempdir()) / f"forensics-trace-{os.getpid()}"
    return connect(temp_directory=str(spill), memory_limit=MEMORY_LIMIT)


def _columns_sql(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items()) + "}"


class _Files:
    """Files in memory for DuckDB to read, used again and again; on disk where the system has none in memory."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._paths: list[str] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def put(self, number: int, parts: Sequence[bytes | memoryview]) -> str:
        while len(self._open) <= number:
            self._add()
        file = self._open[number]
        os.lseek(file, 0, os.SEEK_SET)
        os.ftruncate(file, 0)
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(file, rest) :]
        return self._paths[number]

    def _add(self) -> None:
        name = f"piece-{len(self._open)}.json"
        if hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir():
            file = os.memfd_create(name)
            self._paths.append(f"/proc/self/fd/{file}")
        else:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="forensics-trace-")
            path = Path(self._folder.name) / name
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self._paths.append(str(path))
        self._open.append(file)

    def close(self) -> None:
        for file in self._open:
            os.close(file)
        self._open.clear()
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
    first_byte: int | None = None

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


class EventTable:
    """The temporary tables `event` and `counter` of one trace; close it to drop them."""

    def __init__(self, threads: int) -> None:
        self.con = _database().cursor()
        self.con.execute(f"SET threads = {max(1, threads)}")
        self.con.execute("SET preserve_insertion_order = true")
        self._files = _Files()
        self.piece_bytes: list[int] = []
        self.damage = Damage()
        self._old_keys: frozenset[str] | None = None

    def __enter__(self) -> EventTable:
        self.con.execute(
            "CREATE TEMP TABLE counter(piece BIGINT, number BIGINT, name VARCHAR, pid VARCHAR, ts_ns BIGINT, args JSON)"
        )
        empty = _select([self._files.put(0, [b"[]"])], 0, 0, 1024, _NEW_ERA)
        self.con.execute(f"CREATE TEMP TABLE event AS {empty} LIMIT 0")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.con.close()
        self._files.close()

    def add(self, pieces: Sequence[Piece], document: int) -> None:
        """Appends the events of consecutive pieces."""
        if not pieces:
            return
        data = pieces[0].data
        if _BYTES in data:
            data = data.replace(_BYTES, _BYTEZ)
        era = self._era(data)
        paths = [self._files.put(n, [b"[", memoryview(data)[p.start : p.end], b"]"]) for n, p in enumerate(pieces)]
        first = len(self.piece_bytes)
        self.piece_bytes.extend(piece.byte for piece in pieces)
        size = max(piece.end - piece.start for piece in pieces) + 1024
        exact = not (_LONG_TIME and _LONG_TIME.search(data))
        if not (exact and self._insert(paths, first, document, size, era)):
            for number, piece in enumerate(pieces):
                if not (exact and self._insert([paths[number]], first + number, document, size, era)):
                    self._add_one_by_one(piece, number, first + number, document)
        counters = f"SELECT DISTINCT piece FROM event WHERE piece >= {first} AND ph = 'C' ORDER BY piece"
        for (place,) in self.con.execute(counters).fetchall():
            self._add_counters(paths[place - first], place, size)

    def _add_one_by_one(self, piece: Piece, number: int, place: int, document: int) -> None:
        events = []
        at = piece.start
        for event in split_events(piece.data, piece.start, piece.end):
            self.damage.skip(piece.data[at : event.start], piece.byte + at - piece.start)
            self.damage.note(event, piece.byte + event.start - piece.start)
            events.append(_fitting(event.fields, event.text) if event.fields else b"{}")
            at = event.end
        self.damage.skip(piece.data[at : piece.end], piece.byte + at - piece.start)
        text = b",".join(events)
        path = self._files.put(number, [b"[", text, b"]"])
        if not self._insert([path], place, document, len(text) + 1024, _NEW_ERA):
            self._files.put(number, [b"[]"])
            self.damage.n_lost += len(events)
            self.damage.lost_bytes += piece.end - piece.start

    def _era(self, data: bytes) -> frozenset[str]:
        """The old spellings of this trace; one release wrote all of it."""
        if self._old_keys is None:
            self._old_keys = frozenset(new for new, old in _BEFORE_2022.items() if f'"{old}":'.encode() in data)
        return self._old_keys

    def _insert(self, paths: list[str], piece: int, document: int, size: int, era: frozenset[str]) -> bool:
        query = _select(paths, piece, document, size, era)
        try:
            self.con.execute("INSERT INTO event " + query)
        except duckdb.OutOfMemoryException as error:
            raise Untrusted(f"trace: needs more than {MEMORY_LIMIT} of memory and temporary disk ({error})") from error
        except duckdb.Error:
            return False
        return True

    def _add_counters(self, path: str, piece: int, size: int) -> None:
        columns = _columns_sql(_COUNTER_COLUMNS)
        source = f"read_json('{path}', format = 'array', columns = {columns}, maximum_object_size = {size})"
        self.con.execute(
            f"INSERT INTO counter SELECT {piece}, number, name, pid, TRY_CAST(ts * 1000 AS BIGINT), args "
            f"FROM (SELECT *, row_number() OVER () - 1 AS number FROM {source}) WHERE ph = 'C'"
        )


def _select(paths: list[str], piece: int, document: int, size: int, old_keys: frozenset[str]) -> str:
    names = "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"
    era = _era(old_keys)
    source = (
        f"read_json({names}, format = 'array', columns = {era.columns}, maximum_object_size = {size}, filename = true)"
    )
    return _SELECT.format(paths=names, piece=piece, document=document, args=era.args, source=source)


def _fitting(fields: dict[str, Any], text: bytes) -> bytes:
    """The event with only what the columns take, and of it only values that they can hold."""
    event: dict[str, Any] = {}
    for key in _TEXTS:
        value = fields.get(key)
        if value is not None:
            event[key] = value if isinstance(value, str) else orjson.dumps(value).decode()
    for key in ("ts", "dur"):
        event[key] = _decimal(key, fields.get(key), text)
    args = fields.get("args")
    if isinstance(args, dict):
        event["args"] = _fitting_args(args)
        if fields.get("ph") == "C":
            event["args"] |= {k: v for k, v in args.items() if isinstance(v, int | float) and k not in _ARGS}
    return orjson.dumps(event)


def _fitting_args(args: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in args.items():
        name = _NAMES.get(key, key)
        kind = _ARGS.get(name, ("", ""))[1]
        if kind == "JSON" or (kind == "VARCHAR" and isinstance(value, str)):
            kept[name] = value
        elif kind.endswith("BIGINT"):
            kept[name] = _integer(value, unsigned=kind == "UBIGINT")
    return kept


def _integer(value: object, *, unsigned: bool) -> int | None:
    if isinstance(value, str):
        try:
            value = int(value, 0) if len(value) <= 24 else None
        except ValueError:
            return None
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**62 else None
    low, high = (0, 2**64) if unsigned else (-(2**63), 2**63)
    return value if isinstance(value, int) and low <= value < high else None


def _decimal(key: str, value: object, text: bytes) -> str | None:
    """Microseconds as they are written: a float has lost digits."""
    if isinstance(value, str):
        return value if _DECIMAL.fullmatch(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 10**16:
        return None
    for found in re.finditer(rb'"' + key.encode() + rb'"\s*:\s*([+-]?\d{1,16}(?:\.\d{1,18})?)(?![\d.eE+-])', text):
        if float(found[1]) == value:
            return found[1].decode()
    return f"{value:.3f}" if isinstance(value, float) else str(value)
