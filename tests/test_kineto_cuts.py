"""Profiler traces of every kind, cut at random bytes: nothing fails, and more bytes never give fewer events."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from kineto_traces import BASE_NS, covered, many, op, trace
from support import ARTIFACTS, load, needs_artifacts

from forensics.errors import ArtifactError
from forensics.formats import kineto

CUTS = 200


def _kinds() -> dict[str, bytes]:
    memory = '{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 4, "tid": 7, "ts": %d, '
    frames = [op(f"train.py({n}): step", 10 + n, 90 - 2 * n, cat="python_function") for n in range(12)]
    device = [
        *(op("cudaLaunchKernel", 10 * n, 5, cat="cuda_runtime", correlation=n) for n in range(1, 13)),
        *(op("gemm", 10 * n + 3, 5, cat="kernel", tid=7, device=0, stream=7, correlation=n) for n in range(1, 13)),
    ]
    legacy = [
        {"name": f"aten::a{n}", "ph": "X", "ts": n + 0.5, "dur": 2.5, "tid": 1, "pid": "CPU functions", "args": {}}
        for n in range(40)
    ]
    return {
        "operators": trace(many(25)),
        "base after the events": trace(many(25), base=False, tail=f',\n  "baseTimeNanoseconds": {BASE_NS}'),
        "devices": trace(device),
        "frames": trace(frames),
        "memory": trace([memory % n + '"args": {"Addr": 64, "Bytes": 8, "Device Type": 0}}' for n in range(30)]),
        "legacy list": json.dumps(legacy).encode(),
        "broken names": trace([op(f'a "quoted" {n} \\', 10 * n) for n in range(20)]),
        "not finite": trace([op(f"a{n}", 10 * n, x=1).replace('"x": 1', '"x": nan') for n in range(20)]),
        "two documents": trace(many(8)) + trace(many(8)),
    }


def _kept(path: Path, data: bytes) -> Any:
    """How many events a beginning of a trace gives, with the sink; 0 where it holds no list of events yet."""
    path.write_bytes(data)
    try:
        sink = load(kineto, path)
    except ArtifactError:
        return 0, None
    return sum(c["n_kept"] for c in sink.coverage if c["capability"] == "slice"), sink


@pytest.mark.parametrize("kind", sorted(_kinds()))
def test_more_bytes_never_give_fewer_events(kind: str, tmp_path: Path) -> None:
    data = _kinds()[kind]
    dice = random.Random(kind)
    most, last_end = 0, 0
    for cut in sorted(dice.sample(range(len(data)), CUTS)):
        kept, sink = _kept(tmp_path / "trace.json", data[:cut])
        assert kept >= most, (kind, cut)
        most = kept
        if sink is None:
            continue
        end = max((proc.get("end_ns") or 0 for proc in sink.procs.values()), default=0)
        if kind not in {"base after the events", "two documents"}:  # times are absolute only with their base
            assert end >= last_end, (kind, cut)
            last_end = end
        said = [w["message"] for w in sink.warnings if w["code"] == "truncated"]
        if said:
            assert sink.quality == "partial"
            assert sink.bad_byte is not None and sink.bad_byte <= cut
            assert not covered(sink)["complete"]
            assert not end or f"the last of which ends at {end} ns" in said[0]
    assert most >= _kept(tmp_path / "trace.json", data)[0] - 2


@needs_artifacts
@pytest.mark.parametrize(
    "name",
    [
        "hta__call_stack_backward_thread.json",
        "hta__cpu_only_rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
        "hta__critical_path_cuda_event_sync_event_sync_trace.json.gz",
        "hta__triton_example_triton_example.json.gz",
        "kineto__traces_before_fix_trace.json",
        "hta__trace_compare_base_base.json.gz",
    ],
)
def test_real_traces_cut_anywhere_give_a_growing_beginning(name: str, tmp_path: Path) -> None:
    data = (ARTIFACTS / "chrome_trace" / name).read_bytes()
    data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    most = 0
    for cut in sorted(random.Random(name).sample(range(len(data)), CUTS)):
        kept, sink = _kept(tmp_path / "trace.json", data[:cut])
        assert kept >= most, cut
        most = kept
        lost = [w for w in sink.warnings if w["code"] == "truncated"] if sink else []
        assert all(w["byte"] <= cut and f"kept the {kept} events" in w["message"] for w in lost)
    assert most > 0
