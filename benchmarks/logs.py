"""Measures speed and memory of loading logs, against reading the same lines in Python.

    python benchmarks/logs.py [MEGABYTES] [--kind NAME]... [--files N [--end HOW]]

Writes each kind of log to a temporary folder, the same bytes at every run, and loads it in a fresh process. Speed is
MB/s of CPU time, so per core, without the start of Python, imports and the catalogue; `of yard` is its ratio to the
yardstick of the same file and run, `for line in open(f, "rb")` with one regular expression searched in each line.
`ingest` adds recognition, hashing and the Parquet cache.
`--files N`: N ranks of 1 MB each through the whole analysis; `--end`: how each of them ends.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from log_kinds import ENDS, KINDS, errors, training


def write_log(path: Path, lines: Iterator[str], n_bytes: int, encoding: str = "utf-8") -> None:
    with path.open("w", encoding=encoding, newline="") as file:
        written = 0
        for line in lines:
            file.write(line)
            written += len(line)
            if written >= n_bytes:
                break


class _Discard:
    """Takes what a format says and keeps nothing."""

    n_rows = 0

    def emit(self, table: str, data: Any) -> None:
        self.n_rows += data.num_rows

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **known: None


def yardstick(path: Path) -> int:
    search = re.compile(rb"Traceback|Error|loss").search
    with path.open("rb") as file:
        return sum(search(line) is not None for line in file)


def load(path: Path) -> int:
    from forensics.artifact import Source
    from forensics.formats import log

    sink = _Discard()
    log.load(Source(path, path.name), sink)
    return sink.n_rows


def through_ingest(path: Path) -> int:
    from forensics.discovery import discover
    from forensics.ingest import ingest

    with tempfile.TemporaryDirectory(dir=path.parent) as cache:
        (loaded,) = ingest(discover(path, Path(cache) / "work"), Path(cache))
        return sum(map(len, loaded.tables().values()))


def whole_analysis(path: Path) -> int:
    from forensics.pipeline import analyze

    with tempfile.TemporaryDirectory() as out:
        done = analyze(path, out)
        sizes = ", ".join(f"{p.name} {p.stat().st_size / 1e6:.1f} MB" for p in sorted(done.out.glob("*.*")))
        print(f"  {done.verdict.status}: {done.verdict.sentence[:120]}\n  {len(done.findings)} findings; {sizes}",
              file=sys.stderr)  # fmt: skip
        return done.n_parsed


def stages(path: Path) -> int:
    """The analysis step by step: CPU seconds and memory after each go to stderr."""
    import gc

    from forensics.assembly import assemble_case
    from forensics.discovery import discover
    from forensics.ingest import ingest

    def tell(stage: str) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text()
        now = re.search(r"VmRSS:\s+(\d+)", status)
        print(f"  {stage:10} cpu {time.process_time():7.2f} s, RSS {int(now[1]) / 1024 if now else 0:7.1f} MiB, "
              f"peak {_peak_mib():7.1f} MiB", file=sys.stderr)  # fmt: skip

    with tempfile.TemporaryDirectory() as out:
        tell("start")
        found = discover(path, Path(out) / "work")
        tell("discover")
        loaded = ingest(found, Path(out) / "cache")
        tell("ingest")
        assemble_case(loaded, Path(out) / "case.duckdb")
        tell("assemble")
    return len(loaded)


JOBS = {
    "yardstick": yardstick, "load": load, "ingest": through_ingest, "analyze": whole_analysis, "stages": stages
}  # fmt: skip


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(job: str, path: Path) -> dict[str, float]:
    """CPU seconds, wall seconds and peak MiB of a job in a fresh process."""
    command = [sys.executable, __file__, "--job", job, str(path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _warm_up() -> None:
    """Loads a small log, so that neither imports nor the reading of the catalogue are measured."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small.log"
        write_log(path, errors(), 20_000)
        load(path)


def _run_job(job: str, path: Path) -> None:
    if job != "yardstick":
        _warm_up()
    began, cpu = time.perf_counter(), time.process_time()
    n = JOBS[job](path)
    print(json.dumps({
        "cpu": time.process_time() - cpu, "wall": time.perf_counter() - began, "rss": _peak_mib(), "n": n,
    }))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("megabytes", type=int, nargs="?", default=20)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS))
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--end", choices=sorted(ENDS))
    parser.add_argument("--job", nargs=2)
    given = parser.parse_args()
    if given.job:
        _run_job(given.job[0], Path(given.job[1]))
        return
    header = (
        f"{'kind':12} {'MB':>5} {'yard MB/s':>10} {'load MB/s':>10} {'of yard':>8} {'ingest MB/s':>12} {'wall s':>7} "
    )
    print(header + f"{'RSS MiB':>8} {'rows':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.kind or (() if given.files else KINDS):
            path = Path(folder) / f"{kind}.log"
            encoding = "utf-16" if kind == "utf16" else "utf-8"
            write_log(path, KINDS[kind](0), given.megabytes * 1_000_000 // (1 + (kind == "utf16")), encoding)
            mb = path.stat().st_size / 1e6
            yard, loaded, ingested = (measure(job, path) for job in ("yardstick", "load", "ingest"))
            print(
                f"{kind:12} {mb:5.0f} {mb / yard['cpu']:10.1f} {mb / loaded['cpu']:10.1f} "
                f"{yard['cpu'] / loaded['cpu']:7.2f}x {mb / ingested['cpu']:12.1f} {loaded['wall']:7.2f} "
                f"{loaded['rss']:8.0f} {loaded['n']:9.0f}",
                flush=True,
            )
            path.unlink()
        if given.files:
            logs = Path(folder) / "job"
            logs.mkdir()
            for rank in range(given.files):
                path = logs / f"rank_{rank}.log"
                write_log(path, training(rank), 1_000_000)
                if given.end:
                    path.write_text(path.read_text() + "\n" + ENDS[given.end](rank))
            for job in ("stages", "analyze"):
                figures = measure(job, logs)
                print(f"{given.files} ranks x 1 MB, {job}: {figures['cpu']:.1f} s CPU, {figures['wall']:.1f} s wall, "
                      f"peak RSS {figures['rss']:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
