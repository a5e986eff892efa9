"""Times loading traces of several ranks on all cores against loading one of them alone on one core.

    python benchmarks/parallel.py [RANKS] [MEGABYTES]

Prints wall and CPU seconds and their ratio to RANKS times the single trace on one core, each in a fresh process: on two
idle cores a wall ratio of 0.5 is perfect; on busy ones the CPU ratio tells what parallel loading costs beyond. Also the
peak of memory of all processes together. CPU is read twenty times a second, so short runs lose a little of it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

_HEAD = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "distributedInfo": {"rank": %d},'
    ' "baseTimeNanoseconds": 1775078550000000000,\n"traceEvents": [\n'
)


def write_trace(path: Path, rank: int, n_bytes: int) -> None:
    """Operators with a launch and a kernel each, as a training step has them."""
    draw = random.Random(rank)
    with path.open("w") as file:
        written, n, ts = file.write(_HEAD % rank), 0, 1000.0
        while written < n_bytes:
            n += 1
            ts += draw.random() * 40
            device = ts + 30
            shapes = f'"Input Dims": [[{n % 64}, 1024], [1024, 4096]]'
            written += file.write(
                f'{{"ph": "X", "cat": "cpu_op", "name": "aten::op{n % 300}", "pid": 41, "tid": 7, "ts": {ts:.3f},'
                f' "dur": {draw.random() * 30:.3f}, "args": {{"External id": {n}, {shapes}}}}},\n'
                f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 41, "tid": 7,'
                f' "ts": {ts + 1:.3f}, "dur": 4.125, "args": {{"External id": {n}, "correlation": {n}}}}},\n'
                f'{{"ph": "X", "cat": "kernel", "name": "void kernel_{n % 500}<float>(int)", "pid": 0, "tid": 7,'
                f' "ts": {device:.3f}, "dur": {draw.random() * 30:.3f}, "args": {{"External id": {n},'
                f' "correlation": {n}, "device": 0, "stream": 7}}}},\n'
            )
        file.write('{"ph": "i", "name": "end", "pid": 41, "tid": 7, "ts": 1, "s": "g"}\n]}\n')


def ingest_all(path: Path, threads: int) -> None:
    from forensics.children import Children
    from forensics.discovery import discover
    from forensics.ingest import ingest
    from forensics.memory import usable_bytes

    with tempfile.TemporaryDirectory(dir=path.parent) as work, Children(threads, usable_bytes()) as children:
        loaded = ingest(discover(path, Path(work) / "work"), Path(work) / "cache", children=children)
    assert all(item.meta["quality"] == "complete" for item in loaded), [item.meta["warnings"] for item in loaded]


def measure(path: Path, threads: int, cores: set[int]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and MiB at the peak, children included."""
    command = [sys.executable, __file__, "--load", str(path), str(threads), *map(str, cores)]
    began = time.perf_counter()
    child = subprocess.Popen(command)
    peak, spent = [0.0], dict[int, float]()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            family = _family(child.pid)
            spent.update((pid, seconds) for pid in family if (seconds := _cpu_seconds(pid)))
            peak[0] = max(peak[0], sum(map(_resident, family)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    child.wait()
    taken = time.perf_counter() - began
    done.set()
    watcher.join()
    assert child.returncode == 0
    return taken, sum(spent.values()), peak[0]


def _family(pid: int) -> list[int]:
    pids, waiting = [], [pid]
    while waiting:
        pid = waiting.pop()
        pids.append(pid)
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                waiting += map(int, task.read_text().split())
            except OSError:
                continue
    return pids


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    """Proportional: pages that forked processes share count once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def main() -> None:
    if sys.argv[1:2] == ["--load"]:
        os.sched_setaffinity(0, set(map(int, sys.argv[4:])))
        ingest_all(Path(sys.argv[2]), int(sys.argv[3]))
        return
    ranks, megabytes = (int(word) for word in [*sys.argv[1:], *("8", "250")[len(sys.argv) - 1 :]])
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.mkdir()
        for rank in range(ranks):
            write_trace(job / f"rank_{rank}.json", rank, megabytes * 1_000_000)
        one = measure(job / "rank_0.json", 1, {cores[0]})
        alone = measure(job / "rank_0.json", len(cores), set(cores))
        every = measure(job, len(cores), set(cores))
    for name, (wall, cpu, mib), n in (
        ("one trace, one core", one, 1),
        (f"one trace, {len(cores)} cores", alone, 1),
        (f"{ranks} traces, {len(cores)} cores", every, ranks),
    ):
        ratios = f"wall {wall / (n * one[0]):5.2f}x, CPU {cpu / (n * one[1]):5.2f}x"
        print(f"{name:22} {wall:7.2f} s wall, {cpu:7.2f} s CPU, peak {mib:6.0f} MiB, {ratios}", flush=True)


if __name__ == "__main__":
    main()
