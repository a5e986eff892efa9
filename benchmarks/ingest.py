"""Measures time and memory of loading artifacts, as ratios to bare parsers and peers of the same run.

    python -m benchmarks.ingest [KIND]... [--only TEXT] [--runs N] [--json FILE] [--keep FOLDER]

A kind is a module `benchmarks/ingest_KIND.py`, found by its name, with

* `JOBS`: name → function of the input's path that runs in a fresh process and returns how many rows it made, or a
  `Peer`: a command of another virtual environment, left out visibly where that is absent;
* `COMPARISONS`: an input, which jobs run on it, and the ratios that are meant to hold.

Jobs of one comparison take turns, so that a change of the machine's speed meets all of them. Peak memory is the
largest resident set of any process of the job. Wall and CPU seconds count from after imports, as those of peers and
bare parsers do; `cold_start.py` measures what the product's own take. JSON goes beside the table.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Peer:
    """Another tool: `variable` names the environment variable with its interpreter.

    `program` is run with the input's path as its argument; it prints {"wall", "cpu", "n"} as JSON in its last line.
    """

    variable: str
    program: str


@dataclass(frozen=True)
class Bound:
    """`figure` of `job` is meant to be at most `limit` times that of `than`, or at most `limit` where `than` is ""."""

    job: str
    than: str
    limit: float
    figure: str = "wall"  # wall | cpu (seconds) | rss (MiB)


@dataclass(frozen=True)
class Comparison:
    name: str
    make: Callable[[Path], Path]  # writes the input below a folder; an input of that name may be reused
    jobs: Sequence[str]
    bounds: Sequence[Bound] = ()
    large: bool = False  # left out unless it is asked for with --only
    runs: int | None = None  # where N runs would take too long
    cores: dict[str, int] = field(default_factory=dict)  # job → cores that it is pinned to


def build_case(path: Path, *, threads: int = 2, in_children: bool = False) -> int:
    """Discovers, ingests and assembles what lies at `path` into a case on disk; returns the rows of its tables.

    `in_children`: loads in child processes, as `forensics analyze` does, else in this one.
    """
    from forensics.assembly import assemble_case
    from forensics.case import EVENT_TABLES, connect, first_case_aside
    from forensics.children import Children
    from forensics.discovery import discover
    from forensics.ingest import ingest
    from forensics.memory import usable_bytes

    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        with first_case_aside(Path(place)):
            found = discover(path, Path(place) / "work")
            for item in found:
                item.source.threads = threads
            with Children(threads, usable_bytes()) if in_children else contextlib.nullcontext() as children:
                loaded = ingest(found, Path(place) / "cache", children=children)
        assemble_case(loaded, Path(place) / "case.duckdb", threads=threads)
        con = connect(Path(place) / "case.duckdb", read_only=True)
        return sum(con.sql(f"SELECT count(*) FROM {table}").fetchall()[0][0] for table in EVENT_TABLES)


def _import_product() -> None:
    """What `build_case` needs; without pandas, as where `forensics analyze` loads."""
    from forensics.imports import leave_out_pandas

    leave_out_pandas()
    importlib.import_module("forensics.assembly")
    from forensics.formats import formats

    formats()


def _kinds() -> list[str]:
    return sorted(path.stem.removeprefix("ingest_") for path in Path(__file__).parent.glob("ingest_*.py"))


def _module(kind: str) -> Any:
    return importlib.import_module(f"benchmarks.ingest_{kind}")


def _peak_mib() -> float:
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024


def _cpu_seconds() -> float:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def _run_here(kind: str, job: str, path: Path, cores: int) -> None:
    if cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    run = _module(kind).JOBS[job]
    _import_product()
    began, cpu = time.perf_counter(), _cpu_seconds()
    n = run(path)
    wall, cpu = time.perf_counter() - began, _cpu_seconds() - cpu
    print(json.dumps({"wall": wall, "cpu": cpu, "rss": _peak_mib(), "n": n}))


def _measure(kind: str, job: str, path: Path, cores: int) -> dict[str, float]:
    """Figures of one job in a fresh process; `{}` where it cannot run."""
    given = _module(kind).JOBS[job]
    if isinstance(given, Peer):
        python = os.environ.get(given.variable)
        if not python:
            return {}
        command = [python, "-c", given.program, str(path)]
    else:
        command = [sys.executable, "-m", "benchmarks.ingest", "--job", kind, job, str(path), "--cores", str(cores)]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, check=False, text=True)
    if done.returncode:
        print(f"{job}: exit code {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def _compare(kind: str, comparison: Comparison, folder: Path, runs: int) -> dict[str, Any]:
    path = comparison.make(folder)
    size = sum(p.stat().st_size for p in path.rglob("*")) if path.is_dir() else path.stat().st_size
    figures: dict[str, list[dict[str, float]]] = {job: [] for job in comparison.jobs}
    for _ in range(comparison.runs or runs):
        for job in comparison.jobs:
            figures[job].append(_measure(kind, job, path, comparison.cores.get(job, 0)))
    medians = {
        job: {name: statistics.median(run[name] for run in seen if run) for name in seen[0]} if all(seen) else {}
        for job, seen in figures.items()
    }
    bounds = []
    for bound in comparison.bounds:
        ours, theirs = medians.get(bound.job, {}), medians.get(bound.than, {}) if bound.than else {bound.figure: 1.0}
        ratio = ours[bound.figure] / theirs[bound.figure] if ours and theirs else None
        bounds.append({**vars(bound), "ratio": ratio, "holds": None if ratio is None else ratio <= bound.limit})
    return {"kind": kind, "name": comparison.name, "bytes": size, "jobs": medians, "runs": figures, "bounds": bounds}


def _print(result: dict[str, Any]) -> None:
    size = result["bytes"] / 1e6
    print(f"\n{result['kind']}: {result['name']} ({size:.1f} MB)")
    print(f"  {'job':24} {'wall s':>8} {'cpu s':>8} {'MB/s':>8} {'peak MiB':>9} {'rows':>10}")
    for job, seen in result["jobs"].items():
        if not seen:
            print(f"  {job:24} not run: its interpreter is not given, or it failed")
            continue
        rss = f"{seen['rss']:9.0f}" if "rss" in seen else f"{'':9}"
        print(f"  {job:24} {seen['wall']:8.2f} {seen['cpu']:8.2f} {size / seen['wall']:8.1f} {rss} {seen['n']:10.0f}")
    for bound in result["bounds"]:
        claim = f"{bound['figure']} {bound['job']} / {bound['than'] or '1'}"
        state = "not measured" if bound["ratio"] is None else "holds" if bound["holds"] else "MISSED"
        ratio = "" if bound["ratio"] is None else f"{bound['ratio']:.3f}"
        print(f"  {claim:50} {ratio:>9} (limit {bound['limit']:g}) {state}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(_kinds())}; default all")
    parser.add_argument("--only", help="comparisons whose name contains this; large ones run only when named")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path, default=Path("ingest-benchmark.json"))
    parser.add_argument("--keep", type=Path, help="where inputs are kept for the next run; default a temporary folder")
    parser.add_argument("--job", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        kind, job, path = given.job
        _run_here(kind, job, Path(path), given.cores)
        return
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for kind in given.kinds or _kinds():
            for comparison in _module(kind).COMPARISONS:
                wanted = given.only in comparison.name if given.only else not comparison.large
                if wanted:
                    results.append(_compare(kind, comparison, folder, given.runs))
                    _print(results[-1])
    given.json.write_text(json.dumps({"cores": os.cpu_count(), "results": results}, indent=1))


if __name__ == "__main__":
    importlib.import_module("benchmarks.ingest").main()  # not this copy: kinds import its classes by that name
