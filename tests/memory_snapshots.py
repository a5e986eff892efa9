"""Small snapshots of the allocator that tests build, laid out as PyTorch lays them out."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from support import MemorySink, load

from forensics.artifact import HEAD_BYTES, Head
from forensics.formats import memory_snapshot

MIB = 1 << 20


BASE = 0x7F00_0000_0000


T0_US = 1_700_000_000_000_000


FRAMES = [
    {"name": "forward", "filename": "/job/model.py", "line": 7},
    {"name": "torch::autograd", "filename": "??", "line": 0},
    {"name": "main", "filename": "/job/train.py", "line": 3},
]


def event(action: str, addr: int, size: int, at_us: int, **more: Any) -> dict[str, Any]:
    where = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": T0_US + at_us, "pool_id": (0, 0)}
    return where | {"frames": FRAMES} | more


def block(addr: int, size: int, state: str, **more: Any) -> dict[str, Any]:
    return {"address": addr, "size": size, "requested_size": size - 12, "state": state, "frames": []} | more


def segment(addr: int, total: int, blocks: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    sizes = Counter[str]()
    for part in blocks:
        sizes[part["state"]] += part["size"]
    allocated = sizes["active_allocated"]
    return {
        "device": 0,
        "address": addr,
        "total_size": total,
        "allocated_size": allocated,
        "active_size": allocated + sizes["active_pending_free"],
        "requested_size": allocated - 12,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    } | more


def mark(name: str, stage: str, at_us: int) -> dict[str, Any]:
    return {"stage": stage, "name": name, "device": 0, "time_us": T0_US + at_us}


def snapshot() -> dict[str, Any]:
    """One segment of 20 MiB: a live block, one that waits for a stream, a free one; a failed allocation at the end."""
    blocks = [
        block(BASE, 4 * MIB, "active_allocated", frames=FRAMES),
        block(BASE + 4 * MIB, 6 * MIB, "active_pending_free"),
        block(BASE + 10 * MIB, 10 * MIB, "inactive", requested_size=0),
    ]
    oom = {"action": "oom", "device_free": 5 * MIB, "size": 64 * MIB, "stream": 0, "time_us": T0_US + 90}
    events = [
        event("segment_alloc", BASE, 20 * MIB, 1),
        event("alloc", BASE, 4 * MIB - 12, 2),
        event("alloc", BASE + 4 * MIB, 6 * MIB - 12, 13),
        event("alloc", BASE + 10 * MIB, 8 * MIB, 14, frames=list(FRAMES)),
        event("free_requested", BASE + 10 * MIB, 8 * MIB, 25),
        event("free_completed", BASE + 10 * MIB, 8 * MIB, 25),
        event("free_requested", BASE + 4 * MIB, 6 * MIB - 12, 40),
        oom | {"pool_id": (0, 1), "frames": FRAMES},
    ]
    return {
        "segments": [segment(BASE, 20 * MIB, blocks)],
        "device_traces": [events],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False", "max_split_size": -1}
        | {"expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 4}},
        "external_annotations": [
            *(mark("ProfilerStep#3", "START", 0), mark("ProfilerStep#3", "END", 10)),
            *(mark("ProfilerStep#4", "START", 12), mark("ProfilerStep#4", "END", 30)),
            mark("ProfilerStep#5", "START", 35),
        ],
    }


def loaded(tmp_path: Path, content: Any, protocol: int = 4) -> MemorySink:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return load(memory_snapshot, path)


def recognised(content: Any, protocol: int = 4) -> int:
    data = content if isinstance(content, bytes) else pickle.dumps(content, protocol)
    return memory_snapshot.recognise(Head("x", data[:HEAD_BYTES], len(data) <= HEAD_BYTES))


def codes(sink: MemorySink) -> list[str]:
    return [w["code"] for w in sink.warnings]


def covered(sink: MemorySink) -> dict[str, bool]:
    return {c["capability"]: c.get("complete", True) for c in sink.coverage}
