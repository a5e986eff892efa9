"""CUDA memory snapshots: events of a busy allocator with the keys, stacks and sharing that PyTorch writes.

`PT_SNAP_PYTHON`: the interpreter of an environment with pt-snap-cli.
"""

from __future__ import annotations

import multiprocessing
import pickle
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.ingest import Bound, Comparison, Peer

_BASE = 0x7F00_0000_0000
_T0_US = 1_700_000_000_000_000
_SEGMENT_BYTES = 64 << 20
_N_SEGMENTS = 400
_SLOT_BYTES = 1 << 20
_N_STACKS = 3000

_PT_SNAP = """
import json, os, subprocess, sys, tempfile, time
with tempfile.TemporaryDirectory(dir=os.path.dirname(sys.argv[1])) as out:
    command = [os.path.join(os.path.dirname(sys.executable), "pt-snap"), "import", sys.argv[1], "-o", out]
    began = time.perf_counter()
    done = subprocess.run([*command, "--no-focus", "--json"], capture_output=True, text=True, check=True)
    wall = time.perf_counter() - began
spent = os.times()
print(json.dumps({"wall": wall, "cpu": spent.children_user + spent.children_system, "n": done.stdout.count("\\n")}))
"""


def _stacks(dice: random.Random) -> list[list[dict[str, Any]]]:
    """Stacks of 20 to 40 frames, innermost first; outer frames are common to many."""
    frames = [
        {"name": f"forward_{i}", "filename": f"/opt/lib/python3.11/site-packages/torch/nn/m{i % 40}.py", "line": i}
        for i in range(900)
    ]
    trunks = [[dice.choice(frames) for _ in range(dice.randrange(10, 20))] for _ in range(100)]
    return [
        [dice.choice(frames) for _ in range(dice.randrange(10, 21))] + dice.choice(trunks) for _ in range(_N_STACKS)
    ]


class _Allocator:
    """Allocations of random slots, up to 4000 at a time, each freed again."""

    def __init__(self, *, own_lists: bool) -> None:
        self.dice = random.Random(1)
        self.stacks = _stacks(self.dice)
        self.own_lists = own_lists
        self.alive: list[tuple[int, int, int]] = []
        self.free = [_BASE + n * _SLOT_BYTES for n in range(_N_SEGMENTS * _SEGMENT_BYTES // _SLOT_BYTES)]
        self.dice.shuffle(self.free)
        self.at_us = _T0_US

    def event(self, action: str, addr: int, size: int, stack: int) -> dict[str, Any]:
        self.at_us += self.dice.randrange(40)
        event = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": self.at_us}
        if self.own_lists:  # as PyTorch 2.11 does: each allocation has a list of its own of shared frames
            event |= {"compile_context": "N/A", "user_metadata": "", "pool_id": (0, 0)}
            return event | {"frames": list(self.stacks[stack])}
        return event | {"frames": self.stacks[stack]}

    def events(self) -> Iterator[dict[str, Any]]:
        dice = self.dice
        for n in range(_N_SEGMENTS):
            yield self.event("segment_alloc", _BASE + n * _SEGMENT_BYTES, _SEGMENT_BYTES, n)
        while True:
            if not self.alive or (dice.random() < 0.5 and len(self.alive) < 4000):
                self.alive.append((self.free.pop(), dice.randrange(512, _SLOT_BYTES), dice.randrange(_N_STACKS)))
                yield self.event("alloc", *self.alive[-1])
            else:
                at = dice.randrange(len(self.alive))
                self.alive[at], self.alive[-1] = self.alive[-1], self.alive[at]
                addr, size, stack = self.alive.pop()
                freed = self.event("free_requested", addr, size, (stack + 1) % _N_STACKS)
                yield freed
                yield {**freed, "action": "free_completed"}
                self.free.append(addr)

    def segments(self) -> list[dict[str, Any]]:
        held = {addr: (size, stack) for addr, size, stack in self.alive}
        return [self._segment(_BASE + n * _SEGMENT_BYTES, held) for n in range(_N_SEGMENTS)]

    def _segment(self, start: int, held: dict[int, tuple[int, int]]) -> dict[str, Any]:
        blocks = []
        for addr in range(start, start + _SEGMENT_BYTES, _SLOT_BYTES):
            size, stack = held.get(addr, (0, -1))
            state = "active_allocated" if size else "inactive"
            block = {"address": addr, "size": _SLOT_BYTES, "requested_size": size, "state": state}
            blocks.append(block | {"frames": self.stacks[stack] if size else []})
        live = sum(b["size"] for b in blocks if b["state"] != "inactive")
        known = {"device": 0, "address": start, "total_size": _SEGMENT_BYTES, "allocated_size": live}
        known |= {"active_size": live, "requested_size": live, "stream": 0, "segment_type": "large"}
        return known | {"segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": blocks}


def recorded(folder: Path, *, n_events: int, own_lists: bool = False, cut: float = 1.0) -> Path:
    """A snapshot as `_dump_snapshot` writes it."""
    path = folder / f"snapshot-{n_events}-{own_lists}-{cut}.pickle"
    if not path.exists():
        # Elsewhere: what a process once used counts as the peak of all that it starts.
        writer = multiprocessing.get_context("spawn").Process(target=_write, args=(path, n_events, own_lists, cut))
        writer.start()
        writer.join()
    return path


def _write(path: Path, n_events: int, own_lists: bool, cut: float) -> None:
    allocator = _Allocator(own_lists=own_lists)
    events = allocator.events()
    trace = [next(events) for _ in range(n_events)]
    steps = [
        {"stage": stage, "name": f"ProfilerStep#{n}", "device": 0, "time_us": _T0_US + n * 200_000 + later}
        for n in range(200)
        for stage, later in (("START", 0), ("END", 190_000))
    ]
    whole = {
        "segments": allocator.segments(),
        "device_traces": [trace],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "expandable_segments": False},
        "external_annotations": steps,
    }
    data = pickle.dumps(whole)
    path.write_bytes(data[: int(len(data) * cut)])


def repeated(folder: Path, *, megabytes: int) -> Path:
    """A snapshot of this size: the batches of a history of 200 000 events over and over, as protocol 2 allows."""
    path = folder / f"snapshot-{megabytes}-mb.pickle"
    if path.exists():
        return path
    events = _Allocator(own_lists=False).events()
    data = pickle.dumps({"device_traces": [[next(events) for _ in range(200_000)]]}, 2)
    first, last = (find(b"ue(}r") + 2 for find in (data.index, data.rindex))
    with path.open("wb") as file:
        file.write(data[:first])
        while file.tell() < megabytes * 1_000_000:
            file.write(data[first:last])
        file.write(data[last:])
    return path


def _unpickled(path: Path) -> int:
    """The C unpickler with the garbage collector off."""
    import gc

    gc.disable()
    with path.open("rb") as file:
        value = pickle.load(file)
    return sum(map(len, value["device_traces"]))


def _loaded(path: Path) -> int:
    """From the format to the Parquet files of the cache."""
    from forensics.artifact import Source
    from forensics.formats import memory_snapshot
    from forensics.parquet_sink import ParquetSink

    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        sink = ParquetSink(Path(place))
        memory_snapshot.load(Source(path, path.name), sink)
        meta = sink.finish()
    return sum(c["n_kept"] for c in meta["coverage"] if c["capability"] == "memory_event")


JOBS: dict[str, Callable[[Path], int] | Peer] = {
    "load": _loaded,
    "C unpickler": _unpickled,
    "pt-snap import": Peer("PT_SNAP_PYTHON", _PT_SNAP),
}
_JOBS = ["load", "C unpickler"]

COMPARISONS = (
    Comparison("2 M events", partial(recorded, n_events=2_000_000), _JOBS,
               [Bound("load", "C unpickler", 3.0), Bound("load", "C unpickler", 3.0, "cpu"),
                Bound("load", "", 10 * 112, "rss")]),
    Comparison("1 M events, a list of frames each", partial(recorded, n_events=1_000_000, own_lists=True), _JOBS,
               [Bound("load", "C unpickler", 3.0, "cpu")]),
    Comparison("2 M events, cut", partial(recorded, n_events=2_000_000, cut=0.9), ["load"]),
    Comparison("200 000 events against pt-snap", partial(recorded, n_events=200_000), ["load", "pt-snap import"],
               [Bound("load", "pt-snap import", 0.5)], runs=3),
    Comparison("3000 MB", partial(repeated, megabytes=3000), ["load"], [Bound("load", "", 1024, "rss")], runs=1,
               large=True),
)  # fmt: skip
