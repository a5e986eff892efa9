"""Runs one job of a batch in a child process and says what became of it, whatever the child does.

The same function serves the local pool and Dask workers. Bounds: the child and all its descendants are killed when
their time is over, or when together they hold more than half again their memory (each process bounds itself before).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from forensics.errors import ForensicsError
from forensics.forking import ForkServer
from forensics.memory import parse_size

OTHER_EDITION = "other-edition"  # status of a job that a process of another version was given
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
    """Has the child started, waits for it within its bounds, and reads its answer.

    Raises ForensicsError for what is no job's fault: no process can be started, or what runs here is another version.
    """
    with tempfile.TemporaryFile() as orders, tempfile.TemporaryFile() as errors:
        orders.write(orjson.dumps(dataclasses.asdict(order)))
        orders.seek(0)
        server = _server(order)
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                pid = server.fork({}, [theirs.fileno(), orders.fileno(), errors.fileno()])
            if pid is None:
                raise ForensicsError("batch: no process can be started; the system may have run out of memory")
            _running.add(pid)
            try:
                answer, why = _wait(pid, ours, order)
            finally:
                _kill(pid)
                _running.discard(pid)  # before its number may become another's
                status = server.status(pid)
        if why:
            return Result(order.key, "not-analyzed", reason=why)
        return _read(order, status, answer, errors)


_running: set[int] = set()
_servers: dict[str, ForkServer] = {}
_starting = threading.Lock()


def _server(order: Order) -> ForkServer:
    """The server of this edition: a worker of a cluster may outlive the one that it began with."""
    with _starting:
        if order.edition not in _servers:
            _servers[order.edition] = ForkServer("forensics.fleet.job_process", list(order.rules), order.configuration)
        return _servers[order.edition]


def warm_up(order: Order) -> None:
    """Starts what jobs like this one are forked from, and waits until it is ready."""
    _server(order).wait_until_ready()


def stop_all() -> None:
    """Kills every job that this process runs; `run_job` then returns."""
    for pid in list(_running):
        _kill(pid)


def close_servers() -> None:
    """Ends what jobs are forked from, once none runs; the next job starts it again."""
    with _starting:
        while _servers:
            _servers.popitem()[1].close()


def _wait(pid: int, answers: socket.socket, order: Order) -> tuple[bytes, str]:
    """What it answered once it has ended, and why it has to be killed; that is empty when it ended by itself."""
    until = None if order.seconds is None else time.monotonic() + order.seconds
    memory = parse_size(order.memory_limit) if order.memory_limit else None
    answer = b""
    while True:
        left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, max(0.001, until - time.monotonic()))
        answers.settimeout(left)
        try:
            part = answers.recv(1 << 16)
            if not part:
                return answer, ""
            answer += part
        except TimeoutError:
            pass
        except OSError:  # reset: it ended with something unread
            return answer, ""
        if until is not None and time.monotonic() >= until:
            return b"", f"it took longer than {order.seconds:g} s and was killed"
        if memory and (held := held_bytes(pid)) > memory * _MEMORY_SLACK:
            why = f"its processes held {held >> 20} MiB, more than allowed by {order.memory_limit}, and were killed"
            return b"", why


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


def _kill(pid: int) -> None:
    """Ends the child and what it started: all are of its session, which it makes first of all."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _read(order: Order, status: int | None, answer: bytes, errors: Any) -> Result:
    try:
        said = orjson.loads(answer)
    except orjson.JSONDecodeError:
        errors.seek(0)
        last = errors.read()[-2000:].decode("utf-8", "replace").strip().splitlines()
        note = f": {last[-1][:300]}" if last else ""
        return Result(order.key, "not-analyzed", reason=f"its process {_words(status)}{note}", crashed=True)
    if said.get("status") == OTHER_EDITION:
        raise ForensicsError(
            f"{platform.node()}: forensics, its rules or the configuration are others here than where the batch was"
            " started; expected the same on all machines"
        )
    known = {f.name for f in dataclasses.fields(Result)}
    return Result(order.key, **{name: value for name, value in said.items() if name in known})


def _words(status: int | None) -> str:
    if status is None:
        return "ended together with what it was forked from"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by signal {-code} ({_name(-code)})" if code < 0 else f"ended with status {code}"


def _name(number: int) -> str:
    return next((s.name for s in signal.Signals if s.value == number), "unknown")
