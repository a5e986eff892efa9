"""Arrow exports of Nsight Systems: a folder with a file for each table, or one file with all of them."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.artifact import Head, Place, Sink, Source
from forensics.formats import _nsys_load
from forensics.formats._nsys_columnar import (
    ArrowTables,
    check_member,
    leads,
    load_columnar,
    locate_row,
    parts_of,
    table_of,
)

VERSION = _nsys_load.VERSION
TITLE = "Nsight Systems export (Arrow, one file or a folder)"
PROVIDES = _nsys_load.PROVIDES

_SUFFIX = ".arrow"
_STREAM = b"\xff\xff\xff\xff"  # how an Arrow IPC stream begins since 2020
_MARKS = (
    b"ANALYSIS_DETAILS",
    b"StringIds",
    b"CUPTI_ACTIVITY_KIND",
    b"NVTX_EVENTS",
    b"OSRT_",
    b"TARGET_INFO_",
    b"ENUM_",
)


def recognise(head: Head) -> int:
    if not head.data.startswith(_STREAM) or b"table_name" not in head.data:
        return 0
    known = table_of(head.name.replace("!", "/").rpartition("/")[2], _SUFFIX)
    return 90 if known or any(mark in head.data for mark in _MARKS) else 0


def companions(head: Head, names: Sequence[str]) -> Sequence[str]:
    return parts_of(head.name.replace("!", "/").rpartition("/")[2], names, _SUFFIX)


def load(source: Source, sink: Sink) -> None:
    if not source.companions or leads(source.own_name, list(source.companions), _SUFFIX):
        load_columnar(_tables(source), source, sink)
    else:
        check_member(ArrowTables([source]), sink)


def locate(source: Source, row: int, near: tuple[int, int] | None) -> Place | None:
    del near
    return locate_row(_tables(source), row)


def _tables(source: Source) -> ArrowTables:
    return ArrowTables([source, *source.companions.values()])
