"""Metrics as CSV or TSV with a header line, and what `nvidia-smi --query-gpu=… --format=csv` prints.

Names and columns of metrics as in `_metric_rows`; of nvidia-smi as in `_device_fields`, with units from the header or
the cells, and `[N/A]` and its likes left out. A query loop repeats rows without a header, a resumed job may repeat it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._device_fields import DeviceSamples, canonical_field, device_value, says_device_is_lost
from forensics.formats._metric_rows import STEP_COLUMNS, TIME_COLUMNS, MetricRows, is_known_metric
from forensics.formats._quantities import parse_number, parse_time
from forensics.formats._samples import folded
from forensics.formats._text_lines import BadLines, decode_text, head_lines, numbered_lines

VERSION = 3
TITLE = "Metrics as CSV, nvidia-smi --query-gpu as CSV"
PROVIDES = ("sample", "sample.device", "fact")

_DELIMITERS = (",", "\t", ";")
_LOOK_FOR_HEADER = 10
_LOOK_AT_ROWS = 50
_MAX_COLUMNS = 1000
_PLACES = {*STEP_COLUMNS, *TIME_COLUMNS, "epoch"}
_SWITCHES = {"true": True, "false": False}

_DEVICE_COLUMN = re.compile(r"([a-z][a-z0-9_.]{1,80})(?: \[([A-Za-z%/]{1,10})\])?")
# One of these, written as nvidia-smi does, and the header is one of its.
_DEVICE_SIGNS = {
    "utilization.gpu",
    "utilization.memory",
    "memory.used",
    "memory.total",
    "memory.free",
    "power.draw",
} | {
    "temperature.gpu",
    "used_memory",
    "used_gpu_memory",
    "pci.bus_id",
    "gpu_uuid",
}
_TEXT_FIELDS = {
    "name",
    "gpu_name",
    "uuid",
    "gpu_uuid",
    "pci.bus_id",
    "gpu_bus_id",
    "serial",
    "vbios_version",
    "compute_cap",
}


@dataclass(frozen=True)
class _Header:
    line: int
    delimiter: str
    columns: tuple[str, ...]
    of_device: bool


def recognise(head: Head) -> int:
    header, rows = _find_header(head)
    if header is None:
        return 0
    if header.of_device:
        # Among other lines, the log that they are reads such rows too.
        return 90 if _n_others(head, header) <= 0.1 * len(rows) else 5
    if not rows or not any(folded(name) in _PLACES for name in header.columns):
        return 0
    cells = [cell for row in rows for cell in row if cell]
    numeric = sum(_is_quantity(cell) for cell in cells)
    if numeric < 0.6 * len(cells) or len(header.columns) < 2:
        return 0
    return 75 if any(is_known_metric(name) for name in header.columns) else 65


def _n_others(head: Head, header: _Header) -> int:
    """Lines that are neither the header nor rows of it, nor what nvidia-smi prints in place of a row."""
    lines = head_lines(decode_text(head.data).lstrip("\ufeff"), whole=head.whole)[: _LOOK_FOR_HEADER + _LOOK_AT_ROWS]
    cells = [_cells(line, header.delimiter) for line in lines if line.strip() and not says_device_is_lost(line)]
    return sum(row is None or len(row) != len(header.columns) for row in cells)


def _is_quantity(cell: str) -> bool:
    return parse_number(cell) is not None or cell.lower() in _SWITCHES or parse_time(cell) is not None


def _find_header(head: Head) -> tuple[_Header | None, list[list[str]]]:
    """The header among the first lines, and the rows after it that have as many cells."""
    lines = head_lines(decode_text(head.data).lstrip("\ufeff"), whole=head.whole)[: _LOOK_FOR_HEADER + _LOOK_AT_ROWS]
    for index, line in enumerate(lines[:_LOOK_FOR_HEADER]):
        for delimiter in _DELIMITERS:
            header = _as_header(line, index + 1, delimiter)
            if header is None:
                continue
            after = [_cells(row, delimiter) for row in lines[index + 1 :] if row.strip()]
            rows = [row for row in after if row is not None and len(row) == len(header.columns) and _has_number(row)]
            if header.of_device or len(rows) > 0.5 * len(after):
                return header, rows
    return None, []


def _as_header(line: str, number: int, delimiter: str) -> _Header | None:
    if delimiter not in line and not _is_device_column(line.strip()):
        return None
    cells = _cells(line, delimiter)
    if cells is None or len(cells) > _MAX_COLUMNS or any(parse_number(cell) is not None for cell in cells):
        return None
    if sum(not cell for cell in cells) > 1:  # the index column of a data frame has no name
        return None
    of_device = all(_DEVICE_COLUMN.fullmatch(cell) for cell in cells) and any(map(_is_device_column, cells))
    if len(cells) < 2 and not of_device:
        return None
    return _Header(number, delimiter, tuple(cells), of_device)


def _is_device_column(cell: str) -> bool:
    match = _DEVICE_COLUMN.fullmatch(cell)
    return match is not None and match[1] in _DEVICE_SIGNS


def _has_number(row: list[str]) -> bool:
    return any(parse_number(cell) is not None for cell in row)


def _cells(line: str, delimiter: str) -> list[str] | None:
    """The cells of one line; None where its quotes cannot be read."""
    if '"' not in line:
        return [cell.strip() for cell in line.split(delimiter)]
    try:
        rows = list(csv.reader([line], delimiter=delimiter, skipinitialspace=True, strict=True))
    except csv.Error:
        return None
    return [cell.strip() for cell in rows[0]] if rows else None


def load(source: Source, sink: Sink) -> None:
    header, _ = _find_header(source.head())
    if header is None:
        raise ArtifactError(f"{source.name}: no header line; expected names of columns, then rows of numbers", byte=0)
    bad = BadLines(sink, "bad-row", "the values of that line")
    rows = _rows(source, header, bad)
    kept = (
        _load_devices(sink, header, rows, bad) if header.of_device else _load_metrics(source, sink, header, rows, bad)
    )
    if not kept:
        raise ArtifactError(f"{source.name}: no row holds a value; expected rows of numbers after line {header.line}")


def _rows(source: Source, header: _Header, bad: BadLines) -> Iterator[tuple[int, list[str]]]:
    for number, text, whole in numbered_lines(source):
        if number <= header.line or not text.strip():
            continue
        cells = _cells(text, header.delimiter) if whole else None
        if cells is None or len(cells) != len(header.columns):
            found = "unreadable quotes or too long" if cells is None else f"{len(cells)} cells"
            bad.add(number, f"{found}; expected {len(header.columns)} cells as in line {header.line}")
        elif tuple(cells) != header.columns:
            yield number, cells


def _load_metrics(
    source: Source, sink: Sink, header: _Header, rows: Iterator[tuple[int, list[str]]], bad: BadLines
) -> int:
    metrics = MetricRows(sink)
    n_read = 0
    for number, cells in rows:
        n_read += 1
        record = {
            name: _SWITCHES.get(cell.lower(), cell)
            for name, cell in zip(header.columns, cells, strict=True)
            if cell and name
        }
        metrics.add(record, number)
    bad.close()
    return metrics.finish(n_read + bad.count, complete=bad.count == 0 and source.damage is None)


class DeviceTable:
    """What `nvidia-smi --query-gpu=... --format=csv` prints, row by row, where it stands inside other text."""

    def __init__(self, samples: DeviceSamples) -> None:
        self._samples = samples
        self._header: _Header | None = None
        self._known: dict[str, int] = {}

    def begin(self, line: str, number: int) -> bool:
        """Whether a line is the header of such a table, whose rows follow."""
        header = _as_header(line.strip(), number, ",") if "," in line else None
        if header is None or not header.of_device or len(header.columns) < 2:
            return False
        self._header = header
        return True

    def resumes(self, line: str) -> bool:
        """Whether a line is, beyond doubt, a further row of the table that was begun last: all its cells fit."""
        header = self._header
        if header is None or line.count(",") < len(header.columns) - 1:
            return False
        cells = _cells(line.strip(), ",")
        return (
            cells is not None
            and len(cells) == len(header.columns)
            and all(map(_fits, _device_columns(header), cells))
            and _has_quantity(cells)
        )

    @property
    def n_columns(self) -> int:
        """0 before a header."""
        return 0 if self._header is None else len(self._header.columns)

    def read(self, line: str, number: int, *, timed: bool = True) -> bool:
        """Whether a line is a row of the table that was begun last; its time counts when `timed`."""
        cells = _cells(line.strip(), ",") if self._header is not None else None
        if self._header is None or cells is None or len(cells) != len(self._header.columns) or not _has_quantity(cells):
            return False
        columns = _device_columns(self._header)
        if not timed:
            cells = ["" if name == "timestamp" else cell for (name, _), cell in zip(columns, cells, strict=True)]
        _add_device_row(self._samples, columns, cells, number, self._known)
        return True


def _fits(column: tuple[str, str | None], cell: str) -> bool:
    name, _ = column
    if name == "timestamp":
        return parse_time(cell) is not None
    if name == "index":
        return cell.isdecimal()
    return name in _TEXT_FIELDS or "N/A" in cell or device_value(cell) is not None


def _has_quantity(cells: list[str]) -> bool:
    return any(device_value(cell) is not None for cell in cells)


def _device_columns(header: _Header) -> list[tuple[str, str | None]]:
    matches = [_DEVICE_COLUMN.fullmatch(column) for column in header.columns]
    named = zip(matches, header.columns, strict=True)
    return [(canonical_field(m[1] if m else column), m[2] if m else None) for m, column in named]


def _load_devices(sink: Sink, header: _Header, rows: Iterator[tuple[int, list[str]]], bad: BadLines) -> int:
    columns = _device_columns(header)
    samples = DeviceSamples(sink)
    known: dict[str, int] = {}
    n_read = 0
    for number, cells in rows:
        n_read += 1
        _add_device_row(samples, columns, cells, number, known)
    bad.close()
    samples.finish(n_read=n_read + bad.count, complete=bad.count == 0)
    return samples.count


def _add_device_row(
    samples: DeviceSamples, columns: list[tuple[str, str | None]], cells: list[str], line: int, known: dict[str, int]
) -> None:
    row = {name: cell for (name, _), cell in zip(columns, cells, strict=True)}
    device = _device_of(row, known)
    moment = parse_time(row.get("timestamp", ""))
    ts_ns = moment.ns if moment else None
    process = f"{row['pid']} {row.get('process_name', row.get('name', ''))}".strip()[:500] if "pid" in row else None
    for (name, unit), cell in zip(columns, cells, strict=True):
        if name in {"index", "timestamp", "pid", "process_name", "count"} or (process and name == "name"):
            continue
        if name == "driver_version":
            samples.fact(name, cell, scope="version", line=line)
        elif name in _TEXT_FIELDS:
            samples.fact(name.removeprefix("gpu_"), cell, scope="device", line=line, device=device)
        elif process is not None and name == "used_memory":
            samples.add("process.memory.used", cell, unit=unit, line=line, device=device, ts_ns=ts_ns, entity=process)
        else:
            samples.add(name, cell, unit=unit, line=line, device=device, ts_ns=ts_ns)


def _device_of(row: dict[str, str], known: dict[str, int]) -> int | None:
    """The index as printed; without one, devices are numbered as they come, which is the order of nvidia-smi."""
    index = row.get("index", "")
    if index.isdecimal() and len(index) <= 4:
        return int(index)
    if "pid" in row:
        return None  # processes are listed for busy devices only
    identity = row.get("uuid") or row.get("gpu_uuid") or row.get("pci.bus_id")
    if not identity or len(known) > 1024:
        return None
    return known.setdefault(identity, len(known))
