"""Memory snapshots of real jobs, against the oracle and the allocator."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from memory_snapshots import (
    codes,
    covered,
)
from support import ARTIFACTS, load, needs_artifacts

from forensics.artifact import Source
from forensics.formats import memory_snapshot

# Those whose history is truly absent, late or cut; every other real one loads without a warning.
TRUE_WARNINGS = {
    "empty_process": ["nothing-recorded"],
    "history_off": ["history-off"],
    "history_off__torch2.6": ["history-off"],
    "history_started_late": ["history-late"],
    "wrapped_history": ["history-wrapped"],
    "bcrafton_cs336__memory_snapshot": ["history-late"],
    "magma27_cs336__memory_snapshot": ["history-late"],
    "mosaic__output": ["history-late", "size-mismatch"],  # random numbers
    "yiyi_llm__oom_snapshot": ["history-wrapped"],  # a ring of one event
}


def real(*patterns: str) -> list[Path]:
    return sorted(p for pattern in patterns for p in ARTIFACTS.glob(pattern))


@needs_artifacts
@pytest.mark.parametrize("path", real("memory_snapshot/*", "allocator/*"), ids=lambda p: p.stem)
def test_real_snapshots_load_with_true_warnings_only(path: Path) -> None:
    assert memory_snapshot.recognise(Source(path, path.name).head()) == 95
    sink = load(memory_snapshot, path)
    assert codes(sink) == TRUE_WARNINGS.get(path.stem, [])
    assert sink.quality == "complete"
    complete = not sink.warnings
    assert ("memory_event.complete" in covered(sink)) == complete
    blocks = sink.rows("memory_block")
    if complete:
        assert all((b["allocated_ns"] is None) == (b["state"] == "inactive") for b in blocks)


@needs_artifacts
def test_counts_and_sums_agree_with_the_oracle() -> None:
    oracle = json.loads((ARTIFACTS / "oracle_counts.json").read_text())
    for path in real("memory_snapshot/*"):
        expected, sink = oracle[f"memory_snapshot/{path.name}"], load(memory_snapshot, path)
        segments, blocks = sink.rows("memory_segment"), sink.rows("memory_block")
        assert (len(segments), len(blocks)) == (expected["segments"], expected["blocks"])
        assert sum(s["total_bytes"] for s in segments) == expected["reserved"]
        assert sum(s["allocated_bytes"] for s in segments) == expected["allocated"]
        assert sum(s["active_bytes"] for s in segments) == expected["active"]
        assert Counter(e["action"] for e in sink.rows("memory_event")) == expected["traces"][0]


def of_device(rows: list[dict[str, Any]], device: int) -> list[dict[str, Any]]:
    return [r for r in rows if r["device"] == device]


@needs_artifacts
@pytest.mark.parametrize("path", real("truth/allocator/*.json"), ids=lambda p: p.stem)
def test_sums_and_failed_requests_agree_with_the_allocator(path: Path) -> None:
    truth = json.loads(path.read_text())
    sink = load(memory_snapshot, ARTIFACTS / "allocator" / f"{path.stem}.pickle")
    segments, blocks, events = (sink.rows(t) for t in ("memory_segment", "memory_block", "memory_event"))
    for device, stats in truth["at_dump"].items():
        mine, held = of_device(segments, int(device)), of_device(blocks, int(device))
        assert sum(s["total_bytes"] for s in mine) == stats["reserved"]
        assert sum(s["allocated_bytes"] for s in mine) == stats["allocated"]
        assert sum(s["active_bytes"] for s in mine) == stats["active"]
        live = [b for b in held if b["state"] == "active_allocated"]
        assert sum(b["size_bytes"] for b in live) == stats["allocated"]
        assert sum(not s["expandable"] for s in mine) == stats["segments"]  # torch counts no expandable ones
    recorded = Counter(e["action"] for e in events if e["device"] >= 0)
    assert recorded == truth["events"]
    ooms = [(e["device"], e["size_bytes"], e["device_free_bytes"]) for e in events if e["action"] == "oom"]
    expected = [(o["device"], o["event_size"], o["device_free"]) for o in truth["ooms"]]
    assert ooms == expected[-len(ooms) :] if ooms else not truth["oom"] or truth["recording"]["enabled"] is None
    assert ("memory_event.oom" in covered(sink)) == bool(ooms)
