"""The critical path of one marked range of a profiler trace beside HolisticTraceAnalysis 0.5.0 on the same range.

HTA counts as bound by the host only what lies in operators: between two of them its path takes no time. So the host's
share is given here as a whole and as far as operators and calls cover it.

`HTA_PYTHON`: the interpreter of an environment with HolisticTraceAnalysis 0.5.0 and pandas < 3.
Usage: python -m benchmarks.critical_path TRACE ANNOTATION [TRACE ANNOTATION]…
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from forensics.case import connect
from forensics.models.critical_path import Stretch, Walk, read_waits, read_work
from forensics.models.intervals import list_work_and_waits
from forensics.pipeline import analyze

_HTA = """
import contextlib, io, json, logging, sys, warnings
warnings.filterwarnings("ignore"); logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
with contextlib.redirect_stdout(io.StringIO()):
    analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir=".")
    graph, _ = analysis.critical_path_analysis(rank=0, annotation=sys.argv[2], instance_id=0)
    parts = graph.get_critical_path_breakdown().groupby("bound_by")["duration"].sum()
print(json.dumps({name: float(value) for name, value in parts.items() if name}))
"""
_OPERATORS = """
SELECT ts_ns, ts_ns + dur_ns FROM slice
WHERE kind IN ('cpu_op', 'runtime', 'driver') AND ts_ns >= ? AND ts_ns < ? AND dur_ns > 0 ORDER BY ts_ns
"""


def by_hta(trace: Path, annotation: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as place:
        command = [os.environ.get("HTA_PYTHON", sys.executable), "-c", _HTA, shutil.copy(trace, place), annotation]
        ran = subprocess.run(command, check=False, capture_output=True, text=True)
    found: dict[str, float] = json.loads(ran.stdout) if ran.returncode == 0 else {"failed": float("nan")}
    return found


def by_forensics(case: Path, annotation: str) -> dict[str, float]:
    """Microseconds of each kind on the path, from the begin of the range to the end of its work and calls."""
    with connect(case) as con:
        list_work_and_waits(con)
        ranges = "SELECT ts_ns, ts_ns + dur_ns FROM annotation WHERE starts_with(name, ?) ORDER BY ts_ns LIMIT 1"
        begin, end = con.execute(ranges, [annotation]).fetchall()[0]
        of = con.execute(
            "SELECT artifact_id, proc_id, device FROM device_time ORDER BY n_work DESC LIMIT 1"
        ).fetchall()[0]
        work = [w for w in read_work(con, *of) if w.launched_ns is not None and begin <= w.launched_ns < end]
        waits = [w for w in read_waits(con, *of[:2])["sync"] if begin <= w[0] < end]
        operators = con.execute(_OPERATORS, [begin, end]).fetchall()
    path = list(Walk(work, waits, begin).back(max(to_ns for _, to_ns in operators)))
    parts: Counter[str] = Counter()
    for one in path:
        parts[one.kind] += one.to_ns - one.from_ns
    parts["host, in operators"] = _covered([one for one in path if one.kind == "host"], operators)
    return {kind: ns / 1000 for kind, ns in parts.items()}


def _covered(stretches: list[Stretch], spans: list[tuple[int, int]]) -> int:
    total = 0
    for one in stretches:
        at = one.from_ns
        for from_ns, to_ns in spans:
            if to_ns > at and from_ns < one.to_ns:
                total += min(to_ns, one.to_ns) - max(from_ns, at)
                at = min(to_ns, one.to_ns)
    return total


def main() -> None:
    for trace, annotation in zip(map(Path, sys.argv[1::2]), sys.argv[2::2], strict=True):
        with tempfile.TemporaryDirectory() as place:
            analyze(trace, Path(place) / "out")
            ours = by_forensics(Path(place) / "out" / "case.duckdb", annotation)
        for who, parts in (("HTA", by_hta(trace, annotation)), ("forensics", ours)):
            told = ", ".join(f"{kind} {us:,.0f}" for kind, us in sorted(parts.items(), key=lambda p: -p[1]))
            print(f"{trace.name.split('.json')[0][:40]} {who}: {told} us", flush=True)


if __name__ == "__main__":
    main()
