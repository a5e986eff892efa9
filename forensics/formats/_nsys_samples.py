"""Device memory and GPU metrics of an export."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._nsys_report import Report
from forensics.formats._nsys_slices import numbered
from forensics.formats._nsys_tables import GPU_METRICS, MEMORY_USAGE

_MEMORY_COLUMNS = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", "memoryOperationType")
_HOST_KINDS = {"PAGEABLE", "PINNED"}


def emit_memory(report: Report) -> dict[int, tuple[int, int, int]]:
    """What the driver was asked for and given back, as segments; number of rows and their span by process."""
    spans: dict[int, tuple[int, int, int]] = {}
    columns = set(report.tables.columns(MEMORY_USAGE))
    if not {"start", "bytes", "memoryOperationType"} <= columns:
        return spans
    operations = report.enum("ENUM_CUDA_DEV_MEM_EVENT_OPER") or {0: "ALLOCATION", 1: "DEALLOCATION"}
    frees = sorted(n for n, name in operations.items() if "DEALLOC" in name.upper() or "FREE" in name.upper())
    kinds = report.enum("ENUM_CUDA_MEM_KIND")
    host = sorted(n for n, name in kinds.items() if name.rpartition("_")[2] in _HOST_KINDS) if kinds else [0, 1]
    for block in report.tables.read(MEMORY_USAGE, _MEMORY_COLUMNS):
        empty = pa.chunked_array([pa.nulls(block.num_rows, pa.int64())])
        process = block.column("globalPid") if "globalPid" in columns else empty
        device = block.column("deviceId") if "deviceId" in columns else empty
        on_host = pc.is_in(
            block.column("memKind") if "memKind" in columns else empty, value_set=pa.array(host, pa.int64())
        )
        is_free = pc.is_in(block.column("memoryOperationType"), value_set=pa.array(frees, pa.int64()))
        rows = pa.table(
            {
                "row": numbered(MEMORY_USAGE, block),
                "proc": report.place(process)[0],
                "ts_ns": pc.add(block.column("start"), pa.scalar(report.base_ns, pa.int64())),
                "device": pc.if_else(on_host, pa.scalar(-1, pa.int64()), device),
                "action": pc.if_else(is_free, "segment_free", "segment_alloc"),
                # Addresses use all 64 bits; SQLite keeps them signed.
                "addr": (block.column("address") if "address" in columns else empty).combine_chunks().view(pa.uint64()),
                "size_bytes": block.column("bytes"),
            }
        )
        report.sink.emit("memory_event", rows)
        for number in pc.unique(rows.column("proc")).to_pylist():
            ends = pc.min_max(rows.filter(pc.equal(rows.column("proc"), number)).column("ts_ns")).as_py()
            n, low, high = spans.get(number, (0, ends["min"], ends["max"]))
            spans[number] = (n + rows.num_rows, min(low, ends["min"]), max(high, ends["max"]))
    return spans


def emit_metrics(report: Report) -> int:
    """GPU metrics as samples: one value a row; a type's low byte is the GPU. Returns how many."""
    columns = set(report.tables.columns(GPU_METRICS))
    if not {"timestamp", "metricId", "value"} <= columns:
        return 0
    names = {
        (row.get("typeId"), row.get("metricId")): row.get("metricName") or ""
        for row in report.small("TARGET_INFO_GPU_METRICS", ("metricName", "typeName", "sourceName"))
    }
    n = 0
    for block in report.tables.read(GPU_METRICS, ("timestamp", "typeId", "metricId", "value")):
        types = block.column("typeId").to_pylist() if "typeId" in columns else [None] * block.num_rows
        metrics = block.column("metricId").to_pylist()
        texts = [names.get(key) or f"GPU metric {key[1]}" for key in zip(types, metrics, strict=True)]
        rows = pa.table(
            {
                "row": numbered(GPU_METRICS, block),
                "ts_ns": pc.add(block.column("timestamp"), pa.scalar(report.base_ns, pa.int64())),
                "source": pa.array(["trace"] * block.num_rows, pa.string()),
                "name": pa.array(texts, pa.string()),
                "device": pa.array([None if t is None else t & 0xFF for t in types], pa.int32()),
                "unit": pa.array(["%" if "%" in text else None for text in texts], pa.string()),
                "value": pc.cast(block.column("value"), pa.float64()),
            }
        )
        known = pc.is_valid(rows.column("value"))
        report.sink.emit("sample", rows.filter(known))
        n += rows.num_rows
    return n
