"""Loads an export of Nsight Systems from whatever reads its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink, Stacks
from forensics.formats import _nsys_slices as rows_of
from forensics.formats._nsys_facts import emit_facts
from forensics.formats._nsys_links import Links, StepNames
from forensics.formats._nsys_report import Report
from forensics.formats._nsys_samples import emit_memory, emit_metrics
from forensics.formats._nsys_stacks import CallChains
from forensics.formats._nsys_tables import (
    DEVICE_TABLES,
    GPU_METRICS,
    MEMORY_USAGE,
    NVTX,
    NVTX_COLUMNS,
    RUNTIME,
    SLICES,
    Tables,
)  # fmt: skip

VERSION = 3  # of the rows: part of every format that loads through this module
PROVIDES = ("slice", "slice.device", "slice.return_code", "memory_event.driver", "sample", "fact")


@dataclass
class Span:
    """How many rows were loaded, and from when to when."""

    n: int = 0
    from_ns: int | None = None
    to_ns: int | None = None

    def add(self, rows: pa.Table) -> None:
        self.n += rows.num_rows
        ends = pc.min_max(rows.column("ts_ns")).as_py()
        if ends["min"] is not None:
            self.from_ns = ends["min"] if self.from_ns is None else min(self.from_ns, ends["min"])
            self.to_ns = ends["max"] if self.to_ns is None else max(self.to_ns, ends["max"])


@dataclass
class Export:
    """One export while it is being loaded; `whole`: nothing of its tables is missing."""

    report: Report
    sink: Sink
    links: Links = field(default_factory=Links)
    host: dict[int, Span] = field(default_factory=dict)  # by process number
    device: dict[int, Span] = field(default_factory=dict)
    results: dict[int, Span] = field(default_factory=dict)

    def load(self) -> None:
        self.names = rows_of.Names(self.report)
        self.chains = CallChains(self.report, Stacks())
        self._meet_processes()
        try:
            self._load_annotations()
            for table in SLICES:
                if table != NVTX and self.report.tables.columns(table):
                    self._load_table(table)
        finally:
            self.links.close()
        self.chains.emit(self.sink)

    def _meet_processes(self) -> None:
        """Gives the first number to the process that does CUDA work, not to a shell that started it."""
        for table in (RUNTIME, *DEVICE_TABLES, NVTX):
            place = "globalTid" if SLICES[table].host else "globalPid"
            if place in self.report.tables.columns(table):
                for block in self.report.tables.read(table, (place,)):
                    self.report.place(block.column(place).filter(pc.is_valid(block.column(place))))
                    break

    def _load_annotations(self) -> None:
        """NVTX twice: first what every other row lies within, then the rows themselves."""
        tables = self.report.tables
        if not tables.columns(NVTX):
            return
        steps = StepNames()
        for block in tables.read(NVTX, NVTX_COLUMNS, ("text",)):
            rows_of.note_domains(block, self.names)
            shown = block.filter(rows_of.is_shown(block))
            if shown.num_rows:
                rows = rows_of.slices(NVTX, shown, self.names)
                steps.add(rows)
                self.links.add_ranges(rows.filter(rows_of.is_nested(shown)))
        numbered = steps.table()
        if numbered.num_rows:
            self.sink.emit("step", numbered.append_column("origin", pa.array(["annotation"] * numbered.num_rows)))
        self.links.add_steps(numbered)
        self.links.nest()
        for block in tables.read(NVTX, NVTX_COLUMNS, ("text",)):
            shown = block.filter(rows_of.is_shown(block))
            if shown.num_rows:
                self._emit(NVTX, self.links.enclosing(rows_of.slices(NVTX, shown, self.names)))

    def _load_table(self, table: str) -> None:
        spec = SLICES[table]
        for block in self.report.tables.read(table, spec.columns):
            if not block.num_rows or "start" not in block.column_names:
                continue
            rows = rows_of.slices(table, block, self.names)
            if spec.host:
                rows = self.links.within(self.chains.add_to(table, rows, block))
            else:
                rows = self.links.launched(rows)
                rows = rows if "step" in rows.column_names else self.links.within(rows)
            if table == RUNTIME:
                self.links.add_calls(rows)
            self._emit(table, rows)

    def _emit(self, table: str, rows: pa.Table) -> None:
        self.sink.emit("slice", rows)
        for number in pc.unique(rows.column("proc")).to_pylist():
            if number is None:
                continue
            own = (
                rows
                if pc.all(pc.equal(rows.column("proc"), number)).as_py()
                else rows.filter(pc.equal(rows.column("proc"), number))
            )
            self.host.setdefault(number, Span()).add(own)
            if table in DEVICE_TABLES:
                self.device.setdefault(number, Span()).add(own)
            if table == RUNTIME and own.column("return_code").null_count < own.num_rows:
                self.results.setdefault(number, Span()).add(own)


def load_tables(tables: Tables, sink: Sink, *, whole: bool, lost: Callable[[], bool]) -> None:
    """Loads all that an export tells; `whole` and `lost()`: whether something of its tables is missing."""
    report = Report(tables, sink)
    export = Export(report, sink)
    export.load()
    memory = emit_memory(report)
    n_metrics = emit_metrics(report)
    is_lossy = emit_facts(report)
    sink.clock("epoch" if report.is_epoch else "relative")
    whole = not tables.bad.tell(sink) and whole and not lost() and not is_lossy
    for capability, spans in (
        ("slice", export.host),
        ("slice.device", export.device),
        ("slice.return_code", export.results),
    ):
        for number, span in sorted(spans.items()):
            sink.cover(
                capability,
                proc=number,
                complete=whole,
                n_read=span.n,
                n_kept=span.n,
                from_ns=span.from_ns,
                to_ns=span.to_ns,
            )
    for number, (n, low, high) in sorted(memory.items()):
        sink.cover("memory_event.driver", proc=number, complete=whole, n_read=n, n_kept=n, from_ns=low, to_ns=high)
    if n_metrics:
        sink.cover("sample", job=True, complete=whole, n_read=n_metrics, n_kept=n_metrics)
    sink.cover("fact", job=True, complete=False)
    if report.n_unnamed:
        sink.warn(
            "unknown-strings",
            f"{report.n_unnamed} ids of names are not in StringIds",
            "the names of those calls, kernels or ranges",
        )
    _name_what_is_left(tables, sink)


# Read for what they say of other rows, or of no use to any question asked so far.
_SILENT = (
    "ENUM_",
    "TARGET_INFO_",
    "META_DATA_",
    "EXPORT_META_DATA",
    "StringIds",
    "ANALYSIS_",
    "DIAGNOSTIC_",
    "PROCESSES",
    "ThreadNames",
    "sqlite_",
)


def _name_what_is_left(tables: Tables, sink: Sink) -> None:
    read = {*SLICES, MEMORY_USAGE, GPU_METRICS, "CUDA_CALLCHAINS", "OSRT_CALLCHAINS"}
    left = [name for name in tables.tables() if name not in read and not name.startswith(_SILENT)]
    if left:
        sink.fact("tables-not-loaded", ", ".join(sorted(left))[:2000], scope="note")
