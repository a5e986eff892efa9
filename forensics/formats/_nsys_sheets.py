"""Rows of `nsys stats` reports and of recipes' results, by the columns that they have.

A trace report (a row is one call, kernel or range) gives slices; a summary gives samples: count, total and extremes of
each name. Times of traces follow the session's clock, from 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._nsys_report import call_name

_BATCH_ROWS = 50_000
_UNITS = {"ns": 1, "us": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_COLUMN = re.compile(r"(?P<name>[^()]{1,80}?)\s{0,3}(?:\((?P<unit>[^()]{1,20})\))?")
_NAMES = ("name", "range", "text", "operation", "kernel name", "event")
_STARTS = ("start", "projected start", "api start")
_LENGTHS = ("duration", "projected duration", "dur", "api dur")
# Statistics of a summary that become samples, as older and newer reports call them.
_STATISTICS = {
    "total time": "total", "sum": "total", "total": "total",
    "num calls": "count", "instances": "count", "count": "count",
    "med": "median", "median": "median", "min": "min", "minimum": "min", "max": "max", "maximum": "max",
    "avg": "mean", "average": "mean", "mean": "mean",
}  # fmt: skip
_SUMMARY_NAMES = {"total", "count", "median", "min", "max", "mean"}
_KINDS = (
    ("cuda_api", "runtime"), ("cudaapi", "runtime"), ("gpu_proj", "gpu_annotation"), ("nvtx", "annotation"),
    ("gpu_trace", "kernel"), ("gputrace", "kernel"), ("kern_exec", "kernel"), ("osrt", "os_call"), ("mpi", "mpi"),
)  # fmt: skip
_SLICE_KINDS = {
    "row": pa.int64(), "proc": pa.int32(), "ts_ns": pa.int64(), "kind": pa.string(), "name": pa.string(),
    "thread": pa.int64(), "device": pa.int32(), "stream": pa.int64(), "dur_ns": pa.int64(), "correlation": pa.uint64(),
    "return_code": pa.int32(), "bytes": pa.int64(),
}  # fmt: skip
_SAMPLE_KINDS = {
    "row": pa.int64(), "proc": pa.int32(), "line": pa.int64(), "source": pa.string(), "name": pa.string(),
    "entity": pa.string(), "unit": pa.string(), "value": pa.float64(),
}  # fmt: skip


def columns_of(header: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Column → its place and the factor that makes nanoseconds of its values (1 where it has no unit of time)."""
    found: dict[str, tuple[int, int]] = {}
    for place, text in enumerate(header):
        matched = _COLUMN.fullmatch(text.strip())
        if matched:
            found.setdefault(matched["name"].strip().casefold(), (place, _UNITS.get(matched["unit"] or "", 1)))
    return found


def is_sheet(header: Sequence[str]) -> bool:
    """Whether these are columns of a report: a name, and either times of each row or statistics."""
    columns = columns_of(header)
    statistics = {_STATISTICS[name] for name in columns if name in _STATISTICS}
    timed = any(name in columns for name in _STARTS) and any(name in columns for name in _LENGTHS)
    return any(name in columns for name in _NAMES) and (timed or len(statistics) >= 4)


@dataclass
class Sheets:
    """Collects rows of the reports of one file and hands them over in batches."""

    sink: Sink
    n_slices: int = 0
    n_samples: int = 0
    processes: dict[int, int] = field(default_factory=dict)  # pid, or -1 - rank, → number
    _row: int = 0
    _waiting: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, report: str, columns: dict[str, tuple[int, int]], values: Sequence[Any], line: int | None) -> None:
        """One row of a report."""
        name = next(
            (str(values[columns[c][0]]) for c in _NAMES if c in columns and values[columns[c][0]] is not None), ""
        )
        start = self._amount(columns, values, _STARTS)
        length = self._amount(columns, values, _LENGTHS)
        if start is not None and any(c in columns for c in _LENGTHS):
            self._add_slice(report, columns, values, name, start, length, line)
        else:
            self._add_samples(report, columns, values, name, line)
        self._row += 1

    def _add_slice(
        self, report: str, columns: dict[str, tuple[int, int]], values: Sequence[Any], name: str, start: int,
        length: int | None, line: int | None,
    ) -> None:  # fmt: skip
        kind = next((kind for word, kind in _KINDS if word in report), "annotation")
        if kind == "kernel" and name.startswith("[CUDA mem"):
            kind = "memset" if "memset" in name else "memcpy"
        device = _first_integer(self._text(columns, values, "device"))
        self._put(
            "slice",
            {
                "row": self._row, "proc": self._process(columns, values), "ts_ns": start, "kind": kind,
                "name": call_name(name), "dur_ns": length, "device": device,
                "thread": self._amount(columns, values, ("tid",)), "stream": self._amount(columns, values, ("strm",)),
                "correlation": _positive(self._amount(columns, values, ("corrid",))),
                "return_code": self._amount(columns, values, ("result",)),
            },
        )  # fmt: skip
        self.n_slices += 1
        if line is not None:
            self._put("position", {"table": "slice", "row": self._row, "line": line})

    def _add_samples(
        self, report: str, columns: dict[str, tuple[int, int]], values: Sequence[Any], name: str, line: int | None
    ) -> None:
        for column, statistic in _STATISTICS.items():
            if column not in columns:
                continue
            place, factor = columns[column]
            value = _number(values[place])
            if value is None:
                continue
            unit = None if statistic == "count" else "B" if "size" in report else "ns"
            self._put(
                "sample",
                {
                    "row": self._row, "proc": self._process(columns, values), "line": line, "source": "trace",
                    "name": f"{report}.{statistic}", "entity": name or None, "unit": unit, "value": value * factor,
                },
            )  # fmt: skip
            self.n_samples += 1

    def _process(self, columns: dict[str, tuple[int, int]], values: Sequence[Any]) -> int:
        pid, rank = self._amount(columns, values, ("pid",)), self._amount(columns, values, ("rank",))
        key = pid if pid is not None else -1 - rank if rank is not None and rank >= 0 else None
        if key is None or not -(1 << 31) < key < 1 << 31:
            return 0
        if key not in self.processes and len(self.processes) < 10_000:
            self.processes[key] = number = len(self.processes)
            known = {"rank": rank, "rank_origin": "content"} if rank is not None else {}
            self.sink.proc(number, **({"pid": pid} if pid is not None else {}), **known)  # type: ignore[arg-type]
        return self.processes.get(key, 0)

    def _amount(self, columns: dict[str, tuple[int, int]], values: Sequence[Any], names: Sequence[str]) -> int | None:
        for name in names:
            if name in columns:
                value = _number(values[columns[name][0]])
                if value is not None and abs(value) < 2**62:
                    return int(value * columns[name][1])
        return None

    def _text(self, columns: dict[str, tuple[int, int]], values: Sequence[Any], name: str) -> str:
        return str(values[columns[name][0]] or "") if name in columns else ""

    def _put(self, table: str, row: dict[str, Any]) -> None:
        waiting = self._waiting.setdefault(table, [])
        waiting.append(row)
        if len(waiting) >= _BATCH_ROWS:
            self._write(table)

    def _write(self, table: str) -> None:
        rows = self._waiting.pop(table, [])
        kinds = {"slice": _SLICE_KINDS, "sample": _SAMPLE_KINDS}.get(table)
        if rows and kinds:
            self.sink.emit(table, pa.table({n: pa.array([r.get(n) for r in rows], k) for n, k in kinds.items()}))
        elif rows:
            self.sink.emit(table, pa.Table.from_pylist(rows))

    def finish(self) -> None:
        """Hands over the rest; traces of one report are never all that was recorded, summaries are none of it."""
        for table in list(self._waiting):
            self._write(table)
        for number in sorted(set(self.processes.values()) or {0}):
            if self.n_slices:
                self.sink.cover("slice", proc=number, complete=False, n_read=self.n_slices, n_kept=self.n_slices)
            if self.n_samples:
                self.sink.cover("sample", proc=number, complete=False, n_read=self.n_samples, n_kept=self.n_samples)
        if self.n_slices:
            self.sink.clock("relative")


def _number(value: Any) -> int | float | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return value
    try:
        text = str(value).replace(",", "") if not isinstance(value, float) else value
        whole = int(text) if isinstance(text, str) and text.lstrip("-").isdigit() and len(text) < 20 else None
        amount: int | float = whole if whole is not None else float(text)
    except (ValueError, OverflowError):
        return None
    return amount if math.isfinite(amount) else None


def _positive(value: int | None) -> int | None:
    return value if value is not None and value > 0 else None


def _first_integer(text: str) -> int | None:
    found = re.search(r"\((\d{1,4})\)|^\s*(\d{1,4})\s*$", text)  # "NVIDIA A100 (0)", or the number alone
    return int(found[1] or found[2]) if found else None
