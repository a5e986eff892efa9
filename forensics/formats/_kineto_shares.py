"""Splits a parsed slice of events into what each later stage needs of it: rows, links, flows, steps, names, counts.

Everything stays narrow: only rows that become `slice` keep texts, dictionary-encoded.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._kineto_rows import Damage, Slice
from forensics.formats._kineto_typing import MEMORY, Events, Rows, dictionary, valid

_FLOWS = ("fwdbwd", "forward_backward")
_HOST_CATEGORIES = ("cpu_op", "Operator", "cuda_runtime", "Runtime", "user_annotation")
_INNERMOST = ("runtime", "driver", MEMORY, "instant")
_COPIES = ("kernel", "memcpy", "memset")
_NO_WORK = ("gpu_annotation", "sync")
_MARKING = ("annotation", "cpu_op", "uncategorised")
_MARK = re.compile(r"ProfilerStep#\d|Optimizer\.step#", re.ASCII)
_COLLECTIVE = re.compile(r"(nccl|gloo|mpi|ucc):[a-z_]")
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")

SLICE_COLUMNS = (
    *("row", "ts_ns", "kind", "name", "thread", "device", "stream", "dur_ns", "correlation", "bytes"),
    *("sequence", "graph_id", "shapes", "calls"),
)
_MEMORY_COLUMNS = ("addr", "changed_bytes", "allocated", "reserved", "device_type", "device_id")
_COLLECTIVE_COLUMNS = (
    *("external", "operation", "dtype", "in_elements", "out_elements"),
    *("group_name", "group_ranks", "group_sequence", "source_rank", "target_rank"),
)


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
    events = Events(parsed.events, parsed.document)
    of_memory = events.of_kind(MEMORY)
    work = events.taken(np.flatnonzero((events.kind >= 0) & ~of_memory))
    metadata = events.taken(np.flatnonzero(events.phase.where("M")))
    slices, memory = _slices(events, work), _memory(events.taken(np.flatnonzero(of_memory)))
    share = Share(
        parsed.document,
        _counts(events, work, slices, memory),
        slices,
        _links(events),
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
    for pid, label in zip(*(metadata[column].to_pylist() for column in ("pid", "label")), strict=True):
        if label == "CPU" and pid is not None:
            share.counts.pids.setdefault(pid, 0)
    return share


def _slices(events: Events, work: Rows) -> pa.Table:
    timed = events.phase.where("X", "B")[work.rows]
    lasted = pa.array(work.lasted_ns(), mask=~(timed & events.has_dur[work.rows]))
    correlation, sequence, graph = work["correlation"], work["sequence"], work["graph_id"]
    shapes, calls = work["shapes"].dictionary_encode(), work["calls"].dictionary_encode()
    return pa.table(
        {
            "row": work.row(),
            "ts_ns": work.ts_ns(),
            "kind": work.kind(),
            "name": work.name(),
            "thread": work.thread(),
            "device": work.device(),
            "stream": work.stream(),
            "dur_ns": lasted,
            "correlation": _where(pc.greater_equal(correlation, 1), correlation),
            "bytes": work.bytes(),
            "sequence": _where(pc.greater_equal(sequence, 0), sequence),
            "graph_id": _where(pc.not_equal(graph, 0), graph),
            "shapes": _longer(shapes, 2),
            "calls": _longer(calls, 0),
            "on_device": work.on_device(),
        }
    )


def _longer(texts: pa.DictionaryArray, length: int) -> pa.DictionaryArray:
    """Texts of more characters than that; the others are NULL."""
    kept = pc.greater(pc.utf8_length(texts.dictionary), length)
    if pc.all(kept).as_py() is not False:
        return texts
    return pc.if_else(kept, texts.dictionary, None).take(texts.indices).dictionary_encode()


def _where(condition: Any, values: Any) -> Any:
    """The values, NULL where the condition does not hold."""
    if values.null_count == len(values):
        return values
    return pc.if_else(pc.fill_null(condition, False), values, pa.scalar(None, values.type))


def _links(events: Events) -> dict[str, pa.Table]:
    on_host = ~events.on_device & events.has_ts & (events.kind >= 0)
    host = events.taken(np.flatnonzero(on_host))
    launching = events.of_kind("runtime", "driver")
    if launching.any():
        launching &= on_host & pc.greater(events.column("correlation"), 0).fill_null(False).to_numpy(False)
    launch = events.taken(np.flatnonzero(launching))
    op = events.taken(np.flatnonzero(events.of_kind("cpu_op") & on_host))
    flow = events.taken(np.flatnonzero(events.category.where(*_FLOWS) & events.phase.where("s", "f")))
    begun = events.taken(np.flatnonzero(events.phase.where("B", "E")))
    frames = np.where(events.of_kind("python_function"), events.name.codes, -1)[host.rows]
    return {
        "host": pa.table(
            {
                **_timed(host),
                "external": host["external"],
                "end_ns": events.ts_ns[host.rows] + host.lasted_ns(),
                "innermost": events.of_kind(*_INNERMOST)[host.rows],
                "frame": dictionary(frames, events.name.texts),
            }
        ),
        "launch": pa.table({"row": launch.row(), "correlation": launch["correlation"], "ts_ns": launch.ts_ns()}),
        "op": pa.table(
            {
                **_timed(op),
                "dur_ns": op.dur_ns(),
                "sequence": op["sequence"],
                "forward_thread": op["forward_thread"].fill_null(0),
            }
        ),
        "flow": pa.table({**_timed(flow), "ph": flow["ph"], "id": flow["id"]}),
        "begun": pa.table({**_timed(begun), "ph": begun["ph"]}),
    }


def _timed(rows: Rows) -> dict[str, pa.Array]:
    return {"row": rows.row(), "thread_key": rows.thread_key(), "ts_ns": rows.ts_ns()}


def _counts(events: Events, work: Rows, slices: pa.Table, memory: pa.Table) -> Counts:
    def valid(column: str) -> int:
        return int(slices.num_rows - slices.column(column).null_count)

    copies = events.of_kind(*_COPIES)[work.rows]
    on_device = copies | (work.on_device() & ~events.of_kind(*_NO_WORK)[work.rows])
    has_ts = events.has_ts & (events.kind >= 0)
    times = events.ts_ns[has_ts]
    worked = has_ts[work.rows]
    ends = (events.ts_ns[work.rows] + work.lasted_ns())[worked]
    last = [
        t for t in (int(ends.max()) if len(ends) else None, pc.max(memory.column("ts_ns")).as_py()) if t is not None
    ]
    started = times[times > 0]
    counts = Counts(
        n_read=events.n,
        n_kept=int((events.phase.codes >= 0).sum()),
        n_slices=slices.num_rows,
        n_memory=memory.num_rows,
        n_device=int(on_device.sum()),
        n_frames=int(events.of_kind("python_function").sum()),
        n_calls=valid("calls"),
        n_shapes=valid("shapes"),
        n_sequence=valid("sequence"),
        first_ns=int(started.min()) if len(started) else None,
        last_ns=int(events.ts_ns[events.has_ts].max(initial=0)),
        end_ns=max(last, default=None),
    )
    hosts = events.process.codes[events.category.where(*_HOST_CATEGORIES)]
    for number, count in enumerate(np.bincount(hosts[hosts >= 0]).tolist()):
        if count:
            counts.pids[events.process.texts[number]] += count
    devices = slices.column("device").filter(pa.array(copies))
    for pair in pc.value_counts(devices).to_pylist():
        if pair["values"] is not None and 0 <= pair["values"] < 1024:
            counts.devices[pair["values"]] += pair["counts"]
    return counts


def _memory(rows: Rows) -> pa.Table:
    given = {name: rows[name] for name in _MEMORY_COLUMNS}
    return pa.table({"row": rows.row(), "ts_ns": rows.ts_ns(), "name": rows["name"], **given})


def _collectives(events: Events) -> pa.Table:
    """What tells of collectives: their metadata, on the call and on its kernel, and annotations named after them."""
    told = np.flatnonzero(valid(events.column("operation")) & (events.kind >= 0))
    noted = events.of_kind("annotation") & events.name.of_each(
        [_COLLECTIVE.match(text) is not None for text in events.name.texts], False
    )
    return pa.concat_tables([_of_collectives(events.taken(rows)) for rows in (told, np.flatnonzero(noted))])


def _of_collectives(rows: Rows) -> pa.Table:
    given = {name: rows[name] for name in _COLLECTIVE_COLUMNS}
    columns = {"row": rows.row(), "ts_ns": rows.ts_ns(), "dur_ns": rows.dur_ns(), "kind": rows.kind().cast(pa.string())}
    return pa.table({**columns, "name": rows.name().cast(pa.string()), **given})


def _marks(events: Events, document: int) -> list[Mark]:
    marking = events.name.of_each([_MARK.match(text) is not None for text in events.name.texts], False)
    marking &= events.of_kind(*_MARKING) & events.has_ts & events.has_dur
    marks = []
    for at in np.flatnonzero(marking).tolist():
        name, start_ns = events.name.texts[events.name.codes[at]], int(events.ts_ns[at])
        step = _STEP.fullmatch(name)
        end_ns = start_ns + max(int(events.dur_ns[at]), 0)
        if step or not name.startswith("Profiler"):
            optimizer = None if step else name.partition("#")[2]
            marks.append(Mark(document, int(step[1]) if step else None, optimizer, start_ns, end_ns))
    return marks


def _threads(metadata: Rows) -> list[tuple[str, str]]:
    columns = (metadata[column].to_pylist() for column in ("name", "tid", "label_name"))
    return [(tid, label) for name, tid, label in zip(*columns, strict=True) if name == "thread_name" and tid and label]
