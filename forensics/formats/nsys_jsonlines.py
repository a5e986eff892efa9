"""JSON exports of Nsight Systems (`--type json`, later `jsonlines`): one object a line, named as in its inner format.

The first line holds all texts; other lines refer to them by position. There is no start of the session: times are
relative. NVTX, system calls and diagnostics were seen in real exports; CUDA events follow what NVIDIA documents.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Place, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats import _nsys_load
from forensics.formats._nsys_load import load_tables
from forensics.formats._nsys_tables import KERNEL, NVTX, OSRT, RUNTIME, BadValues, place_of_row

VERSION = _nsys_load.VERSION
TITLE = "Nsight Systems export (JSON lines)"
PROVIDES = _nsys_load.PROVIDES

_BLOCK_ROWS = 200_000
_MAX_LINE = 256 << 20  # the first line holds every text
_MAX_TEXTS = 20_000_000
_EXCERPT = 400
_EVENT = re.compile(rb'\{"Type":\s?\d{1,4},\s?"(?:NvtxEvent|TraceProcessEvent|CudaEvent|DiagnosticEvent|CommEvent)"')
_TEXTS = re.compile(rb'\s{0,10}\{"data":\s?\["\[Unknown\]","\[kernel\.kallsyms\]"')
_COPY, _SET, _SYNC, _GRAPH = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
)
_HOST = ("start", "end", "eventClass", "globalTid", "correlationId", "nameId")
_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
# Classes are numbered as in ENUM_NSYS_EVENT_CLASS of the other exports; those of other domains are left out.
_CLASSES = {
    0: RUNTIME, 1: RUNTIME, 3: "PROFILER_OVERHEAD", 27: OSRT, 31: OSRT, 32: OSRT,
    28: "CUDNN_EVENTS", 29: "CUBLAS_EVENTS",
}  # fmt: skip
_INTEGERS: dict[str, tuple[str, ...]] = {
    NVTX: ("start", "end", "eventType", "globalTid", "textId", "domainId", "rangeId"),
    **dict.fromkeys(_CLASSES.values(), _HOST),
    RUNTIME: (*_HOST, "returnValue"),
    KERNEL: (*_DEVICE, "demangledName", "shortName", "graphNodeId"),
    _COPY: (*_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    _SET: (*_DEVICE, "bytes", "memKind"),
    _SYNC: (*_DEVICE, "syncType"),
    _GRAPH: (*_DEVICE, "graphId"),
    "DIAGNOSTIC_EVENT": ("severity",),
    "StringIds": ("id",),
}
_WITH_TEXT = {NVTX: ("text",), "DIAGNOSTIC_EVENT": ("text",), "StringIds": ("value",)}
_PARTS = {"kernel": KERNEL, "memcpy": _COPY, "memset": _SET, "sync": _SYNC, "graph": _GRAPH}
_LEVELS = {"Info": 1, "Warning": 2, "Error": 3, "Fatal": 3}


def recognise(head: Head) -> int:
    if _TEXTS.match(head.data):
        return 95
    return 90 if len(_EVENT.findall(head.data[:20_000])) >= 2 else 0


@dataclass
class JsonTables:
    """The events of one file, sorted into the tables that the other exports have."""

    texts: list[str] = field(default_factory=list)
    n_bad: int = 0
    bad: BadValues = field(default_factory=BadValues)
    first_bad: int | None = None
    lines: dict[str, list[int]] = field(default_factory=dict)  # table → line of each row
    _n_bad: Counter[tuple[str, str]] = field(default_factory=Counter)
    _blocks: dict[str, list[pa.Table]] = field(default_factory=dict)
    _waiting: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def take(self, number: int, line: bytes) -> None:
        """One line of the file."""
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError:
            self._odd(number)
            return
        if not isinstance(said, dict):
            self._odd(number)
        elif isinstance(said.get("data"), list):
            if not self.texts:
                self.texts = [text if isinstance(text, str) else "" for text in said["data"][:_MAX_TEXTS]]
        else:
            for kind, body in said.items():
                if isinstance(body, dict):
                    self._sort(kind, body, number)

    def _odd(self, number: int) -> None:
        self.n_bad += 1
        self.first_bad = self.first_bad or number

    def _sort(self, kind: str, body: Mapping[str, Any], line: int) -> None:
        given = {name[:1].lower() + name[1:]: value for name, value in body.items()}
        given.setdefault("start", given.get("startNs", given.get("timestamp")))
        given.setdefault("end", given.get("endNs", given.get("endTimestamp")))
        if kind == "NvtxEvent":
            self._put(NVTX, {**given, "eventType": given.get("type")}, line)
        elif kind == "TraceProcessEvent":
            table = _CLASSES.get(_integer(given.get("eventClass")) or 0)
            if table is not None:
                self._put(table, {**given, "nameId": given.get("name", given.get("nameId"))}, line)
        elif kind == "CudaEvent":
            for part, table in _PARTS.items():
                if isinstance(given.get(part), dict):
                    inner = given[part]
                    sized = {"bytes": inner.get("sizebytes", inner.get("bytes"))}
                    self._put(table, {**given, **inner, **sized}, line)
        elif kind == "DiagnosticEvent":
            self._put("DIAGNOSTIC_EVENT", {**given, "severity": _LEVELS.get(str(given.get("level")), 0)}, line)

    def _put(self, table: str, values: Mapping[str, Any], line: int) -> None:
        waiting = self._waiting.setdefault(table, [])
        row: dict[str, Any] = {name: _integer(values.get(name)) for name in _INTEGERS[table]}
        for name in _WITH_TEXT.get(table, ()):
            row[name] = values[name] if isinstance(values.get(name), str) else None
        for name, value in row.items():
            if value is None and values.get(name) is not None:
                self._n_bad[table, name] += 1
        waiting.append(row)
        self.lines.setdefault(table, []).append(line)
        if len(waiting) >= _BLOCK_ROWS:
            self._pack(table)

    def _pack(self, table: str) -> None:
        rows = self._waiting.pop(table, [])
        kinds = {name: pa.int64() for name in _INTEGERS[table]} | {n: pa.string() for n in _WITH_TEXT.get(table, ())}
        packed = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
        self._blocks.setdefault(table, []).append(packed)

    def finish(self) -> None:
        for (table, column), n in self._n_bad.items():
            self.bad.add(table, column, 0, n)
        for table in list(self._waiting):
            self._pack(table)
        ids = pa.array(range(len(self.texts)), pa.int64())
        self._blocks["StringIds"] = [pa.table({"id": ids, "value": pa.array(map(_sound, self.texts), pa.string())})]

    def tables(self) -> list[str]:
        return list(self._blocks)

    def columns(self, table: str) -> tuple[str, ...]:
        return (*_INTEGERS[table], *_WITH_TEXT.get(table, ())) if table in self._blocks else ()

    def read(self, table: str, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[pa.Table]:
        del texts  # the columns have their types
        at = 0
        for block in self._blocks.get(table, []):
            named = block.select([name for name in columns if name in block.column_names])
            yield named.add_column(0, "rowid", pa.array(range(at, at + block.num_rows), pa.int64()))
            at += block.num_rows


def _integer(value: Any) -> int | None:
    """64-bit numbers are written as texts, unsigned ones up to 2^64."""
    if isinstance(value, str) and len(value) <= 20 and value.lstrip("-").isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**63) <= value < 2**64:
        return None
    return value - 2**64 if value >= 2**63 else value


def _sound(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def load(source: Source, sink: Sink) -> None:
    tables = JsonTables()
    with source.open() as stream:
        number = 0
        while line := stream.readline(_MAX_LINE):
            number += 1
            if line.strip():
                tables.take(number, line)
    tables.finish()
    if not tables.lines:
        raise ArtifactError(f"{source.name}: no event of Nsight Systems; expected one JSON object a line")
    load_tables(tables, sink, whole=source.damage is None, lost=lambda: tables.n_bad > 0)
    if tables.n_bad:
        sink.warn("bad-json", f"{tables.n_bad} lines are no JSON", "the events on these lines", line=tables.first_bad)
        sink.damaged("partial")


def locate(source: Source, row: int, near: tuple[int, int] | None) -> Place | None:
    """The line of an event, by counting those of its table."""
    del near
    place = place_of_row(row)
    tables = JsonTables()
    with source.open() as stream:
        number = 0
        while place is not None and (line := stream.readline(_MAX_LINE)):
            number += 1
            if line.strip():
                tables.take(number, line)
            known = tables.lines.get(place[0], [])
            if len(known) > place[1]:
                return Place(line=number, row=row, text=line.decode("utf-8", "replace").strip()[:_EXCERPT])
    return None
