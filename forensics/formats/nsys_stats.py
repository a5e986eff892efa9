"""Output of `nsys stats`: one report or several in a text, as CSV or as a drawn table."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._nsys_sheets import Sheets, columns_of, is_sheet

VERSION = 1
TITLE = "Nsight Systems statistics (nsys stats: CSV, text)"
PROVIDES = ("slice", "sample")

_TITLED = re.compile(r"\s{0,3}\*\* [^\n]{1,200}? \((?P<report>[a-z][a-z0-9_]{2,60})[^()\n]{0,100}\):")
_PROCESSING = re.compile(
    r"Processing \[[^\n]{1,2000}?\] with \[[^\n]{0,2000}?(?P<report>[a-z][a-z0-9_]{2,60})\.py[^\n]{0,400}"
)
_IN_NAME = re.compile(
    r"(?:^|_)(?P<report>(?:cuda|nvtx|osrt|um|mpi|openmp|openacc|vulkan|wddm|dx1[12]|nvvideo)_?[a-z0-9_]*?(?:sum|trace))(?=[.@]|$)"
)
_OLD_NAME = re.compile(
    r"(?:^|_)(?P<report>(?:cudaapi|gpukern|gpumemtime|gpumemsize|gpu|kernexec|nvtx|nvtxpp|osrt)(?:sum|trace))(?=[.@]|$)"
)
_MARK = re.compile(r"\((?:ns|us|μs|ms|s|%|MB|KiB|MiB)\)|\b(?:Instances|Num Calls|NumCalls)\b")
_MAX_LINE = 1 << 20
_MAX_FIELDS = 200


def recognise(head: Head) -> int:
    for line in head.text.split("\n")[:60]:
        header = _header(line)
        if header is not None:
            return 93
    return 0


def _header(line: str) -> list[str] | None:
    """Titles of columns, where a line holds those of a report."""
    if len(line) > 4000 or not _MARK.search(line):
        return None
    titles = _fields(line)
    return titles if len(titles) >= 4 and is_sheet(titles) else None


def _fields(line: str) -> list[str]:
    if line.startswith("|"):
        return [field.strip() for field in line.strip().strip("|").split("|")[:_MAX_FIELDS]]
    try:
        return next(csv.reader([line]))[:_MAX_FIELDS]
    except (csv.Error, StopIteration):
        return []


def load(source: Source, sink: Sink) -> None:
    sheets = Sheets(sink)
    named = _IN_NAME.search(source.own_name) or _OLD_NAME.search(source.own_name)
    report, columns, n_titles, n_odd = named["report"] if named else "", None, 0, 0
    first_odd: int | None = None
    for number, line in _lines(source):
        said = _TITLED.match(line) or _PROCESSING.match(line)
        if said:
            report, columns = said["report"], None
            continue
        header = _header(line)
        if header is not None:
            columns, n_titles = columns_of(header), len(header)
            report = report or "nsys"
        elif columns is not None and line.strip() and not line.startswith("+-"):
            values = _fields(line)
            if len(values) == n_titles:
                sheets.add(report, columns, [value or None for value in values], number)
            else:
                n_odd += 1
                first_odd = first_odd or number
        elif not line.strip():
            columns = None
    sheets.finish()
    if not sheets.n_slices and not sheets.n_samples and n_odd:
        raise ArtifactError(f"{source.name}: no row of a report can be read; expected as many fields as titles")
    if n_odd:
        message = f"{n_odd} rows have not as many fields as the report has titles"
        sink.warn("odd-rows", message, "what these rows count", line=first_odd)
        sink.damaged("partial")


def _lines(source: Source) -> Iterator[tuple[int, str]]:
    with source.open() as stream:
        number = 0
        while line := stream.readline(_MAX_LINE):
            number += 1
            yield number, line.decode("utf-8", "replace").rstrip("\r\n")
