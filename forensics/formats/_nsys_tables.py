"""The tables of an Nsight Systems export that become rows, in whatever clothes they come.

NVIDIA adds columns and tables with every release and makes tables only when they have rows. So nothing here depends on
a version: a column that an export lacks is NULL; what a number stands for is read from the export's own ENUM tables.
`row` of a slice is the table's number here, times 2^40, plus the rowid (SQLite) or the position from 0 (others).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from forensics.artifact import Sink

ROW_BITS = 40
RUNTIME, KERNEL, NVTX, OSRT = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS", "OSRT_API"
MEMORY_USAGE, GPU_METRICS = "CUDA_GPU_MEMORY_USAGE_EVENTS", "GPU_METRICS"


@dataclass
class BadValues:
    """Counts values that are not what their column holds; a block that is read again counts once."""

    _by_block: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def add(self, table: str, column: str, block: int, n: int) -> None:
        if n:
            self._by_block[table, column, block] = n

    def tell(self, sink: Sink) -> bool:
        """Warns of them; whether there are any."""
        found: Counter[str] = Counter()
        for (table, column, _), n in self._by_block.items():
            found[f"{table}.{column}"] += n
        if found:
            listed = ", ".join(f"{name} ({n})" for name, n in sorted(found.items())[:20])
            sink.warn("bad-values", f"values of the wrong kind: {listed}", "these values, and what refers to them")
            sink.damaged("partial")
        return bool(found)


class Tables(Protocol):
    """Reads the tables of one export."""

    bad: BadValues

    def tables(self) -> list[str]:
        """Names of the tables that are there."""

    def columns(self, table: str) -> tuple[str, ...]:
        """Its columns, () for a table that is not there."""

    def read(self, table: str, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Blocks of rows: `rowid`, then those of the columns that the table has; int64, or string where in `texts`."""


@dataclass(frozen=True)
class SliceTable:
    """How rows of a table become slices. `names`: columns with ids of StringIds, the first that has one counts."""

    kind: str
    names: tuple[str, ...] = ()
    host: bool = False  # on a thread (globalTid), else on a device (globalPid)
    label: str = ""  # name of rows without one
    enum: tuple[str, str] = ("", "")  # column and ENUM table that name the row
    more: tuple[str, ...] = field(default=())

    @property
    def columns(self) -> tuple[str, ...]:
        place = ("globalTid",) if self.host else ("globalPid", "deviceId", "streamId")
        enum = self.enum[:1] if self.enum[0] else ()
        return ("start", "end", *place, "correlationId", *self.names, *enum, *self.more)


_GRAPH = ("graphNodeId", "graphId")
# The order is that of the numbers in `row`: append only.
SLICES: dict[str, SliceTable] = {
    RUNTIME: SliceTable("runtime", ("nameId",), True, "CUDA call", more=("eventClass", "returnValue", "callchainId")),
    KERNEL: SliceTable("kernel", ("demangledName", "shortName", "mangledName"), label="kernel", more=_GRAPH),
    "CUPTI_ACTIVITY_KIND_MEMCPY": SliceTable(
        "memcpy", enum=("copyKind", "ENUM_CUDA_MEMCPY_OPER"), label="Memcpy",
        more=("bytes", "srcKind", "dstKind", *_GRAPH),
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": SliceTable("memset", label="Memset", more=("bytes", "memKind", *_GRAPH)),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": SliceTable(
        "sync", enum=("syncType", "ENUM_CUPTI_SYNC_TYPE"), label="Synchronization"
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": SliceTable("graph", label="CUDA graph", more=("graphId", "graphExecId")),
    NVTX: SliceTable("annotation", host=True),
    OSRT: SliceTable("os_call", ("nameId",), True, "system call", more=("eventClass", "callchainId")),
    "CUDA_GRAPH_EVENTS": SliceTable("graph_event", ("nameId",), True, "CUDA graph event", more=("graphId",)),
    "CUDA_GRAPH_NODE_EVENTS": SliceTable("graph_node", ("nameId",), True, "CUDA graph node", more=("graphNodeId",)),
    "PROFILER_OVERHEAD": SliceTable("overhead", ("nameId",), True, "profiler overhead"),
    "CUPTI_ACTIVITY_KIND_OVERHEAD": SliceTable(
        "overhead", ("nameId",), True, "profiler overhead", ("overheadType", "ENUM_CUPTI_OVERHEAD_TYPE")
    ),
    "CUBLAS_EVENTS": SliceTable("library_call", ("nameId",), True, "cuBLAS call"),
    "CUDNN_EVENTS": SliceTable("library_call", ("nameId",), True, "cuDNN call"),
    "MPI_COLLECTIVES_EVENTS": SliceTable("mpi", ("textId",), True, "MPI call"),
    "MPI_P2P_EVENTS": SliceTable("mpi", ("textId",), True, "MPI call"),
    "MPI_START_WAIT_EVENTS": SliceTable("mpi", ("textId",), True, "MPI call"),
    "MPI_OTHER_EVENTS": SliceTable("mpi", ("textId",), True, "MPI call"),
    "UCP_EVENTS": SliceTable("ucx", ("textId",), True, "UCX call"),
    "CUPTI_ACTIVITY_KIND_JIT": SliceTable("overhead", ("nameId",), True, "JIT compilation"),
}  # fmt: skip
NUMBERS = {table: number for number, table in enumerate((*SLICES, MEMORY_USAGE, GPU_METRICS))}
DEVICE_TABLES = (
    KERNEL, "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
)  # fmt: skip
NVTX_COLUMNS = ("start", "end", "globalTid", "eventType", "text", "textId", "domainId", "rangeId")


def is_export(tables: Sequence[str]) -> bool:
    """Whether these are tables of an Nsight Systems export."""
    return "StringIds" in tables and bool(
        {*SLICES, "META_DATA_EXPORT", "TARGET_INFO_GPU", "ANALYSIS_DETAILS", "PROCESSES", "ProcessStreams"}
        & set(tables)
    )


def place_of_row(row: int) -> tuple[str, int] | None:
    """The table, and rowid or position in it, that `row` of a slice, memory event or sample stands for."""
    tables = list(NUMBERS)
    number = row >> ROW_BITS
    return (tables[number], row & ((1 << ROW_BITS) - 1)) if 0 <= number < len(tables) else None
