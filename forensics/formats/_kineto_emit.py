"""Hands the linked events of a trace to the sink as rows of the shared tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._kineto_links import LinkTables
from forensics.formats._kineto_nesting import CallStacks
from forensics.formats._kineto_shares import SLICE_COLUMNS
from forensics.formats._kineto_spool import Spool

_BIGGEST_NAME = 500


@dataclass(frozen=True)
class Documents:
    """For each document of the file: what its times are relative to, and its process."""

    base_ns: Sequence[int]
    proc: Sequence[int]

    def absolute(self, rows: pa.Table, column: str = "ts_ns") -> Any:
        """The times of rows, whose column `document` says what they are relative to."""
        base = self._of(rows, self.base_ns, pa.int64())
        return pc.add(rows.column(column), base)

    def procs(self, rows: pa.Table) -> Any:
        return self._of(rows, self.proc, pa.int32())

    def _of(self, rows: pa.Table, values: Sequence[int], kind: pa.DataType) -> Any:
        if len(set(values)) == 1:
            return pa.repeat(pa.scalar(values[0], kind), rows.num_rows)
        return pa.array(values, kind).take(rows.column("document").combine_chunks())


def emit_slices(
    sink: Sink, spool: Spool, links: LinkTables, documents: Documents, stacks: CallStacks
) -> tuple[int, int]:
    """Returns how many rows of device work name a launch, and for how many of them it was found."""
    texts: dict[str, int] = {}
    n_launched = n_found = 0
    for group in spool.groups():
        found = links.attach(group.select(["row", "document", "ts_ns", "correlation", "on_device"]))
        columns = {name: group.column(name) for name in SLICE_COLUMNS if name != "calls"}
        columns["ts_ns"], columns["proc"] = documents.absolute(group), documents.procs(group)
        for name in ("launch_row", "forward_row", "step", "parent_row"):
            columns[name] = found.column(name)
        if links.has("begun"):
            paired = found.column("paired_ns")
            columns["dur_ns"] = pc.coalesce(
                columns["dur_ns"], pc.max_element_wise(paired, pa.scalar(0, pa.int64()), skip_nulls=False)
            )
        calls = group.column("calls")
        stack = found.column("stack_id")
        columns["stack_id"] = _stacks_of_texts(calls, stack, stacks, texts) if calls.null_count < len(calls) else stack
        named = pc.and_(group.column("on_device"), pc.is_valid(group.column("correlation")))
        n_launched += pc.sum(named).as_py() or 0
        n_found += len(found) - found.column("launch_row").null_count
        sink.emit("slice", pa.table(columns))
    return n_launched, n_found


def _stacks_of_texts(calls: pa.ChunkedArray, given: pa.ChunkedArray, stacks: CallStacks, known: dict[str, int]) -> Any:
    """Stacks that older recorders wrote as text with each operator, where there are no frames."""
    chunks = []
    for chunk in calls.chunks:
        texts = chunk.dictionary.to_pylist()
        for text in texts:
            if text not in known:
                known[text] = stacks.from_text(text)
        ids = pa.array([known[text] or None for text in texts], pa.uint64())
        chunks.append(ids.take(chunk.indices))
    return pc.coalesce(given, pa.chunked_array(chunks, pa.uint64()))


def emit_memory(sink: Sink, spool: Spool, links: LinkTables, documents: Documents) -> None:
    """Events of the allocator as the profiler saw them, and its totals after each as samples."""
    for group in spool.groups():
        part = group.select(["row", "document", "ts_ns"])
        part = part.append_column("correlation", pa.nulls(len(part), pa.int64()))
        found = links.attach(part.append_column("on_device", pa.repeat(pa.scalar(False), len(part))))
        changed = group.column("changed_bytes")
        host = pc.fill_null(pc.equal(group.column("device_type"), 0), False)
        action = pc.if_else(pc.fill_null(pc.less(changed, 0), False), "free_completed", "alloc")
        rows = pa.table(
            {
                "row": group.column("row"),
                "proc": documents.procs(group),
                "ts_ns": documents.absolute(group),
                "device": _small(pc.if_else(host, pa.scalar(-1, pa.int64()), group.column("device_id"))),
                "step": found.column("step"),
            }
        )
        # Bytes are negative where memory was given back; totals are those after the event.
        events = {
            "action": pc.if_else(pc.equal(group.column("name"), "[OutOfMemory]"), "oom", action),
            "addr": group.column("addr"),
            "size_bytes": pc.abs(changed),
            "stack_id": found.column("stack_id"),
        }
        whole = rows
        for name, values in events.items():
            whole = whole.append_column(name, values)
        sink.emit("memory_event", whole)
        _emit_totals(sink, rows, "Total Allocated", group.column("allocated"))
        _emit_totals(sink, rows, "Total Reserved", group.column("reserved"))


def _small(values: Any) -> Any:
    fits = pc.and_(pc.greater_equal(values, -1), pc.less(values, 1 << 31))
    return pc.cast(pc.if_else(fits, values, pa.scalar(None, pa.int64())), pa.int32())


def _emit_totals(sink: Sink, rows: pa.Table, name: str, values: pa.ChunkedArray) -> None:
    keep = pc.is_valid(values)
    if name == "Total Reserved":  # always 0 for host memory
        keep = pc.and_(keep, pc.not_equal(pc.fill_null(rows.column("device"), 0), -1))
    samples = rows.append_column("value", pc.cast(values, pa.float64(), safe=False)).filter(keep)
    for column, text in (("source", "trace"), ("name", name), ("unit", "B")):
        samples = samples.append_column(column, pa.repeat(pa.scalar(text), samples.num_rows))
    if samples.num_rows:
        sink.emit("sample", samples)


def emit_counters(sink: Sink, spool: Spool, documents: Documents) -> None:
    """One sample for each number of each counter event."""
    for group in spool.groups():
        samples: list[dict[str, Any]] = []
        for event in group.to_pylist():
            title, ts_ns, document = event["name"], event["ts_ns"], event["document"]
            for key, value in _numbers(event["args"]):
                name = f"{title or ''}.{key}" if key and key != title else title or key
                samples.append(
                    {
                        "row": event["row"],
                        "proc": documents.proc[document],
                        "ts_ns": None if ts_ns is None else ts_ns + documents.base_ns[document],
                        "name": name[:_BIGGEST_NAME],
                        "source": "trace",
                        "value": value,
                    }
                )
        if samples:
            sink.emit("sample", pa.Table.from_pylist(samples))


def _numbers(args: str | None) -> list[tuple[str, float]]:
    try:
        members = orjson.loads(args or "{}")
    except orjson.JSONDecodeError:  # nan and inf
        return []
    if not isinstance(members, Mapping):
        return []
    return [(k, float(v)) for k, v in members.items() if isinstance(v, int | float) and not isinstance(v, bool)]


def emit_positions(sink: Sink, positions: Sequence[tuple[int, int]]) -> None:
    if positions:
        rows, places = zip(*positions, strict=True)
        sink.emit("position", pa.table({"table": ["slice"] * len(rows), "row": rows, "byte": places}))
