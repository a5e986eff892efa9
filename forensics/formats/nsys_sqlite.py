"""SQLite exports of Nsight Systems, of every schema since 2021.

Times are nanoseconds since the start of the session, made absolute by TARGET_INFO_SESSION_START_TIME where it is there.
`row` of a slice holds the table and the rowid (`_nsys_tables`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from forensics.artifact import Head, Place, Sink, Source
from forensics.errors import Untrusted
from forensics.formats import _nsys_load
from forensics.formats._nsys_database import LIST_OF_TABLES, Database, whole_pages
from forensics.formats._nsys_load import load_tables
from forensics.formats._nsys_tables import is_export, place_of_row

VERSION = _nsys_load.VERSION
TITLE = "Nsight Systems export (SQLite)"
PROVIDES = _nsys_load.PROVIDES

_MAGIC = b"SQLite format 3\0"
_MARKS = (b"StringIds", b"CUPTI_ACTIVITY_KIND_", b"META_DATA_EXPORT", b"ANALYSIS_DETAILS", b"OSRT_API", b"NVTX_EVENTS")
_MAX_BYTES = 64 << 30  # of a compressed export, decompressed
_EXCERPT = 400


def recognise(head: Head) -> int:
    if not head.data.startswith(_MAGIC):
        return 0
    # A large export's list of tables can lie far behind the head: whether it is one shows when it is loaded.
    return 95 if b"StringIds" in head.data and any(mark in head.data for mark in _MARKS[1:]) else 20


def load(source: Source, sink: Sink) -> None:
    with _opened(source) as database:
        load_database(database, source, sink)


def load_database(database: Database, source: Source, sink: Sink) -> None:
    """Loads an export that lies open, and says what of it could not be read."""
    if not is_export(database.tables()):
        sink.warn("not-an-export", "an SQLite file without tables of Nsight Systems", "what it holds")
        sink.damaged("unknown")
        return
    if database.is_wal:
        sink.warn("wal", "written with a write-ahead log, which is not read", "rows that lie in the -wal file only")
    lacks = database.missing_bytes > 0
    load_tables(database, sink, whole=not lacks, lost=lambda: bool(database.lost))
    if lacks:
        message = f"the file ends at byte {database.ends_at}; its header counts {database.missing_bytes} bytes more"
        sink.warn("truncated", message, "calls, kernels and ranges on the missing pages", byte=database.ends_at)
    for lost in database.lost[:50]:
        until = "to the end of the table" if lost.until_rowid is None else f"to row {lost.until_rowid - 1}"
        message = f"{lost.table}: rows after {max(lost.after_rowid, 0)} {until} cannot be read ({lost.reason})"
        hides = "tables that are listed there" if lost.table == LIST_OF_TABLES else f"what {lost.table} records there"
        sink.warn("damaged-table", message, hides)
    if lacks or database.lost:
        sink.damaged("partial", byte=database.ends_at if lacks else None, lost_bytes=database.missing_bytes or None)


def locate(source: Source, row: int, near: tuple[int, int] | None) -> Place | None:
    """The row in its table, with its values."""
    del near
    place = place_of_row(row)
    if place is None:
        return None
    with _opened(source) as database:
        table, rowid = place
        text = database.describe(table, rowid)
    return Place(row=row, text=f"{table} row {rowid}: {text}"[:_EXCERPT]) if text else None


@contextmanager
def _opened(source: Source) -> Iterator[Database]:
    """The database; decompressed into a temporary file where it is compressed."""
    with tempfile.TemporaryDirectory(prefix="forensics-nsys-") as folder, source.path.open("rb") as raw:
        path = source.path
        if raw.read(len(_MAGIC)) != _MAGIC:
            path = Path(folder) / "export.sqlite"
            with source.open() as stream:
                _copy(stream, path, source.name)
        size = path.stat().st_size
        whole = whole_pages(path)
        if whole is not None:
            shutil.copyfile(path, Path(folder) / "whole.sqlite")
            path = Path(folder) / "whole.sqlite"
            os.truncate(path, whole)
        database = Database(path)
        database.missing_bytes = max(0, database.missing_bytes - (size - path.stat().st_size))
        database.ends_at = size
        try:
            yield database
        finally:
            database.close()


def _copy(stream: BinaryIO, path: Path, name: str) -> None:
    left = _MAX_BYTES
    with path.open("wb") as file:
        while data := stream.read(1 << 20):
            left -= len(data)
            if left < 0:
                raise Untrusted(f"{name}: decompresses to more than {_MAX_BYTES} bytes; the rest was not read")
            file.write(data)
