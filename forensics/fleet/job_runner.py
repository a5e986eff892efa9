"""Runs one job of a batch in a child process and says what became of it, whatever the child does.

The same function serves the local pool and Dask workers. Bounds: the child and all its descendants are killed when
their time is over, or when together they hold more than half again their memory (each process bounds itself before).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forensics.memory import parse_size

SCRATCH = "forensics-batch-"  # folders of jobs for temporary files
_LOOK_SECONDS = 0.5
_MEMORY_SLACK = 1.5  # of the bound, over all processes of the job
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Order:
    """All that a child needs to know. `files`: (name in the job, size); `job`: columns of its row known beforehand.

    `content`, `since`: of the last analysis; it `stands` where edition and bounds are the same.
    """

    fleet: str
    key: str
    root: str
    place: str
    gathered: bool
    files: Sequence[tuple[str, int]]
    job: Mapping[str, Any]
    edition: str
    run: int
    content: str = ""
    since: int = 0
    stands: bool = False
    rules: Sequence[str] = ()
    configuration: str = ""
    keep: str = "case"
    threads: int = 1
    seconds: float | None = None
    memory_limit: str | None = None
    disk_bytes: int = 0
    modified_ns: int = 0


@dataclass(frozen=True)
class Result:
    """`status`: analyzed | unchanged | not-analyzed | interrupted (the child was stopped from outside)."""

    key: str
    status: str
    content: str = ""
    reason: str = ""
    since: int = 0
    verdict: str = ""
    sentence: str = ""
    crashed: bool = False


def run_job(order: Order) -> Result:
    """Starts the child, waits for it within its bounds, and reads its answer."""
    path = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    code = f"import sys; sys.path[:] = {path!r}\nfrom forensics.fleet.job_process import main\nmain({os.getpid()})"
    with tempfile.TemporaryFile() as answers, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(  # noqa: S603 - this package's own code
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.PIPE,
            stdout=answers,
            stderr=errors,
            start_new_session=True,
        )
        _running.add(child)
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(orjson.dumps(dataclasses.asdict(order)))
                child.stdin.close()
            why = _wait(child, order)
        finally:
            _kill(child)
            _running.discard(child)
        if why:
            return Result(order.key, "not-analyzed", reason=why)
        return _read(order, child.returncode, answers, errors)


_running: set[subprocess.Popen[bytes]] = set()


def stop_all() -> None:
    """Kills every job that this process runs; `run_job` then returns."""
    for child in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)


def _wait(child: subprocess.Popen[bytes], order: Order) -> str:
    """Why it had to be killed; empty when it ended by itself."""
    until = None if order.seconds is None else time.monotonic() + order.seconds
    memory = parse_size(order.memory_limit) if order.memory_limit else None
    while True:
        left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, max(0.0, until - time.monotonic()))
        try:
            child.wait(left)
            return ""
        except subprocess.TimeoutExpired:
            pass
        if until is not None and time.monotonic() >= until:
            return f"it took longer than {order.seconds:g} s and was killed"
        if memory and (held := held_bytes(child.pid)) > memory * _MEMORY_SLACK:
            return f"its processes held {held >> 20} MiB, more than allowed by {order.memory_limit}, and were killed"


def held_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants, less what is shared or of files; 0 where unknown."""
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        try:
            fields = Path(f"/proc/{one}/statm").read_text().split()
            total += (int(fields[1]) - int(fields[2])) * _PAGE  # resident less file-backed and shared
            waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (OSError, ValueError, IndexError):
            continue
    return total


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Ends the child and what it started: all are of its session."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _read(order: Order, code: int, answers: Any, errors: Any) -> Result:
    answers.seek(0)
    errors.seek(0)
    try:
        said = orjson.loads(answers.read())
    except orjson.JSONDecodeError:
        words = f"was ended by signal {-code} ({_name(-code)})" if code < 0 else f"ended with status {code}"
        last = errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        note = f": {last[-1][:300]}" if last else ""
        return Result(order.key, "not-analyzed", reason=f"its process {words}{note}", crashed=True)
    known = {f.name for f in dataclasses.fields(Result)}
    return Result(order.key, **{name: value for name, value in said.items() if name in known})


def _name(number: int) -> str:
    return next((s.name for s in signal.Signals if s.value == number), "unknown")
