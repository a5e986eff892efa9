"""Measures speed and memory of loading logs, against reading the same lines in Python.

    python benchmarks/logs.py [MEGABYTES] [--kind NAME]... [--files N [--kilobytes K] [--end HOW]]

Writes each kind of log to a temporary folder, the same bytes at every run, and loads it in a fresh process. Speed is
MB/s of CPU time, so per core, without the start of Python, imports and the catalogue; `of yard` is its ratio to the
yardstick of the same file and run, `for line in open(f, "rb")` with one regular expression searched in each line.
`ingest` adds recognition, hashing and the Parquet cache.
`--files N`: N ranks, each with a log of K kB (1000), through the whole analysis; `--end`: how each of them ends.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
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


def write_job(folder: Path, n_ranks: int, n_bytes: int, end: str | None) -> None:
    """A log for each rank; that of every 32nd differs in the rank only, for writing them takes longer than reading."""
    for rank in range(n_ranks):
        path, alike = folder / f"rank_{rank}.log", folder / f"rank_{rank % 32}.log"
        if rank < 32:
            write_log(path, training(rank), n_bytes)
        else:
            path.write_bytes(alike.read_bytes().replace(f"rank{rank % 32}]".encode(), f"rank{rank}]".encode()))
    for rank in range(n_ranks if end else 0):
        with (folder / f"rank_{rank}.log").open("a") as file:
            file.write("\n" + ENDS[str(end)](rank))


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
    """The analysis as a user runs it; what each stage took goes to stderr."""
    from forensics import briefing, diagnosis, ledger, pipeline

    with Stages() as stages, tempfile.TemporaryDirectory() as out:
        for module, name in (
            (pipeline, "discover"), (pipeline, "ingest"), (pipeline, "assemble_case"), (pipeline, "judge"),
            (ledger, "earliest_anomaly"), (diagnosis, "diagnose"), (briefing, "brief"), (pipeline, "render_html"),
        ):  # fmt: skip
            setattr(module, name, stages.timed(name, getattr(module, name)))
        done = pipeline.analyze(path, out)
        stages.tell("all")
        sizes = ", ".join(f"{p.name} {p.stat().st_size / 1e6:.1f} MB" for p in sorted(done.out.glob("*.*")))
        print(f"  {done.verdict.status}: {done.verdict.sentence[:300]}\n  {len(done.findings)} findings; {sizes}",
              file=sys.stderr)  # fmt: skip
        return done.n_parsed


class Stages:
    """Times stages, and watches the memory of this process and its children together."""

    def __enter__(self) -> Stages:
        self._ended = threading.Event()
        self.peak_kib = 0
        self._began = self._now()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **known: Any) -> Any:
            before = self._now()
            result = function(*args, **known)
            self._print(name, before)
            return result

        return run

    def tell(self, name: str) -> None:
        self._print(name, self._began)

    def _print(self, name: str, before: tuple[float, float]) -> None:
        wall, cpu = (now - then for now, then in zip(self._now(), before, strict=True))
        print(f"  {name:16} cpu {cpu:7.1f} s, wall {wall:7.1f} s; peak so far {self.peak_kib / 1024:6.0f} MiB with "
              f"children, {_peak_mib():6.0f} MiB without", file=sys.stderr, flush=True)  # fmt: skip

    def _now(self) -> tuple[float, float]:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter(), time.process_time() + ended.ru_utime + ended.ru_stime

    def _look(self) -> None:
        while not self._ended.wait(0.2):
            self.peak_kib = max(self.peak_kib, _tree_kib(os.getpid()))


def _tree_kib(pid: int) -> int:
    """Resident memory of a process and those below it; pages that they share count for each."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return (int(found[1]) if found else 0) + sum(_tree_kib(int(child)) for child in below)


JOBS = {"yardstick": yardstick, "load": load, "ingest": through_ingest, "analyze": whole_analysis}


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
    parser.add_argument("--kilobytes", type=int, default=1000)
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
            write_job(logs, given.files, given.kilobytes * 1000, given.end)
            figures = measure("analyze", logs)
            print(f"{given.files} ranks x {given.kilobytes} kB: {figures['cpu']:.1f} s CPU without children, "
                  f"{figures['wall']:.1f} s wall, peak RSS without children {figures['rss']:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
