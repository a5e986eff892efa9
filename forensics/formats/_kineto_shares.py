"""Splits a parsed slice of events into what each later stage needs of it: rows, links, flows, steps, names, counts.

Everything stays narrow: only rows that become `slice` keep texts, dictionary-encoded.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._kineto_rows import Damage, Slice

_FLOWS = pa.array(["fwdbwd", "forward_backward"])
_HOST_CATEGORIES = pa.array(["cpu_op", "Operator", "cuda_runtime", "Runtime", "user_annotation"])
_LAUNCHING = pa.array(["runtime", "driver"])
_INNERMOST = pa.array(["runtime", "driver", "memory", "instant"])
_COPIES = pa.array(["kernel", "memcpy", "memset"])
_NO_WORK = pa.array(["gpu_annotation", "sync"])
_MARKING = pa.array(["annotation", "cpu_op", "uncategorised"])
_MARKS = r"^(ProfilerStep#\d|Optimizer\.step#)"
_COLLECTIVES = r"^(nccl|gloo|mpi|ucc):[a-z_]"
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")

SLICE_COLUMNS = (
    *("row", "ts_ns", "kind", "name", "thread", "device", "stream", "dur_ns", "correlation", "bytes"),
    *("sequence", "graph_id", "shapes", "calls"),
)
_MEMORY_COLUMNS = ["row", "ts_ns", "name", "addr", "changed_bytes", "allocated", "reserved", "device_type", "device_id"]
_COLLECTIVE_COLUMNS = [
    *("row", "ts_ns", "dur_ns", "kind", "name", "external", "operation", "dtype", "in_elements", "out_elements"),
    *("group_name", "group_ranks", "group_sequence", "source_rank", "target_rank"),
]


@dataclass(frozen=True)
class Mark:
    """An annotation that marks a step: of the profiler's schedule, or one call of an optimizer."""

    document: int
    step: int | None
    optimizer: str | None
    start_ns: int
    end_ns: int


@dataclass
class Counts:
    """What one document holds."""

    n_read: int = 0
    n_kept: int = 0
    n_counters: int = 0
    n_slices: int = 0
    n_memory: int = 0
    n_device: int = 0
    n_frames: int = 0
    n_calls: int = 0
    n_shapes: int = 0
    n_sequence: int = 0
    n_collectives: int = 0
    first_ns: int | None = None
    last_ns: int = 0  # of any event
    end_ns: int | None = None
    pids: Counter[str] = field(default_factory=Counter)
    devices: Counter[int] = field(default_factory=Counter)

    def add(self, other: Counts) -> None:
        for name in vars(self):
            if name.startswith("n_"):
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_ns = min((t for t in (self.first_ns, other.first_ns) if t is not None), default=None)
        self.end_ns = max((t for t in (self.end_ns, other.end_ns) if t is not None), default=None)
        self.last_ns = max(self.last_ns, other.last_ns)
        self.pids.update(other.pids)
        self.devices.update(other.devices)


@dataclass
class Share:
    """One slice of a trace, split. `row` counts from the slice's first event."""

    document: int
    counts: Counts
    slices: pa.Table  # SLICE_COLUMNS and on_device
    links: dict[str, pa.Table]  # narrow tables: host, launch, op, flow, begun
    memory: pa.Table
    collectives: pa.Table
    marks: list[Mark]
    threads: list[tuple[str, str]]  # thread, its name
    counters: pa.Table
    positions: list[tuple[int, int]]
    damage: Damage


def split(parsed: Slice) -> Share:
    events = parsed.events
    kind, phase = events.column("kind"), events.column("ph")
    of_memory = pc.fill_null(pc.equal(kind, "memory"), False)
    of_work = pc.and_not(pc.is_valid(kind), of_memory)
    flows = pc.and_(pc.is_in(events.column("cat"), _FLOWS), pc.is_in(phase, pa.array(["s", "f"])))
    metadata = events.select(["name", "pid", "tid", "label", "label_name"]).filter(pc.equal(phase, "M"))
    slices, links = _slices(events, of_work), _links(events, flows, pc.is_in(phase, pa.array(["B", "E"])))
    memory = _only(events, _MEMORY_COLUMNS, of_memory)
    share = Share(
        parsed.document,
        _counts(events, slices, memory),
        slices,
        links,
        memory,
        _collectives(events),
        _marks(events, parsed.document),
        _threads(metadata),
        parsed.counters,
        parsed.positions,
        parsed.damage,
    )
    share.counts.n_counters = parsed.counters.num_rows
    share.counts.n_collectives = share.collectives.num_rows
    for pid, label in zip(*(metadata.column(c).to_pylist() for c in ("pid", "label")), strict=True):
        if label == "CPU" and pid is not None:
            share.counts.pids.setdefault(pid, 0)
    return share


def _only(events: pa.Table, columns: list[str], mask: Any) -> pa.Table:
    """Some columns of some rows; nothing else is copied."""
    chosen = events.select(columns)
    return chosen.filter(mask) if pc.any(mask).as_py() else chosen.slice(0, 0)


def _slices(events: pa.Table, mask: Any) -> pa.Table:
    given = [name if name != "thread" else "tid_number" for name in SLICE_COLUMNS]
    slices = _only(events, [*given, "on_device", "ph"], mask)
    columns = {name: slices.column(place) for place, name in enumerate([*SLICE_COLUMNS, "on_device"])}
    columns["thread"] = pc.if_else(columns["on_device"], pa.scalar(None, pa.int64()), columns["thread"])
    for name in ("kind", "name", "shapes", "calls"):
        columns[name] = columns[name].dictionary_encode()
    timed = pc.is_in(slices.column("ph"), pa.array(["X", "B"]))
    lasted = pc.max_element_wise(columns["dur_ns"], pa.scalar(0, pa.int64()), skip_nulls=False)
    columns["dur_ns"] = _where(timed, lasted)
    for name, low in (("correlation", 1), ("sequence", 0)):
        columns[name] = _where(pc.greater_equal(columns[name], low), columns[name])
    return pa.table(columns)


def _where(condition: Any, values: Any) -> Any:
    """The values, NULL where the condition does not hold."""
    return pc.if_else(pc.fill_null(condition, False), values, pa.scalar(None, values.type))


def _links(events: pa.Table, flows: Any, begun: Any) -> dict[str, pa.Table]:
    kind = events.column("kind")
    on_host = pc.and_(pc.invert(events.column("on_device")), pc.is_valid(events.column("ts_ns")))
    host_columns = ["row", "thread_key", "ts_ns", "dur_ns", "external", "kind", "name"]
    host = _only(events, host_columns, pc.and_(pc.is_valid(kind), on_host))
    is_frame = pc.equal(host.column("kind"), "python_function")
    none = pa.scalar(None, pa.string())
    has_frames = pc.any(is_frame).as_py()
    frames = pc.if_else(is_frame, host.column("name"), none) if has_frames else pa.nulls(len(host), pa.string())
    launching = pc.and_(pc.is_in(kind, _LAUNCHING), pc.greater(events.column("correlation"), 0))
    op_columns = ["row", "thread_key", "ts_ns", "dur_ns", "sequence", "forward_thread"]
    return {
        "host": pa.table(
            {
                **{name: host.column(name) for name in ("row", "thread_key", "ts_ns", "external")},
                "end_ns": pc.add(host.column("ts_ns"), _duration(host)),
                "innermost": pc.is_in(host.column("kind"), _INNERMOST),
                "frame": frames.dictionary_encode(),
            }
        ),
        "launch": _only(events, ["row", "correlation", "ts_ns"], pc.and_(launching, on_host)),
        "op": _only(events, op_columns, pc.and_(pc.equal(kind, "cpu_op"), on_host)),
        "flow": _only(events, ["row", "ph", "id", "thread_key", "ts_ns"], flows),
        "begun": _only(events, ["row", "ph", "thread_key", "ts_ns"], begun),
    }


def _duration(rows: pa.Table) -> Any:
    return pc.max_element_wise(pc.fill_null(rows.column("dur_ns"), 0), pa.scalar(0, pa.int64()))


def _counts(events: pa.Table, slices: pa.Table, memory: pa.Table) -> Counts:
    def valid(table: pa.Table, column: str) -> int:
        return int(table.num_rows - table.column(column).null_count)

    kind = slices.column("kind")
    kinds = kind.combine_chunks() if kind.num_chunks != 1 else kind.chunk(0)
    # Once for each distinct kind, not for each row.
    copies = pc.is_in(kinds.dictionary, _COPIES).take(kinds.indices)
    other = pc.invert(pc.is_in(kinds.dictionary, _NO_WORK)).take(kinds.indices)
    work = pc.or_(copies, pc.and_(slices.column("on_device"), other))
    hosts = events.select(["pid"]).filter(pc.is_in(events.column("cat"), _HOST_CATEGORIES)).column(0)
    times = pa.chunked_array([*slices.column("ts_ns").chunks, *memory.column("ts_ns").chunks], pa.int64())
    ends = pc.max(pc.add(slices.column("ts_ns"), _duration(slices))).as_py()
    last = pc.max(memory.column("ts_ns")).as_py()
    counts = Counts(
        n_read=events.num_rows,
        n_kept=valid(events, "ph"),
        n_slices=slices.num_rows,
        n_memory=memory.num_rows,
        n_device=pc.sum(work).as_py() or 0,
        n_frames=pc.sum(pc.equal(kinds.dictionary, "python_function").take(kinds.indices)).as_py() or 0,
        n_calls=valid(slices, "calls"),
        n_shapes=valid(slices, "shapes"),
        n_sequence=valid(slices, "sequence"),
        first_ns=pc.min(times.filter(pc.greater(times, 0))).as_py(),
        last_ns=pc.max(events.column("ts_ns")).as_py() or 0,
        end_ns=max((t for t in (ends, last) if t is not None), default=None),
    )
    for pair in pc.value_counts(hosts).to_pylist():
        if pair["values"] is not None:
            counts.pids[pair["values"]] += pair["counts"]
    for pair in pc.value_counts(slices.column("device").filter(copies)).to_pylist():
        if pair["values"] is not None and 0 <= pair["values"] < 1024:
            counts.devices[pair["values"]] += pair["counts"]
    return counts


def _collectives(events: pa.Table) -> pa.Table:
    """What tells of collectives: their metadata, on the call and on its kernel, and annotations named after them."""
    told = _only(
        events,
        _COLLECTIVE_COLUMNS,
        pc.and_(pc.is_valid(events.column("operation")), pc.is_valid(events.column("kind"))),
    )
    notes = _only(events, _COLLECTIVE_COLUMNS, pc.fill_null(pc.equal(events.column("kind"), "annotation"), False))
    return pa.concat_tables([told, notes.filter(pc.match_substring_regex(notes.column("name"), _COLLECTIVES))])


def _marks(events: pa.Table, document: int) -> list[Mark]:
    named = events.select(["name", "kind", "ts_ns", "dur_ns"]).filter(pc.is_in(events.column("kind"), _MARKING))
    named = named.filter(pc.match_substring_regex(named.column("name"), _MARKS))
    marks = []
    for row in named.select(["name", "ts_ns", "dur_ns"]).to_pylist():
        if row["ts_ns"] is not None and row["dur_ns"] is not None:
            step = _STEP.fullmatch(row["name"])
            end_ns = row["ts_ns"] + max(row["dur_ns"], 0)
            if step or not row["name"].startswith("Profiler"):
                optimizer = None if step else row["name"].partition("#")[2]
                marks.append(Mark(document, int(step[1]) if step else None, optimizer, row["ts_ns"], end_ns))
    return marks


def _threads(metadata: pa.Table) -> list[tuple[str, str]]:
    named = metadata.filter(pc.equal(metadata.column("name"), "thread_name"))
    pairs = zip(named.column("tid").to_pylist(), named.column("label_name").to_pylist(), strict=True)
    return [(tid, name) for tid, name in pairs if tid and name]
