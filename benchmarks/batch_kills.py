"""Kills a batch at random moments and shows that nothing is lost, doubled or left behind.

    python benchmarks/batch_kills.py [KILLS [JOBS [SECONDS]]]

A batch over JOBS jobs is killed (SIGKILL) KILLS times, each after a random time of at most SECONDS; every fourth time a
second batch is started on the same fleet meanwhile. One that is left alone, with --retry for jobs that were at work in
three of the kills, must then leave what a batch that was never killed leaves, byte for byte. Exits with 1 where not.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from batch import FORENSICS, ask, make_jobs

_PR_SET_CHILD_SUBREAPER = 36
_SEED = 11


def command(jobs: Path, fleet: Path) -> list[str]:
    return [
        *FORENSICS,
        "batch",
        str(jobs),
        "--out",
        str(fleet),
        "--workers",
        "2",
        "--keep",
        "report",
        "--all",
        "--quiet",
    ]


def seconds_until_alone(limit: float = 30.0) -> float:
    """How long processes of a killed batch, which become this one's children, live on."""
    start = time.monotonic()
    while time.monotonic() - start < limit:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return time.monotonic() - start
    return limit


def faults(jobs: Path, fleet: Path, whole: Path) -> Iterator[str]:
    rows = ask(fleet, "SELECT name, status, verdict, incident, content FROM job ORDER BY name")
    if rows != ask(whole, "SELECT name, status, verdict, incident, content FROM job ORDER BY name"):
        yield "rows differ"
    if len(rows) != len(list(jobs.iterdir())):
        yield f"{len(rows)} rows"
    for report in whole.glob("jobs/*/report.*"):
        other = fleet / report.relative_to(whole)
        if not other.is_file() or other.read_bytes() != report.read_bytes():
            yield f"{other} differs"
    for path in fleet.rglob("*"):
        if path.name.startswith(".") or "building" in path.name:
            yield f"{path} is left"


def main() -> None:
    kills, n_jobs, most = (int(sys.argv[n]) if len(sys.argv) > n else d for n, d in ((1, 20), (2, 30), (3, 15)))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    dice = random.Random(_SEED)
    work = Path(tempfile.mkdtemp(prefix="forensics-kills-"))
    jobs, fleet, whole = work / "jobs", work / "fleet", work / "whole"
    make_jobs(jobs, 0, n_jobs)
    subprocess.run(command(jobs, whole), check=True)
    lived, codes, done = [], [], []
    for number in range(kills):
        batch = subprocess.Popen(command(jobs, fleet))
        time.sleep(dice.uniform(0.2, most))
        if number % 4 == 3 and batch.poll() is None:
            codes.append(subprocess.run(command(jobs, fleet), check=False, stderr=subprocess.DEVNULL).returncode)
        batch.send_signal(signal.SIGKILL)
        batch.wait()
        lived.append(seconds_until_alone())
        journal = fleet / "journal.jsonl"
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        done.append(sum(b'"end"' in line for line in lines))
    print(f"{kills} kills; jobs done after each: {done}; second batches exited with {codes}")
    print(f"processes lived on for at most {max(lived):.2f} s")
    last = subprocess.run([*command(jobs, fleet), "--retry"], check=False).returncode
    starts = [json.loads(line) for line in (fleet / "journal.jsonl").read_bytes().splitlines() if line.endswith(b"}")]
    print(f"last batch: exit {last}; {sum(s['event'] == 'start' for s in starts)} starts for {n_jobs} jobs")
    found = list(faults(jobs, fleet, whole))
    print("\n".join(found) or f"nothing is lost, doubled or left behind in {fleet}")
    sys.exit(bool(found or last or max(lived) >= 30))


if __name__ == "__main__":
    main()
