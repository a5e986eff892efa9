"""Folders of Parquet files that Nsight Systems exports, one file a table."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.artifact import Head, Place, Sink, Source
from forensics.formats import _nsys_load
from forensics.formats._nsys_columnar import (
    ParquetTables,
    check_member,
    leads,
    load_columnar,
    locate_row,
    parts_of,
    table_of,
)

VERSION = _nsys_load.VERSION
TITLE = "Nsight Systems export (folder of Parquet files)"
PROVIDES = _nsys_load.PROVIDES

_SUFFIX = ".parquet"


def recognise(head: Head) -> int:
    # What a Parquet file holds stands at its end, so the name of the table has to say it.
    own = head.name.replace("!", "/").rpartition("/")[2]
    return 90 if head.data.startswith(b"PAR1") and table_of(own, _SUFFIX) else 0


def companions(head: Head, names: Sequence[str]) -> Sequence[str]:
    return parts_of(head.name.replace("!", "/").rpartition("/")[2], names, _SUFFIX)


def load(source: Source, sink: Sink) -> None:
    if leads(source.own_name, list(source.companions), _SUFFIX):
        load_columnar(_tables(source), source, sink)
    else:
        check_member(ParquetTables({table_of(source.own_name, _SUFFIX) or "": source}), sink)


def locate(source: Source, row: int, near: tuple[int, int] | None) -> Place | None:
    del near
    return locate_row(_tables(source), row)


def _tables(source: Source) -> ParquetTables:
    files = {source.own_name: source, **source.companions}
    return ParquetTables({table: file for name, file in files.items() if (table := table_of(name, _SUFFIX))})
