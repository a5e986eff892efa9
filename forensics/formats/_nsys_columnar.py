"""Tables of an export that lie in Parquet or Arrow files, one or several in a file.

A folder of such files is one export: its rows refer to each other. The file of the most telling table loads all of
them and is the artifact that their rows belong to; the others are its companions (`artifact.Format`), whose contents
are part of its cache key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Place, Sink, Source
from forensics.errors import ArtifactError, Untrusted
from forensics.formats._nsys_load import load_tables
from forensics.formats._nsys_tables import NUMBERS, BadValues, place_of_row

_BATCH_ROWS = 200_000
_MAX_ROWS_PER_BYTE = 2_000  # of Parquet: runs of equal values are short, but no export comes near
_MAX_STREAMS = 2_000
_TABLE = re.compile(
    r"(?:StringIds|PROCESSES|ProcessStreams|ThreadNames|ANALYSIS_\w+|DIAGNOSTIC_EVENT|PROFILER_OVERHEAD|SCHED_EVENTS"
    r"|COMPOSITE_EVENTS|SAMPLING_CALLCHAINS|(?:ENUM|TARGET_INFO|META_DATA|CUPTI_ACTIVITY_KIND|CUDA|NVTX|OSRT|GENERIC"
    r"|GPU|MPI|UCP|OPENMP|CUBLAS|CUDNN|NET|NIC|PERF|SYSCALL|DYNAMIC)_\w+)"
)
_EXCERPT = 400


def table_of(name: str, suffix: str) -> str | None:
    """The table that a file of a folder export holds, by its name."""
    stem = name.removesuffix(suffix)
    return stem if stem != name and _TABLE.fullmatch(stem) else None


def parts_of(own: str, names: Sequence[str], suffix: str) -> list[str]:
    """The other files of the export that a file belongs to."""
    return [name for name in names if table_of(name, suffix)] if table_of(own, suffix) else []


def leads(own: str, others: Sequence[str], suffix: str) -> bool:
    """Whether this file is the one that loads its export."""
    order = {table: number for number, table in enumerate(NUMBERS)}
    ranked = sorted((order.get(table_of(name, suffix) or "", len(order)), name) for name in (own, *others))
    return ranked[0][1] == own


class _Batches:
    """Common to both clothes: columns as integers or texts, with the position of each row."""

    bad: BadValues

    def read(self, table: str, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[pa.Table]:
        at = 0
        for batch in self.batches(table, [name for name in columns if name in self.columns(table)]):
            given: dict[str, Any] = {"rowid": pa.array(range(at, at + batch.num_rows), pa.int64())}
            for name in batch.schema.names:
                if name in columns:
                    given[name] = _values(batch.column(name), is_text=name in texts)
                    self.bad.add(table, name, at, given[name].null_count - batch.column(name).null_count)
            at += batch.num_rows
            yield pa.table(given)

    def columns(self, table: str) -> tuple[str, ...]:
        raise NotImplementedError

    def batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


def _values(column: pa.Array, *, is_text: bool) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    if is_text:
        is_said = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        return column.cast(pa.string()) if is_said else pa.nulls(len(column), pa.string())
    # Identifiers are unsigned here and signed in SQLite: the same 64 bits.
    return column.cast(pa.int64(), safe=False) if pa.types.is_integer(kind) else pa.nulls(len(column), pa.int64())


@dataclass
class ParquetTables(_Batches):
    """`TABLE.parquet` files; `lost`: table → why it cannot be read."""

    files: Mapping[str, Source]
    lost: dict[str, str] = field(default_factory=dict)
    bad: BadValues = field(default_factory=BadValues)
    _schemas: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def tables(self) -> list[str]:
        return list(self.files)

    def columns(self, table: str) -> tuple[str, ...]:
        if table not in self._schemas:
            self._schemas[table] = ()
            if table in self.files:
                try:
                    self._schemas[table] = tuple(self._open(table).schema_arrow.names)
                except (pa.ArrowException, OSError, Untrusted) as error:
                    self.lost[table] = str(error)
        return self._schemas[table]

    def is_of(self, table: str, source: Source) -> bool:
        return self.files[table].path == source.path

    def _open(self, table: str) -> pq.ParquetFile:
        path = self.files[table].path
        file = pq.ParquetFile(path)
        if file.metadata.num_rows > _MAX_ROWS_PER_BYTE * path.stat().st_size:
            raise Untrusted(f"{table}: {file.metadata.num_rows} rows in {path.stat().st_size} bytes; not read")
        return file

    def batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if not columns:
            return
        try:
            yield from self._open(table).iter_batches(_BATCH_ROWS, columns=list(columns), use_threads=False)
        except (pa.ArrowException, OSError, Untrusted) as error:
            self.lost[table] = str(error)


class _Counted:
    """A stream that cannot be sought in, as pyarrow wants it: it asks for the position only."""

    closed = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.n_read = stream, 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self.n_read += len(data)
        return data

    def tell(self) -> int:
        return self.n_read

    def close(self) -> None:
        """The file is its opener's to close; several readers use it one after the other."""


@dataclass
class ArrowTables(_Batches):
    """Arrow streams, each naming its table; several follow each other in one file, or lie in a folder."""

    sources: Sequence[Source]
    lost: dict[str, str] = field(default_factory=dict)
    bad: BadValues = field(default_factory=BadValues)
    _streams: dict[str, tuple[Source, int, tuple[str, ...]]] = field(default_factory=dict)
    _of: dict[str, Source] = field(default_factory=dict)  # lost tables, or files whose table is not known

    def __post_init__(self) -> None:
        for source in self.sources:
            self._index(source)

    def _index(self, source: Source) -> None:
        with source.open() as raw:
            counted = _Counted(raw)
            for _ in range(_MAX_STREAMS):
                start = counted.n_read
                if not raw.peek(1):  # type: ignore[attr-defined]
                    return
                table = ""
                try:
                    reader = pa.ipc.open_stream(pa.PythonFile(counted, mode="r"))
                    table = ((reader.schema.metadata or {}).get(b"table_name") or b"").decode("utf-8", "replace")
                    self._streams.setdefault(table, (source, start, tuple(reader.schema.names)))
                    for _batch in reader:
                        pass
                except (pa.ArrowException, OSError, EOFError) as error:
                    self.lost[table or source.own_name] = str(error)
                    self._of[table or source.own_name] = source
                    return

    def is_of(self, table: str, source: Source) -> bool:
        return self._of.get(table, source).path == source.path

    def tables(self) -> list[str]:
        return list(self._streams)

    def columns(self, table: str) -> tuple[str, ...]:
        return self._streams[table][2] if table in self._streams else ()

    def batches(self, table: str, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if table not in self._streams:
            return
        source, start, _ = self._streams[table]
        with source.open() as raw:
            left = start
            while left and (skipped := raw.read(min(left, 1 << 20))):
                left -= len(skipped)
            try:
                for batch in pa.ipc.open_stream(pa.PythonFile(_Counted(raw), mode="r")):
                    for first in range(0, batch.num_rows, _BATCH_ROWS):
                        yield batch.slice(first, _BATCH_ROWS)
            except (pa.ArrowException, OSError, EOFError) as error:
                self.lost[table] = str(error)
                self._of[table] = source


def load_columnar(tables: ParquetTables | ArrowTables, source: Source, sink: Sink) -> None:
    """Loads an export and says what of it could not be read; `source`, the file that leads, is damaged by its own."""
    if not any(tables.columns(table) for table in tables.tables()):
        why = "; ".join(sorted(tables.lost.values()))[:300] or "no table of Nsight Systems"
        raise ArtifactError(f"{source.name}: cannot be read ({why}); expected tables of Nsight Systems")
    load_tables(tables, sink, whole=True, lost=lambda: bool(tables.lost))
    if "StringIds" not in tables.tables():
        sink.warn("no-strings", "there is no table StringIds beside it", "names of calls, kernels and ranges")
    for table, why in sorted(tables.lost.items())[:50]:
        where = "" if tables.is_of(table, source) else "another file of this export, "
        sink.warn("damaged-table", f"{where}{table}: {why[:300]}", f"what {table} records from the damaged place on")
    if any(tables.is_of(table, source) for table in tables.lost):
        sink.damaged("partial")


def check_member(tables: ParquetTables | ArrowTables, sink: Sink) -> None:
    """Reads a file of an export that another one loads, so that its damage is told of itself too."""
    for table in tables.tables():
        for _ in tables.batches(table, tables.columns(table)):
            pass
    for table, why in sorted(tables.lost.items())[:50]:
        sink.warn("damaged-table", f"{table}: {why[:300]}", f"what {table} records from the damaged place on")
        sink.damaged("partial" if tables.columns(table) else "failed")


def locate_row(tables: ParquetTables | ArrowTables, row: int) -> Place | None:
    """The values of the row that `row` stands for."""
    place = place_of_row(row)
    if place is None:
        return None
    table, position = place
    for batch in tables.batches(table, tables.columns(table)):
        if position < batch.num_rows:
            values = batch.slice(position, 1).to_pylist()[0]
            said = ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)
            return Place(row=row, text=f"{table} row {place[1]}: {said}"[:_EXCERPT])
        position -= batch.num_rows
    return None
