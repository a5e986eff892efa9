"""Turns blocks of an export's event tables into rows of `slice`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._nsys_report import Report, call_name
from forensics.formats._nsys_tables import NUMBERS, NVTX, OSRT, ROW_BITS, RUNTIME, SLICES, SliceTable

_LOW = (1 << ROW_BITS) - 1
_NO_STREAM = 0xFFFFFFFF  # a synchronisation of the whole context
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_COPIES = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_SYNCS = ("Synchronization", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
_RANGE, _START_END, _MARK, _DOMAIN = 59, 60, 34, 75
# torch.autograd.profiler.emit_nvtx: "aten::mm, seq = 12, sizes = [[2, 3]], op_id = 7".
_OPERATOR = re.compile(
    r"(?P<name>[^,]{1,300}?)(?:, seq = (?P<seq>\d{1,18}))?(?:, sizes = (?P<sizes>\[.{0,20000}?\]))?"
    r"(?:, op_id = \d{1,18}.{0,200}|, input_op_ids.{0,2000})?",
    re.DOTALL,
)


@dataclass
class Names:
    """What numbers of the export stand for, by the export's own tables, else by the ones of 2024."""

    report: Report
    copies: dict[int, str] = field(default_factory=dict)
    syncs: dict[int, str] = field(default_factory=dict)
    memory: dict[int, str] = field(default_factory=dict)
    driver_classes: frozenset[int] = frozenset({1})
    domains: dict[tuple[int, int], str] = field(default_factory=dict)  # (globalPid, domainId)

    def __post_init__(self) -> None:
        said = self.report.enum("ENUM_CUDA_MEMCPY_OPER")
        copies = {number: name.rpartition("_")[2].replace("TO", "to") for number, name in said.items()}
        self.copies = dict(enumerate(_COPIES)) | copies
        said = self.report.enum("ENUM_CUPTI_SYNC_TYPE")
        self.syncs = dict(enumerate(_SYNCS)) | {n: _sync_name(name) for n, name in said.items()}
        said = self.report.enum("ENUM_CUDA_MEM_KIND")
        kinds = {n: name.partition("KIND_")[2].replace("_", " ").title() for n, name in said.items() if "KIND_" in name}
        self.memory = dict(enumerate(_MEMORY_KINDS)) | kinds
        classes = self.report.enum("ENUM_NSYS_EVENT_CLASS")
        drivers = {n for n, name in classes.items() if "CUDA" in name and "DRIVER" in name and "EGL" not in name}
        self.driver_classes = frozenset(drivers or {1})


def _sync_name(symbol: str) -> str:
    words = symbol.rpartition("TYPE_")[2].replace("_", " ").title()
    return words.replace("Synchronize", "Sync")


def slices(table: str, block: pa.Table, names: Names) -> pa.Table:
    """The block as rows of `slice` without links; of NVTX_EVENTS only ranges and marks are meant."""
    spec, report = SLICES[table], names.report
    columns: dict[str, pa.Array | pa.ChunkedArray] = {}
    size = block.num_rows
    start, end = _column(block, "start"), _column(block, "end")
    columns["row"] = numbered(table, block)
    columns["ts_ns"] = pc.add(start, pa.scalar(report.base_ns, pa.int64()))
    # Work that an abort cut off has no end, or one before its start.
    columns["dur_ns"] = pc.if_else(pc.greater_equal(end, start), pc.subtract(end, start), pa.scalar(None, pa.int64()))
    columns["proc"], threads = report.place(_column(block, "globalTid" if spec.host else "globalPid"))
    columns["kind"] = _constant(spec.kind, size)
    if spec.host:
        columns["thread"] = threads
    else:
        columns["device"], columns["stream"] = (
            _column(block, "deviceId"),
            _unless(_column(block, "streamId"), _NO_STREAM),
        )
    correlation = _column(block, "correlationId")
    columns["correlation"] = pc.if_else(pc.greater(correlation, 0), correlation, pa.scalar(None, pa.int64()))
    columns["graph_id"] = _graph(block)
    columns["name"] = _name(table, spec, block, names)
    if table == RUNTIME:
        columns["return_code"] = _in_range(_column(block, "returnValue"), 31)
        driver = pc.is_in(_column(block, "eventClass"), value_set=pa.array(sorted(names.driver_classes), pa.int64()))
        columns["kind"] = pa.DictionaryArray.from_arrays(
            pc.cast(driver, pa.int32()).combine_chunks(), ["runtime", "driver"]
        )
    elif table == OSRT:  # 31 and 32: a thread starts or ends
        columns["kind"] = pc.if_else(
            pc.is_in(_column(block, "eventClass"), value_set=pa.array([31, 32])), "instant", spec.kind
        )
    elif table == NVTX:
        columns.update(_annotations(block, names))
    if "bytes" in block.column_names:
        columns["bytes"] = block.column("bytes")
    return pa.table(columns)


def numbered(table: str, block: pa.Table) -> pa.Array:
    """`row` of each row of a block."""
    first = pa.scalar(NUMBERS[table] << ROW_BITS, pa.int64())
    return pc.add(pc.bit_wise_and(block.column("rowid"), pa.scalar(_LOW, pa.int64())), first)


def _column(block: pa.Table, name: str) -> pa.ChunkedArray:
    if name in block.column_names:
        return block.column(name)
    return pa.chunked_array([pa.nulls(block.num_rows, pa.int64())])


def _constant(text: str, size: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int32()).take(pa.nulls(size, pa.int32()).fill_null(0)), [text]
    )


def _unless(values: pa.ChunkedArray, none: int) -> pa.ChunkedArray:
    return pc.if_else(pc.equal(values, pa.scalar(none, pa.int64())), pa.scalar(None, pa.int64()), values)


def _in_range(values: pa.ChunkedArray, bits: int) -> pa.ChunkedArray:
    low, high = pa.scalar(-(1 << bits), pa.int64()), pa.scalar((1 << bits) - 1, pa.int64())
    fits = pc.and_(pc.greater_equal(values, low), pc.less_equal(values, high))
    return pc.if_else(fits, values, pa.scalar(None, pa.int64()))


def _graph(block: pa.Table) -> pa.ChunkedArray:
    """The graph of each row; a node's id holds its graph's in the upper half."""
    graph, node = _column(block, "graphId"), _column(block, "graphNodeId")
    graph = pc.if_else(pc.greater(graph, 0), graph, pa.scalar(None, pa.int64()))
    return pc.coalesce(graph, pc.if_else(pc.greater(node, 0), pc.shift_right(node, pa.scalar(32, pa.int64())), None))


def _name(table: str, spec: SliceTable, block: pa.Table, names: Names) -> pa.Array:
    if spec.kind == "memcpy":
        return _of_numbers(block, ("copyKind", "srcKind", "dstKind"), lambda n: _copy_name(names, *n))
    if spec.kind == "memset":
        return _of_numbers(
            block,
            ("memKind",),
            lambda n: f"Memset ({names.memory.get(n[0], 'Unknown')})" if n[0] is not None else "Memset",
        )
    if spec.kind == "sync":
        return _of_numbers(block, ("syncType",), lambda n: names.syncs.get(n[0] or 0, "Synchronization"))
    if spec.kind == "graph":
        return _of_numbers(block, ("graphId",), lambda n: f"CUDA graph {n[0]}" if n[0] else "CUDA graph")
    given = [block.column(name) for name in spec.names if name in block.column_names]
    if not given:
        return _constant(spec.label, block.num_rows)
    return names.report.named(pc.coalesce(*given) if len(given) > 1 else given[0], call_name, spec.label)


def _of_numbers(block: pa.Table, columns: tuple[str, ...], name: Callable[[tuple[int | None, ...]], str]) -> pa.Array:
    """Names that follow from a few small numbers of each row."""
    key = pc.binary_join_element_wise(
        *[pc.cast(_column(block, column), pa.string()) for column in columns],
        ",",
        null_handling="replace",
        null_replacement="",
    )
    encoded = key.combine_chunks().dictionary_encode()
    numbers = [tuple(int(n) if n else None for n in text.split(",")) for text in encoded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array([name(n) for n in numbers], pa.string()))


def _copy_name(names: Names, copy: int | None, source: int | None, target: int | None) -> str:
    way = names.copies.get(copy if copy is not None else 0, "Unknown")
    if source is None or target is None:
        return f"Memcpy {way}"
    return f"Memcpy {way} ({names.memory.get(source, 'Unknown')} -> {names.memory.get(target, 'Unknown')})"


def _annotations(block: pa.Table, names: Names) -> dict[str, pa.Array]:
    """Names, kinds and what PyTorch's operators say of themselves."""
    report = names.report
    texts = (
        block.column("text").combine_chunks() if "text" in block.column_names else pa.nulls(block.num_rows, pa.string())
    )
    if "textId" in block.column_names:
        ids = block.column("textId").combine_chunks()
        texts = pc.coalesce(texts, report.named(pa.chunked_array([ids]), str, "").cast(pa.string()))
    keys = pa.table(
        {
            "text": texts,
            "domain": _column(block, "domainId"),
            "tid": _column(block, "globalTid"),
            "type": _column(block, "eventType"),
        }
    )
    domains = {domain for _, domain in names.domains}
    described: dict[tuple[object, ...], tuple[str, str, int | None, str | None]] = {}
    rows = []
    for text, domain, tid, kind in zip(*(c.to_pylist() for c in keys.columns), strict=True):
        prefix = names.domains.get(((tid or 0) >> 24, domain), "") if domain in domains else ""
        key = (text, prefix, kind)
        if key not in described:
            if len(described) > 100_000:
                described.clear()
            described[key] = _describe(text or "", prefix, kind)
        rows.append(described[key])
    name, kinds, sequence, shapes = zip(*rows, strict=True) if rows else ((), (), (), ())
    return {
        "name": pa.array(name, pa.string()), "kind": pa.array(kinds, pa.string()),
        "sequence": pa.array(sequence, pa.int64()), "shapes": pa.array(shapes, pa.string()),
    }  # fmt: skip


def _describe(text: str, domain: str, kind: int | None) -> tuple[str, str, int | None, str | None]:
    if domain:
        text = f"{domain}:{text}"
    if kind == _MARK:
        return text, "instant", None, None
    found = _OPERATOR.fullmatch(text) if ", " in text else None
    if found and found["name"] != text:
        return found["name"], "cpu_op", int(found["seq"]) if found["seq"] else None, found["sizes"]
    return text, "annotation", None, None


def is_shown(block: pa.Table) -> pa.Array:
    """Which rows of NVTX_EVENTS are ranges or marks; the others name domains, categories and threads."""
    return pc.is_in(_column(block, "eventType"), value_set=pa.array([_RANGE, _START_END, _MARK], pa.int64()))


def is_nested(block: pa.Table) -> pa.Array:
    """Which rows of NVTX_EVENTS are ranges that were pushed and popped on one thread."""
    return pc.equal(_column(block, "eventType"), pa.scalar(_RANGE, pa.int64()))


def note_domains(block: pa.Table, names: Names) -> None:
    """Learns names of domains: a domain's number is its own process's."""
    for row in block.filter(pc.equal(_column(block, "eventType"), pa.scalar(_DOMAIN, pa.int64()))).to_pylist():
        text = row.get("text")
        if text is None and row.get("textId") is not None:
            text = names.report.texts(pa.array([row["textId"]], pa.int64()))[row["textId"]]
        if text and row.get("domainId") is not None and len(names.domains) < 100_000:
            names.domains[(row.get("globalTid") or 0) >> 24, row["domainId"]] = text[:200]
