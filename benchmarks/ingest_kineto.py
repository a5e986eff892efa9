"""Profiler traces: a small model really profiled, its steps tiled to the size wanted; times and ids stay distinct.

`HTA_PYTHON`: the interpreter of an environment with HolisticTraceAnalysis 0.5.0, pandas < 3 and pysimdjson.
"""

from __future__ import annotations

import gc
import gzip
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.ingest import ROOT, Bound, Comparison, Peer, build_case

_PROFILE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, with_stack=True, profile_memory=True) as prof:
    for _ in range(4):
        with record_function("forward"):
            loss = model(torch.randn(4, 16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        prof.step()
prof.export_chrome_trace(sys.argv[1])
"""
# A trace of one of eight ranks on GPUs, with kernels, copies, flows and NCCL.
_GPU_TRACE = ROOT.parent / "shared/artifacts/chrome_trace/hta__nccl_parser_config_nccl_data.json.gz"
# What differs from tile to tile: times, the ids that link events, and step numbers.
_NUMBERS = re.compile(
    rb'"(ts|id|correlation|External id|Sequence number|Ev Idx|Python id|Python parent id)"\s*: ?(\d+(?:\.\d+)?)'
    rb"|ProfilerStep#(\d+)"
)
_CLOSING = re.compile(rb'\}\s*(\])\s*(?:,\s*"\w+"\s*:|\})')


def _profiled(folder: Path) -> bytes:
    path = folder / "profiled.json"
    if not path.exists():
        subprocess.run([sys.executable, "-c", _PROFILE, str(path)], check=True, capture_output=True)
    return path.read_bytes()


def _recorded_on_gpus(folder: Path) -> bytes:
    return gzip.decompress(_GPU_TRACE.read_bytes()) if _GPU_TRACE.exists() else _profiled(folder)


class _Tile:
    """Events whose numbers have fixed places and widths, so that the next tile is this one with digits replaced."""

    def __init__(self, events: bytes, n_tiles: int) -> None:
        import numpy as np

        found = [f for f in _NUMBERS.finditer(events) if int((f[2] or f[3]).replace(b".", b"")) > 0]
        kinds = ["ts" if f[1] == b"ts" else "step" if f[3] else "id" for f in found]
        numbers = [(f[2] or f[3]).replace(b".", b"") for f in found]
        widths, starts, spans = {}, {}, {}
        for kind in set(kinds):
            of_kind = [int(n) for n, k in zip(numbers, kinds, strict=True) if k == kind]
            spans[kind] = max(of_kind) - (min(of_kind) if kind == "ts" else 0) + 1
            needed = spans[kind] * (n_tiles + 1) + (min(of_kind) if kind == "ts" else 0)
            widths[kind] = len(str(needed)) + (kind != "ts")
            starts[kind] = 0 if kind == "ts" else 10 ** (widths[kind] - 1)
        parts, places, at, length = [], {kind: [] for kind in widths}, 0, 0
        for match, kind in zip(found, kinds, strict=True):
            start, end = match.span(2) if match[2] else match.span(3)
            parts.append(events[at:start])
            length += start - at
            text = match[2] or match[3]
            whole = text.partition(b".")[0] if kind == "ts" else b"0" * widths[kind]
            columns = [length + n for n in range(len(whole))]
            if b"." in text:
                columns += [length + len(whole) + 1 + n for n in range(len(text) - len(whole) - 1)]
                whole = text
            parts.append(whole)
            length += len(whole)
            places[kind].append(columns)
            at = end
        parts.append(events[at:])
        self._text = np.frombuffer(b"".join(parts), np.uint8).copy()
        self._fields = []
        for kind, where in places.items():
            value = np.array([int(n) for n, k in zip(numbers, kinds, strict=True) if k == kind]) + starts[kind]
            powers = 10 ** np.arange(len(where[0]) - 1, -1, -1, dtype=np.int64)
            self._fields.append((np.array(where), value, spans[kind], powers))

    def text(self, number: int) -> bytes:
        for where, value, span, powers in self._fields:
            self._text[where] = (value[:, None] + number * span) // powers % 10 + 48
        return self._text.tobytes()


def tiled(folder: Path, *, megabytes: int, source: Callable[[Path], bytes] = _profiled, name: str = "") -> Path:
    """A trace of about this size below `folder`, the same bytes at every call on one recorded trace."""
    path = folder / f"{name or source.__name__.strip('_')}-{megabytes}.json"
    if path.exists():
        return path
    data = source(folder)
    opening = data.index(b"[", data.index(b'"traceEvents"')) + 1
    first = data.index(b"{", data.index(b'"X"', opening) - 40)
    closing = _CLOSING.search(data, first).start(1)  # type: ignore[union-attr]
    events = data[first:closing].rstrip()
    n_tiles = max(1, megabytes * 1_000_000 // len(events))
    tile = _Tile(events, n_tiles)
    with path.open("wb") as file:
        file.write(data[:first])
        for number in range(n_tiles):
            file.write((b",\n  " if number else b"") + tile.text(number))
        file.write(b"\n  " + data[closing:])
    return path


def zipped(folder: Path, *, megabytes: int) -> Path:
    path = folder / f"profiled-{megabytes}.json.gz"
    if not path.exists():
        with gzip.open(path, "wb", compresslevel=6) as out:
            out.write(tiled(folder, megabytes=megabytes).read_bytes())
    return path


def ranks(folder: Path, *, count: int, megabytes: int) -> Path:
    """A folder of one trace a rank; their first bytes differ, so that the cache takes none for another."""
    place = folder / f"{count}-ranks-{megabytes}"
    if not place.exists():
        data = tiled(folder, megabytes=megabytes).read_bytes()
        place.mkdir()
        for rank in range(count):
            info = b'{"distributedInfo": {"backend": "gloo", "rank": %d, "world_size": %d},' % (rank, count)
            (place / f"rank{rank}.pt.trace.json").write_bytes(data.replace(b"{", info, 1))
    return place


def _first_rank(folder: Path) -> int:
    return build_case(folder / "rank0.pt.trace.json", threads=1)


def _orjson(path: Path) -> int:
    import orjson

    gc.disable()
    return len(orjson.loads(path.read_bytes())["traceEvents"])


_HTA = """
import contextlib, io, json, os, sys, time, warnings
warnings.filterwarnings("ignore")
from hta.trace_analysis import TraceAnalysis
path = os.path.abspath(sys.argv[1])
began, cpu = time.perf_counter(), time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    loaded = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu, "n": len(loaded.t.traces[0])}))
"""
_SIMDJSON = """
import gc, json, resource, sys, time
import simdjson
gc.disable()
began, cpu = time.perf_counter(), time.process_time()
with open(sys.argv[1], "rb") as file:
    parsed = simdjson.Parser().parse(file.read())
figures = {"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu, "n": len(parsed["traceEvents"])}
figures["rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(figures))
"""

JOBS: dict[str, Callable[[Path], int] | Peer] = {
    "case": build_case,
    "case, one core": partial(build_case, threads=1),
    "case, child processes": partial(build_case, in_children=True),
    "first rank, one core": _first_rank,
    "orjson.loads": _orjson,
    "simdjson parse": Peer("HTA_PYTHON", _SIMDJSON),
    "HTA load": Peer("HTA_PYTHON", _HTA),
}
_N_RANKS = 8
_BOUNDED = tuple(Bound(job, "", 1024, "rss") for job in ("case", "case, child processes"))
_BARE = (Bound("case", "orjson.loads", 1.0), Bound("case", "simdjson parse", 3.0))


def _parsed(name: str, megabytes: int, source: Callable[[Path], bytes], jobs: Sequence[str] = ()) -> Comparison:
    make = partial(tiled, megabytes=megabytes, source=source)
    return Comparison(name, make, ["case", "case, one core", "orjson.loads", "simdjson parse", *jobs], _BARE)


def _of_ranks(megabytes: int) -> Comparison:
    """Both cores for eight traces against one core for one of them."""
    jobs = ["case, child processes", "first rank, one core"]
    bound = Bound(jobs[0], jobs[1], 0.6 * _N_RANKS)
    make = partial(ranks, count=_N_RANKS, megabytes=megabytes)
    return Comparison(f"8 ranks x {megabytes} MB", make, jobs, [bound], runs=1, large=True, cores={jobs[1]: 1})


COMPARISONS = (
    _parsed("500 MB, stacks and memory", 500, _profiled),
    _parsed("500 MB, kernels and flows", 500, _recorded_on_gpus),
    Comparison("50 MB against HTA", partial(tiled, megabytes=50), ["case", "HTA load"],
               [Bound("case", "HTA load", 1 / 15)], runs=3),
    Comparison("500 MB, gzip", partial(zipped, megabytes=500), ["case"]),
    _of_ranks(250),
    _of_ranks(30),
    Comparison("2500 MB", partial(tiled, megabytes=2500), ["case", "case, child processes"], _BOUNDED, runs=1,
               large=True),
    Comparison("10000 MB", partial(tiled, megabytes=10_000), ["case", "case, child processes"], _BOUNDED, runs=1,
               large=True),
)  # fmt: skip
