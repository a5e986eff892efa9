"""A job of many ranks end to end: `python benchmarks/many_ranks.py [RANKS [KB [SEED]]]`.

Each rank leaves a log of KB kilobytes and a flight recorder dump of a simulated hang (`collective_simulator`): NCCL's
lines of its start, lines of the job, a training step every twentieth line, and at the end the watchdog's timeout, which
the rank at fault does not get. Then `forensics analyze` runs over the folder. Prints CPU and wall seconds, the most
memory of any one process and of all together (resident, sampled), and the verdict beside the truth.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from waits import SHAPES, simulator

_SAMPLE_SECONDS = 0.25
_PAGE = os.sysconf("SC_PAGE_SIZE")


def log_of(rank: int, world: int, size: int, calls: int, at_fault: bool, drawn: random.Random) -> str:
    host, local = f"node-{rank // 8:04d}", rank % 8
    comm = f"comm {drawn.getrandbits(40):#x} rank {rank} nranks {world}"
    lines = [f"{host}:{4000 + local}:{4100 + local} [{local}] NCCL INFO {comm}"]
    n_bytes, n = len(lines[0]), 0
    while n_bytes < size:
        n += 1
        stamp = f"2026-11-12 {10 + n // 3600 % 12:02d}:{n // 60 % 60:02d}:{n % 60:02d},{drawn.randrange(1000):03d}"
        if n % 20 == 0:
            said = f"step {n // 20} loss {2 + drawn.random():.4f} grad_norm {drawn.random():.3f} lr 3.0e-04"
        elif n % 20 < 6:
            said = f"loader: shard {drawn.randrange(10_000)} read in {drawn.random() * 90:.1f} ms"
        else:
            said = f"cache: {drawn.randrange(4096)} of 4096 blocks in use, {drawn.randrange(100)} evicted since then"
        lines.append(f"{stamp} [rank {rank}] INFO {said}")
        n_bytes += len(lines[-1]) + 1
    if not at_fault:
        lines.append(
            f"[rank{rank}]:[E1112 23:59:0{rank % 10}.123456 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
            f"collective operation timeout: WorkNCCL(SeqNum={calls}, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, "
            "Timeout(ms)=600000) ran for 600029 milliseconds before timing out."
        )
    return "\n".join(lines) + "\n"


def make(folder: Path, ranks: int, size: int, seed: int) -> dict[str, object]:
    simulated = simulator()
    tensor, pipeline = SHAPES.get(ranks, (1, 1))
    job = simulated.simulate(ranks, fault="skip", seed=seed, tensor=tensor, pipeline=pipeline)
    drawn = random.Random(seed)
    for name, data in simulated.dumps(job):
        (folder / name).write_bytes(data)
    for rank in range(ranks):
        text = log_of(rank, ranks, size, job.called[rank], rank in job.truth["culprits"], drawn)
        (folder / f"rank_{rank}.log").write_text(text)
    return dict(job.truth)


def resident(root: int) -> list[int]:
    """Bytes of the process and of all below it."""
    parents, sizes = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            sizes[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError, ValueError):
            continue
    found, unread = {root}, [root]
    while unread:
        at = unread.pop()
        below = [pid for pid, parent in parents.items() if parent == at]
        found.update(below)
        unread += below
    return [sizes[pid] for pid in found if pid in sizes]


def main(ranks: int = 4096, kilobytes: int = 1000, seed: int = 3) -> None:
    folder = Path(tempfile.mkdtemp(prefix="forensics-many-ranks-"))
    try:
        (folder / "job").mkdir()
        truth = make(folder / "job", ranks, kilobytes * 1000, seed)
        size = sum(path.stat().st_size for path in (folder / "job").iterdir())
        print(f"{ranks} ranks, {2 * ranks} files, {size / 1e6:.0f} MB; at fault: {truth['culprits']}")
        began = time.monotonic()
        command = [sys.executable, "-m", "forensics", "analyze", str(folder / "job"), "--out", str(folder / "out")]
        with (folder / "printed.txt").open("w") as printed, subprocess.Popen(command, stdout=printed) as running:
            most_one = most_all = 0
            while running.poll() is None:
                sizes = resident(running.pid)
                most_one, most_all = max(most_one, *sizes, 0), max(most_all, sum(sizes))
                time.sleep(_SAMPLE_SECONDS)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"exit {running.returncode}, {used.ru_utime + used.ru_stime:.1f} CPU s, {time.monotonic() - began:.1f} s")
        print(f"peak of any process {most_one >> 20} MiB, of all together {most_all >> 20} MiB")
        print((folder / "printed.txt").read_text())
        report = folder / "out" / "report.json"
        if report.is_file():
            roots = json.loads(report.read_bytes())["verdict"].get("root_causes", [])
            print(
                "named:",
                [finding.get("rank") for finding in roots],
                "page:",
                (folder / "out" / "report.html").stat().st_size,
            )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
