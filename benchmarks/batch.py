"""A batch end to end: make jobs, batch, kill, resume, add some, batch again, query, gate; and what that costs.

    python benchmarks/batch.py [JOBS [MORE [WORKERS]]]

Jobs are twenty small fixtures multiplied with changed content (another line in a log, so that no two are alike). Prints
jobs per worker and minute, the CPU time of a job above that of a bare `forensics analyze`, and the memory of the batch
and of the process that its jobs are forked from, at every tenth of the jobs. CPU time is that of all processes, killed
ones too: this process takes in what others leave behind. 1000 jobs take about half an hour of one core.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = (
    "worker-killed", "host-full-disk", "missing-rank", "first-failure", "memory-capacity", "checkpoint-cut-copy",
    "memory-other-process", "numerics-traced-anomaly", "memory-retried-batch", "serving-small-pool",
    "numerics-label-out-of-range", "gradients-skipped-backward", "adapters-frozen", "host-open-shards",
    "numerics-no-scaler", "gradients-no-zero-grad", "compile-new-types", "numerics-pinned-scale", "process-dumps",
    "distributed-half-loaded",
)  # fmt: skip
FORENSICS = [sys.executable, "-m", "forensics.cli"]
_PR_SET_CHILD_SUBREAPER = 36


def make_jobs(folder: Path, first: int, n: int) -> None:
    for number in range(first, first + n):
        job = folder / f"train-{number:05d}"
        shutil.copytree(ROOT / "fixtures" / FIXTURES[number % len(FIXTURES)] / "artifacts", job)
        (job / "launch.log").write_text(
            f"2026-11-30 01:00:00 INFO launcher: run {number} of the night, seed {number * 7919}\n"
        )


def cpu_seconds() -> float:
    """Of all processes below this one that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def bare_cpu_seconds(folder: Path, work: Path) -> float:
    """Mean CPU seconds of bare `forensics analyze` over one job of each fixture, cold cache."""
    before = cpu_seconds()
    for number, job in enumerate(sorted(folder.iterdir())[: len(FIXTURES)]):
        command = [*FORENSICS, "analyze", str(job), "--out", str(work / f"bare{number}"), "--quiet", "--threads", "1"]
        subprocess.run(command, check=False)
    return (cpu_seconds() - before) / len(FIXTURES)


def n_ended(fleet: Path) -> int:
    journal = fleet / "journal.jsonl"
    return journal.read_bytes().count(b'"end"') if journal.exists() else 0


def resident_mib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS")), 0)


def children_of(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


def run_batch(
    command: list[str], fleet: Path, marks: list[int], stop_at: int | None = None
) -> tuple[float, list[tuple[int, ...]], int]:
    """Seconds, resident MiB of batch process and server when so many jobs had ended, and its exit code."""
    start, held = time.perf_counter(), []
    child = subprocess.Popen(command)
    while child.poll() is None:
        ended = n_ended(fleet)
        if stop_at is not None and ended >= stop_at:
            child.send_signal(signal.SIGKILL)
        if len(held) < len(marks) and ended >= marks[len(held)]:
            held.append(tuple(resident_mib(pid) for pid in (child.pid, *children_of(child.pid))))
        time.sleep(0.1)
    return time.perf_counter() - start, held, child.returncode


def ask(fleet: Path, sql: str) -> list[dict[str, object]]:
    command = [*FORENSICS, "fleet", "query", str(fleet), sql, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in answer.splitlines()]


def main() -> None:
    n_jobs, n_more, workers = (int(sys.argv[n]) if len(sys.argv) > n else d for n, d in ((1, 1000), (2, 50), (3, 2)))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    work = Path(tempfile.mkdtemp(prefix="forensics-benchmark-"))
    jobs, fleet = work / "jobs", work / "fleet"
    make_jobs(jobs, 0, n_jobs)
    command = [
        *FORENSICS,
        "batch",
        str(jobs),
        "--out",
        str(fleet),
        "--workers",
        str(workers),
        "--keep",
        "report",
        "--all",
    ]
    bare = bare_cpu_seconds(jobs, work)
    print(f"bare analyze: {bare:.2f} CPU s a job", flush=True)
    seconds, _, code = run_batch(command, fleet, [], stop_at=n_jobs // 4)
    print(f"killed after {n_ended(fleet)} jobs and {seconds:.0f} s (exit {code})", flush=True)
    before, cpu = n_ended(fleet), cpu_seconds()
    marks = [before + max(1, (n_jobs - before) * tenth // 10) for tenth in range(1, 10)]
    seconds, held, code = run_batch(command, fleet, marks)
    taken = cpu_seconds() - cpu
    done = n_ended(fleet) - before
    print(
        f"resumed: {done} jobs in {seconds:.0f} s, exit {code}, {done / seconds * 60 / workers:.1f} a minute and worker"
    )
    print(f"CPU: {taken / done:.2f} s a job in all, {taken / done - bare:+.2f} s against bare analyze")
    print(f"batch process, server: {held} MiB at every tenth of the jobs", flush=True)
    make_jobs(jobs, n_jobs, n_more)
    seconds, _, code = run_batch(command, fleet, [])
    print(f"{n_more} more jobs: {seconds:.0f} s, exit {code}", flush=True)
    cpu = cpu_seconds()
    seconds, _, code = run_batch(command, fleet, [])
    print(f"nothing new: {seconds:.1f} s, {cpu_seconds() - cpu:.1f} CPU s, exit {code}")
    for row in ask(
        fleet, "SELECT verdict, count(*) AS n, avg(cpu_s) AS cpu_s, max(peak_bytes) AS peak FROM job GROUP BY ALL"
    ):
        print(row)
    for row in ask(
        fleet, "SELECT state, rule, n_jobs, first_run, last_run FROM incident ORDER BY n_jobs DESC, incident"
    ):
        print(row)
    print(f"gate: exit {subprocess.run([*FORENSICS, 'fleet', 'gate', str(fleet)], check=False).returncode}")
    total = sum(f.stat().st_size for f in fleet.rglob("*") if f.is_file())
    print(f"fleet: {total / (n_jobs + n_more) / 1024:.0f} KiB a job, in {work}")


if __name__ == "__main__":
    main()
