"""A batch end to end: make jobs, batch, kill, resume, add some, batch again, query, gate; and what that costs.

    python benchmarks/batch.py [JOBS [MORE [WORKERS]]]

Jobs are fixtures multiplied with changed content (another line in a log, so that no two are alike). Prints jobs per
worker and minute, the CPU time of a job above that of a bare `forensics analyze`, and the memory of the batch process
at a tenth and at nine tenths of the jobs. 1000 small jobs take about an hour of one core.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ("worker-killed", "host-full-disk", "missing-rank", "first-failure", "memory-capacity")
FORENSICS = [sys.executable, "-m", "forensics.cli"]


def make_jobs(folder: Path, first: int, n: int) -> None:
    for number in range(first, first + n):
        job = folder / f"train-{number:05d}"
        shutil.copytree(ROOT / "fixtures" / FIXTURES[number % len(FIXTURES)] / "artifacts", job)
        (job / "launch.log").write_text(
            f"2026-11-30 01:00:00 INFO launcher: run {number} of the night, seed {number * 7919}\n"
        )


def analyze_seconds(folder: Path, work: Path) -> tuple[float, float]:
    """Median wall and CPU seconds of bare `forensics analyze` over one job of each fixture, cold cache."""
    walls, cpus = [], []
    for number, job in enumerate(sorted(folder.iterdir())[: len(FIXTURES)]):
        before, start = os.times(), time.perf_counter()
        command = [*FORENSICS, "analyze", str(job), "--out", str(work / f"bare{number}"), "--quiet", "--threads", "1"]
        subprocess.run(command, check=False)
        walls.append(time.perf_counter() - start)
        after = os.times()
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.mean(walls), statistics.mean(cpus)


def n_ended(fleet: Path) -> int:
    journal = fleet / "journal.jsonl"
    return journal.read_bytes().count(b'"end"') if journal.exists() else 0


def run_batch(
    command: list[str], fleet: Path, marks: list[int], stop_at: int | None = None
) -> tuple[float, list[int], int]:
    """Seconds, resident KiB of the batch process when so many jobs had ended, and its exit code."""
    start, held = time.perf_counter(), []
    child = subprocess.Popen(command)
    while child.poll() is None:
        ended = n_ended(fleet)
        if stop_at is not None and ended >= stop_at:
            child.send_signal(signal.SIGKILL)
        if len(held) < len(marks) and ended >= marks[len(held)]:
            lines = Path(f"/proc/{child.pid}/status").read_text().splitlines()
            held.append(next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0))
        time.sleep(0.05)
    return time.perf_counter() - start, held, child.returncode


def ask(fleet: Path, sql: str) -> list[dict[str, object]]:
    command = [*FORENSICS, "fleet", "query", str(fleet), sql, "--format", "json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in answer.splitlines()]


def main() -> None:
    n_jobs, n_more, workers = (int(sys.argv[n]) if len(sys.argv) > n else d for n, d in ((1, 1000), (2, 50), (3, 2)))
    work = Path(tempfile.mkdtemp(prefix="forensics-benchmark-"))
    jobs, fleet = work / "jobs", work / "fleet"
    make_jobs(jobs, 0, n_jobs)
    command = [*FORENSICS, "batch", str(jobs), "--out", str(fleet), "--workers", str(workers), "--keep", "report"]
    bare_wall, bare_cpu = analyze_seconds(jobs, work)
    print(f"bare analyze: {bare_wall:.2f} s, {bare_cpu:.2f} CPU s a job", flush=True)
    seconds, _, code = run_batch(command, fleet, [], stop_at=n_jobs // 4)
    print(f"killed after {n_ended(fleet)} jobs and {seconds:.0f} s (exit {code})", flush=True)
    before, cpu = n_ended(fleet), os.times()
    marks = [before + max(1, (n_jobs - before) // 10), before + (n_jobs - before) * 9 // 10]
    seconds, held, code = run_batch(command, fleet, marks)
    spent = os.times()
    taken = spent.children_user + spent.children_system - cpu.children_user - cpu.children_system
    done = n_ended(fleet) - before
    rate = done / seconds * 60 / workers
    print(f"resumed: {done} jobs in {seconds:.0f} s, exit {code}, {rate:.1f} jobs a minute and worker")
    print(f"CPU: {taken / done:.2f} s a job in all, {taken / done - bare_cpu:+.2f} s above bare analyze")
    print(
        f"batch process: {', '.join(f'{h >> 10} MiB' for h in held)} at a tenth and nine tenths of the jobs", flush=True
    )
    make_jobs(jobs, n_jobs, n_more)
    seconds, _, code = run_batch(command, fleet, [])
    print(f"{n_more} more jobs: {seconds:.0f} s, exit {code}", flush=True)
    seconds, _, code = run_batch(command, fleet, [])
    print(f"nothing new: {seconds:.1f} s, exit {code}")
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
