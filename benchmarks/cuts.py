"""Loads a file of each kind cut at random places: `python -m benchmarks.cuts [--cuts N] [--also FOLDER] [KIND]...`.

A fault is any exception but the package's own, or more bytes that give fewer rows of a table. Stacks and facts do not
count: what is cut within a name is another one, and a text that ends without a newline need not be cut. Nor do states
of threads, which are those at the end. Prints, for each kind, the cuts that gave rows, those that were refused and the
faults; exit code 1 where there are any.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import pickle
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import formats

_FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
_LIKED_BYTES = 30_000
_MOST_BYTES = 3_000_000
_RECORDED = "numerics-beyond-stability/artifacts/recorded/attempt_0/rank_0"
SAMPLES = {
    "adapter_config": "adapters-left-out-healthy/artifacts/adapter/adapter_config.json",
    "autograd_dot": "numerics-drawn-anomaly-healthy/artifacts/graph.dot",
    "device_map": f"{_RECORDED}/device_map.json",
    "environment": "step-217-healthy/artifacts/env_rank0.txt",
    "execution_trace": "numerics-traced-anomaly-healthy/artifacts/et.json.gz",
    "flight_recorder": "distributed-extra-collective-healthy/artifacts/trace_rank_1",
    "kineto": "serving-cold-prefix-healthy/artifacts/early.pt.trace.json.gz",
    "log": "compile-new-types/artifacts/stderr.log",
    "memory_summary": "memory-summed-loss/artifacts/memory_summary.txt",
    "metrics_jsonl": "step-217/artifacts/metrics_rank0.jsonl",
    "native_stacks": "process-dumps-healthy/artifacts/gdb_worker.txt",
    "nsys_arrowdir": "nsys-exports-healthy/artifacts/report_arwdir/NVTX_EVENTS.arrow",
    "nsys_jsonlines": "nsys-exports-healthy/artifacts/report.json.gz",
    "nsys_parquetdir": "nsys-exports-healthy/artifacts/report_pqtdir/NVTX_EVENTS.parquet",
    "nsys_recipe": "nsys-exports-healthy/artifacts/nvtx_sum-1/all_stats.parquet",
    "nsys_stats": "nsys-exports-healthy/artifacts/stats.txt",
    "otlp": "serving-cold-prefix-healthy/artifacts/spans.jsonl.gz",
    "prometheus": "serving-cold-prefix-healthy/artifacts/metrics.prom.gz",
    "py_spy": "process-dumps-healthy/artifacts/pyspy_worker.json",
    "recorder_end": f"{_RECORDED}/end.json",
    "recorder_events": f"{_RECORDED}/events.jsonl",
    "recorder_steps": f"{_RECORDED}/steps.jsonl",
    "references": "memory-kept-predictions/artifacts/recorded/attempt_0/rank_0/references_growing.json",
    "safetensors": "checkpoint-merged-nan-healthy/artifacts/first.safetensors",
    "strace": "process-dumps-healthy/artifacts/strace.txt",
    "tensor_stats": "distributed-nan-on-one-rank/artifacts/recorded/attempt_0/rank_1/operators.jsonl",
    "torch_checkpoint": "checkpoint-mismatch/artifacts/checkpoint.pt",
    "torch_trace": "compile-ranks-differ-healthy/artifacts/trace/dedicated_log_torch_trace_rank_1_59_ef7wp.log.xz",
    "torchelastic_error": (
        "distributed-ready-twice/artifacts/logs/distributed-ready-twice_iwxo6661/attempt_0/0/error.json"
    ),
}

_NOT_COUNTED = ("stack", "fact", "thread_state", "position")
_NAMES = {"metrics_csv": "metrics.csv", "scheduling": "schedstat", "p2p_test": "p2p.txt"}


def made() -> dict[str, bytes]:
    """Files of kinds that no fixture has."""
    frames = [{"name": "forward", "filename": "/job/model.py", "line": 7}]
    events = [
        {"action": "alloc", "addr": 1 << 20 | n << 9, "size": 512, "stream": 0, "frames": frames} for n in range(99)
    ]
    block = {
        "address": 1 << 20,
        "size": 1 << 20,
        "requested_size": 1 << 20,
        "state": "active_allocated",
        "frames": frames,
    }
    segment = {"device": 0, "address": 1 << 20, "total_size": 1 << 20, "stream": 0, "blocks": [block]}
    table = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(999))}), table)
    matrix = "".join(f"     {a} " + " ".join(f"{7 * a + b:6}.25" for b in range(8)) + "\n" for a in range(8))
    titles = ("Unidirectional P2P=Disabled Bandwidth", "Bidirectional P2P=Enabled Bandwidth")
    heading = "   D\\D " + " ".join(f"{n:9}" for n in range(8)) + "\n"
    p2p = "".join(f"{title} Matrix (GB/s)\n{heading}{matrix}" for title in titles)
    weights = {f"layer.{n}": f"model-{n % 3}.safetensors" for n in range(99)}
    counters = {f"allocated_bytes.{pool}.{kind}": 99 for pool in ("all", "small_pool") for kind in ("current", "peak")}
    history = [{"step": n, "epoch": n / 9, "loss": 9.5 - n / 99, "learning_rate": 0.001} for n in range(60)]
    graph = "".join(f"  %{n + 1} : Float(4, 4) = aten::relu(%{n}), scope: Net # train.py:{n}:0\n" for n in range(1, 60))
    smi = "".join(f"GPU 00000000:0{n}:00.0\n    FB Memory Usage\n        Used : {n} MiB\n" for n in range(8))
    return {
        "checkpoint_index": json.dumps({"metadata": {"total_size": 4096}, "weight_map": weights}).encode(),
        "cpu_places": b"".join(b"pid %d's current affinity list: 0-3,8\n" % n for n in range(60)),
        "memory_snapshot": pickle.dumps({"segments": [segment], "device_traces": [events]}, 4),
        "memory_stats": json.dumps(counters).encode(),
        "metrics_csv": b"step,loss,lr\n" + b"".join(b"%d,%d.5,0.001\n" % (n, 99 - n) for n in range(99)),
        "nsys_sqlite": gzip.decompress((_FIXTURES / "nsys-exports-healthy/artifacts/report.sqlite.gz").read_bytes()),
        "nvidia_smi": f"==============NVSMI LOG==============\n\nAttached GPUs : 8\n{smi}".encode(),
        "other_pickle": pickle.dumps([{"n": n} for n in range(99)], 4),
        "p2p_test": f"[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n{p2p}".encode(),
        "parquet_table": table.getvalue(),
        "scheduling": b"".join(b"%d %d 77\n" % (n * 1000, n * 10) for n in range(60)),
        "torchscript_ir": f"graph(%1 : Float(4, 4)):\n{graph}  return (%60)\n".encode(),
        "trainer_state": json.dumps(
            {"epoch": 1.0, "global_step": 60, "max_steps": 90, "log_history": history}
        ).encode(),
    }


@dataclass
class _Counting:
    """A sink that only counts rows."""

    rows: Counter[str] = field(default_factory=Counter)

    def emit(self, table: str, data: Any) -> None:
        self.rows[table] += (data.to_arrow_table() if hasattr(data, "to_arrow_table") else data).num_rows

    def fact(self, *_: object, **__: object) -> None:
        self.rows["fact"] += 1

    def __getattr__(self, said: str) -> Any:
        return lambda *_, **__: None


@dataclass
class Result:
    kind: str
    n_kept: int = 0  # cuts that gave rows
    n_refused: int = 0
    faults: list[str] = field(default_factory=list)


def cut(kind: str, name: str, data: bytes, n_cuts: int, folder: Path, seed: int = 0) -> Result:
    """Loads the beginnings of a file, shortest first, then all of it."""
    result, module, path = Result(kind), formats()[kind], folder / Path(name).name
    ends = sorted(random.Random(f"{kind} {seed}").sample(range(1, len(data)), min(n_cuts, len(data) - 1)))
    before: Counter[str] = Counter()
    for end in [*ends, len(data)]:
        path.write_bytes(data[:end])
        sink: Any = _Counting()
        try:
            module.load(Source(path, path.name), sink)
        except ArtifactError:
            result.n_refused += 1
        except Exception as error:
            result.faults.append(f"{end} of {len(data)} bytes: {type(error).__name__}: {error}")
        result.n_kept += bool(sink.rows)
        fewer = [f"{t} {n} -> {sink.rows[t]}" for t, n in before.items() if sink.rows[t] < n and t not in _NOT_COUNTED]
        if fewer:
            result.faults.append(f"{end} of {len(data)} bytes: fewer rows: {', '.join(fewer)}")
        before = sink.rows
    return result


def samples() -> Iterator[tuple[str, str, bytes]]:
    """Kind, name and bytes of each file."""
    for kind, place in SAMPLES.items():
        yield kind, place, (_FIXTURES / place).read_bytes()
    for kind, data in made().items():
        yield kind, _NAMES.get(kind, kind), data


def _others(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """The file of each kind below a folder whose size is nearest to the one that is liked."""
    found: dict[str, Path] = {}
    files = [p for p in folder.rglob("*") if p.is_file() and 200 < p.stat().st_size < _MOST_BYTES]
    for path in sorted(files, key=lambda p: abs(p.stat().st_size - _LIKED_BYTES)):
        head = Source(path, path.name).head()
        sure = {kind: module.recognise(head) for kind, module in formats().items()}
        kind = max(sure, key=lambda k: sure[k])
        if sure[kind]:
            found.setdefault(kind, path)
    for kind, path in found.items():
        yield kind, path.name, path.read_bytes()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help="default all")
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--also", type=Path, action="append", default=[], help="a folder: one file of each kind in it")
    given = parser.parse_args()
    n_faults = 0
    with tempfile.TemporaryDirectory() as folder:
        for kind, name, data in [*samples(), *(sample for place in given.also for sample in _others(place))]:
            if given.kinds and kind not in given.kinds:
                continue
            began = time.process_time()
            result = cut(kind, name, data, given.cuts, Path(folder))
            n_faults += len(result.faults)
            figures = f"{result.n_kept:4} kept {result.n_refused:4} refused {len(result.faults):4} faults"
            print(f"{kind:20} {len(data):8} bytes {figures} {time.process_time() - began:6.1f} s  {Path(name).name}")
            for fault in result.faults[:5]:
                print(f"    {fault}")
            sys.stdout.flush()
    return 1 if n_faults else 0


if __name__ == "__main__":
    sys.exit(main())
