"""Measures speed and memory of loading logs, against reading the same lines in Python.

    python benchmarks/logs.py [MEGABYTES] [--kind NAME]... [--files N]

Writes each kind of log to a temporary folder, the same bytes at every run, and loads it in a fresh process. Speed is
MB/s of CPU time, so per core, without the start of Python, imports and the catalogue; `of yard` is its ratio to the
yardstick of the same file and run, `for line in open(f, "rb")` with one regular expression searched in each line.
`ingest` adds recognition, hashing and the Parquet cache.
`--files N`: also N ranks of 1 MB each through the whole analysis.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_TRACEBACK = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/job/train.py", line {line}, in main
[rank{rank}]:     batch = next(batches)
[rank{rank}]:   File "/opt/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 708, in __next__
[rank{rank}]:     data = self._next_data()
[rank{rank}]: OSError: [Errno 5] Input/output error: '/data/shard-{line:05d}.tar'
"""
_INFO = (
    "{t} [rank{r}] INFO data.loader: opened shard /data/train/shard-{n:05d}.tar with {a} samples, {b} cached",
    "{t} [rank{r}] INFO train.memory: allocated {x:.2f} GiB reserved {y:.2f} GiB peak {y:.2f} GiB",
    "{t} [rank{r}] DEBUG net.pool: worker {a} returned buffer 0x{n:012x} after {b} ms",
    "{t} [rank{r}] INFO train.eval: evaluation of batch {a} took {x:.3f} s, cache hit ratio {y:.2f}",
    "{t} [rank{r}] INFO checkpoint: wrote model-{n:08d}.pt ({a} MB) in {x:.1f} s",
)


def _stamp(number: int) -> str:
    seconds, millis = divmod(number * 37, 1000)
    return f"2026-03-{1 + seconds // 86400 % 28:02d} {seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:" + (
        f"{seconds % 60:02d},{millis:03d}"
    )


def training(rank: int = 0) -> Iterator[str]:
    """One rank: 70 % step lines, 25 % other messages, progress bars, a traceback that it survives now and then."""
    draw = random.Random(rank)
    step = 0
    for number in range(1 << 62):
        dice = draw.random()
        if dice < 0.70:
            step += 1
            speed = draw.randrange(9000, 99999)
            yield (
                f"{_stamp(number)} [rank{rank}] INFO train: step {step} loss {2 + draw.random():.4f} "
                f"lr {3e-4 * draw.random():.3e} grad_norm {draw.random() * 2:.4f} tokens/s {speed}\n"
            )
        elif dice < 0.95:
            line = draw.choice(_INFO)
            yield line.format(
                t=_stamp(number), r=rank, n=draw.randrange(1 << 24), a=draw.randrange(512), b=draw.randrange(9999),
                x=draw.random() * 40, y=draw.random() * 80,
            ) + "\n"  # fmt: skip
        elif dice < 0.99998:
            done = number % 100
            yield f"\rEpoch 3: {done:3d}%|{'#' * (done // 5):20s}| {done}/100 [00:{done % 60:02d}<01:00, 11.{done}it/s]"
            if done > 95:
                yield "\n"
        else:
            yield "\n" + _TRACEBACK.format(rank=rank, line=draw.randrange(1000))


def metrics(rank: int = 0) -> Iterator[str]:
    draw = random.Random(rank)
    for step in range(1 << 62):
        yield f"step {step} loss {draw.random() * 5:.6f} lr {3e-4 * draw.random():.3e} grad_norm {draw.random():.4f}\n"


def dicts(rank: int = 0) -> Iterator[str]:
    """Records of a trainer whose floats are printed in full."""
    draw = random.Random(rank)
    for step in range(1 << 62):
        yield (
            str(
                {
                    "loss": round(draw.random() * 5, 4),
                    "grad_norm": draw.random() * 3,
                    "learning_rate": 5e-05 * draw.random(),
                    "epoch": round(step / 9000, 2),
                }
            )
            + "\n"
        )


def stamped(rank: int = 0) -> Iterator[str]:
    """Every other line counts, for eight ranks in one file."""
    draw = random.Random(rank)
    for number in range(1 << 62):
        who = draw.randrange(8)
        if number % 2:
            yield f"[rank{who}]: {_stamp(number)} INFO iter {number}: loss {draw.random():.4f}, time {who + 9.5}ms\n"
        else:
            yield (
                _INFO[number // 2 % 5].format(t=_stamp(number), r=who, n=number, a=who, b=number % 7919, x=1.5, y=2.5)
                + "\n"
            )


def errors(rank: int = 0) -> Iterator[str]:
    """Half of the lines are errors; most repeat, as those of a job that goes on retrying."""
    draw = random.Random(rank)
    texts = (
        "ERROR loader: failed to read /data/shard-{n}.tar: timeout after {a} s",
        "WARNING nccl: NCCL WARN Call to connect to 10.0.0.{a}<{n}> failed : Connection refused",
        "ERROR train: CUDA out of memory. Tried to allocate {a}.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "RuntimeError: worker {n} exited unexpectedly with exit code {a}",
        "NVRM: Xid (PCI:0000:3b:00): 13, pid={n}, name=python, Graphics Exception on (GPC 0)",
    )
    for number in range(1 << 62):
        if number % 2:
            yield f"{_stamp(number)} INFO loader: shard {number} done in {draw.random():.2f} s by worker {number % 8}\n"
        elif number % 40 == 0:
            yield _TRACEBACK.format(rank=rank, line=draw.randrange(1000))
        else:
            text = draw.choice(texts).format(n=draw.randrange(1 << 20), a=draw.randrange(60))
            yield f"{_stamp(number)} {text}\n"


def plain(rank: int = 0) -> Iterator[str]:
    draw = random.Random(rank)
    for number in range(1 << 62):
        yield draw.choice(_INFO).format(
            t=_stamp(number), r=rank, n=draw.randrange(1 << 24), a=3, b=7, x=1.5, y=2.5
        ) + "\n"  # fmt: skip


def progress(rank: int = 0) -> Iterator[str]:
    """One line, all of it drawn over with carriage returns."""
    for number in range(1 << 62):
        done = number % 1000
        bar = f"{done // 10:3d}%|{'#' * (done // 40):25s}|"
        yield f"\rtrain: {bar} {done}/1000 [00:{done % 60:02d}<01:00, loss={done / 7:.3f}]"


def one_line(rank: int = 0) -> Iterator[str]:
    while True:
        yield "0123456789abcdef, tensor([0.1234, 0.5678]), "


KINDS: dict[str, Callable[[int], Iterator[str]]] = {
    "training": training,
    "metrics": metrics,
    "dicts": dicts,
    "stamped": stamped,
    "errors": errors,
    "plain": plain,
    "progress": progress,
    "one_line": one_line,
    "utf16": training,
}


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
        return analyze(path, out).n_parsed


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
    parser.add_argument("--job", nargs=2)
    given = parser.parse_args()
    if given.job:
        _run_job(given.job[0], Path(given.job[1]))
        return
    header = (
        f"{'kind':10} {'MB':>5} {'yard MB/s':>10} {'load MB/s':>10} {'of yard':>8} {'ingest MB/s':>12} {'wall s':>7} "
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
                f"{kind:10} {mb:5.0f} {mb / yard['cpu']:10.1f} {mb / loaded['cpu']:10.1f} "
                f"{yard['cpu'] / loaded['cpu']:7.2f}x {mb / ingested['cpu']:12.1f} {loaded['wall']:7.2f} "
                f"{loaded['rss']:8.0f} {loaded['n']:9.0f}",
                flush=True,
            )
            path.unlink()
        if given.files:
            logs = Path(folder) / "job"
            logs.mkdir()
            for rank in range(given.files):
                write_log(logs / f"rank_{rank}.log", training(rank), 1_000_000)
            for job in ("stages", "analyze"):
                figures = measure(job, logs)
                print(f"{given.files} ranks x 1 MB, {job}: {figures['cpu']:.1f} s CPU, {figures['wall']:.1f} s wall, "
                      f"peak RSS {figures['rss']:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
