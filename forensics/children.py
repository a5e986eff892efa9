"""Loads artifacts in child processes, several at a time, each within bounds of memory and time.

See `forensics.child` for what runs there. A worker loads one artifact after the other until one of them ends it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import orjson

import forensics.formats
from forensics.artifact import Source
from forensics.child import OUT_OF_MEMORY, describe, place, read_answer
from forensics.deadline import Deadline
from forensics.errors import ForensicsError
from forensics.forking import ForkServer
from forensics.parquet_sink import add_warning, recover

LOAD_SECONDS = 300.0  # for any artifact, and
LOAD_BYTES_PER_SECOND = 100_000  # more for large ones: a tenth of the slowest format's speed
_GRACE_SECONDS = 3.0  # from the request to stop until the worker is killed
_LARGE_BYTES = 32 << 20  # a worker ends after an artifact of this size and gives its memory back
_SMALL_BYTES = 2 << 20  # no second worker is worth its start for less
_SLOW_SECONDS = 1.0
_LEAST_MEMORY_BYTES = 256 << 20  # of a worker; 100 MiB of it are libraries
_HIDES = "the rest of this file"


@dataclass(frozen=True)
class _Server:
    """What workers are forked from. It never sees an artifact, so the next analysis of this process may have it too."""

    forks: ForkServer
    surroundings: Sequence[Any] | None  # None: for any


_ready: list[_Server] = []  # started beforehand, or left by an analysis; list operations are safe between threads


def start_server(*, here: bool = False) -> None:
    """Starts the server of the next Children beforehand; `here`: forked from this process, which has no thread yet."""
    _keep(_Server(_started(here), None))


def _started(here: bool = False) -> ForkServer:
    return ForkServer("forensics.child", list(forensics.formats.__path__), here=here)


def _surroundings() -> Sequence[Any]:
    """What workers have from their server, and the thread of this process that it ends with."""
    limits = [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")]
    return (threading.get_native_id(), list(forensics.formats.__path__), list(sys.path), limits)


def _taken() -> _Server:
    """The server that is kept, where a new one would be the same; else a new one."""
    with contextlib.suppress(IndexError):
        kept = _ready.pop()
        if kept.surroundings in (None, _surroundings()):
            return kept
        kept.forks.close()
    return _Server(_started(), _surroundings())


def _keep(server: _Server) -> None:
    close_server()
    _ready.append(server)


def close_server() -> None:
    """Ends the server that is kept for the next analysis."""
    with contextlib.suppress(IndexError):
        while True:
            _ready.pop().forks.close()


def _forget() -> None:
    while _ready:
        _ready.pop().forks.forget()


atexit.register(close_server)
os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True)
class Task:
    """One artifact to load with one format into a new folder."""

    key: int
    format: str
    source: Source
    folder: Path
    n_bytes: int

    def seconds(self) -> float:
        return LOAD_SECONDS + self.n_bytes / LOAD_BYTES_PER_SECOND


@dataclass
class _Worker:
    pid: int
    channel: socket.socket
    stream: BinaryIO
    task: Task | None = None
    began: float = 0.0
    stop_at: float = 0.0
    kill_at: float | None = None  # asked to stop; killed at this time
    late: tuple[str, str] = ("", "")  # why it was asked: code and message


class Children:
    """A server and its workers; use it as a context manager. The server starts at once and imports in the background.

    `memory_bytes`: what all workers together may use, but a worker never less than it needs to read anything; what
    its share is too little for is loaded again alone. `work`: a folder for their temporary files.
    """

    def __init__(self, threads: int, memory_bytes: int, work: Path | None = None) -> None:
        self._threads, self._memory_bytes, self._work = threads, memory_bytes, work
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()
        try:
            self._kept = _taken()
        except OSError as error:
            raise ForensicsError(f"{sys.executable}: no process can be started to load artifacts ({error})") from error
        self._server = self._kept.forks

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all workers, whatever they are doing. The server is kept where none was doing anything."""
        if any(worker.task for worker in self._workers):
            for worker in self._workers:
                _signal(worker.pid, signal.SIGKILL)
                worker.stream.close()
                worker.channel.close()
            self._workers.clear()
            self._server.close()
        else:
            for worker in list(self._workers):
                self._end(worker)
            _keep(self._kept)
        self._selector.close()

    def run(self, tasks: Sequence[Task], deadline: Deadline) -> Iterator[tuple[Task, dict[str, Any] | None]]:
        """Each task with the meta data of its load as soon as it has ended; None: the deadline came before its turn."""
        # Large ones first: the last to end is then a small one.
        waiting = sorted(tasks, key=lambda task: (-task.n_bytes, task.key))
        total = sum(task.n_bytes for task in tasks)
        again: list[Task] = []
        n_workers = max(1, min(self._threads, len(tasks), self._memory_bytes // _LEAST_MEMORY_BYTES))
        memory_bytes = max(self._memory_bytes // n_workers, _LEAST_MEMORY_BYTES)
        while waiting or any(worker.task for worker in self._workers):
            if deadline.expired() and waiting:
                yield from ((task, None) for task in waiting)
                waiting = []
            idle = [worker for worker in self._workers if worker.task is None]
            # One worker is enough for little, unless something keeps it.
            some = n_workers if total > _SMALL_BYTES or self._any_slow() else 1
            while waiting and len(self._workers) - len(idle) < some:
                worker = idle.pop() if idle else self._fork(memory_bytes)
                self._give(worker, waiting.pop(0), waiting, n_workers)
            for task, meta in self._wait(deadline):
                if n_workers > 1 and meta.get("short") and not deadline.expired():
                    again.append(task)
                    continue
                if meta.get("short"):
                    meta["warnings"][-1]["message"] += f" of {memory_bytes >> 20} MiB, loaded alone"
                yield task, meta
        if again:
            yield from self._run_alone(again, deadline)

    def _run_alone(self, tasks: Sequence[Task], deadline: Deadline) -> Iterator[tuple[Task, dict[str, Any] | None]]:
        """What a share of the memory was too little for, one after the other, each with all of it."""
        for worker in list(self._workers):  # idle; what they hold is part of it
            self._end(worker)
        for task in tasks:
            shutil.rmtree(task.folder, ignore_errors=True)
        threads, self._threads = self._threads, 1
        try:
            for task in tasks:
                yield from self.run([task], deadline)
                for worker in list(self._workers):
                    self._end(worker)
        finally:
            self._threads = threads

    def _any_slow(self) -> bool:
        return any(w.task and time.monotonic() - w.began > _SLOW_SECONDS for w in self._workers)

    def _fork(self, memory_bytes: int) -> _Worker:
        ours, theirs = socket.socketpair()
        pid = self._server.fork({}, [theirs.fileno()])
        theirs.close()
        if pid is None:
            raise ForensicsError("no process can be started to load artifacts; the system may have run out of memory")
        worker = _Worker(pid, ours, ours.makefile("rb"))
        work = str(self._work) if self._work else ""
        self._send(worker, {"memory_bytes": memory_bytes, "work": work, **place()})
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _give(self, worker: _Worker, task: Task, waiting: Sequence[Task], n_workers: int) -> None:
        # Threads are shared with those that take a part of the time that counts.
        running = [other.task for other in self._workers if other.task]
        n_others = sum(other.n_bytes * 10 >= task.n_bytes for other in [*waiting[:n_workers], *running])
        task.source.threads = max(1, self._threads // min(n_workers, 1 + n_others))
        worker.task = task
        worker.began = time.monotonic()
        worker.stop_at = worker.began + task.seconds()
        task.folder.mkdir()
        self._send(worker, {"format": task.format, "source": describe(task.source), "folder": str(task.folder)})

    def _send(self, worker: _Worker, said: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # a worker that has died is met when its answer is read
            worker.channel.sendall(json.dumps(said).encode() + b"\n")

    def _wait(self, deadline: Deadline) -> Iterator[tuple[Task, dict[str, Any]]]:
        now = time.monotonic()
        left = deadline.left()
        for worker in self._workers:
            if worker.task is None:
                continue
            if worker.kill_at is None and (left == 0 or now >= worker.stop_at):
                worker.late = (
                    ("time-limit", "stopped: the time limit was reached")
                    if left == 0
                    else ("loader-fault", f"{worker.task.format} exceeded its time of {worker.task.seconds():.0f} s")
                )
                worker.kill_at = now + _GRACE_SECONDS
                _signal(worker.pid, signal.SIGTERM)
            elif worker.kill_at is not None and now >= worker.kill_at:
                _signal(worker.pid, signal.SIGKILL)
        times = [w.kill_at or w.stop_at for w in self._workers if w.task] + ([] if left is None else [now + left])
        for key, _ in self._selector.select(min(_SLOW_SECONDS, max(0.01, min(times, default=now) - now))):
            worker = key.data
            task = worker.task
            meta = self._answered(worker)
            if task is not None:
                yield task, meta

    def _answered(self, worker: _Worker) -> dict[str, Any]:
        """The meta data of the load that has ended, and the worker made idle or ended."""
        task, answer = worker.task, read_answer(worker.stream)
        worker.task = None
        late = worker.kill_at is not None
        status = None
        if answer != "" or late or task is None or task.n_bytes >= _LARGE_BYTES:
            status = self._end(worker)
        if task is None:
            return {}
        if answer == "":
            meta: dict[str, Any] = orjson.loads((task.folder / "meta.json").read_bytes())
            if late and meta.get("fault"):
                add_warning(meta, *worker.late, _HIDES)
            return meta
        sink = recover(task.folder)
        why = _words(status) if answer is None else answer
        killed = status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not late and (answer == OUT_OF_MEMORY or killed):  # killed: by the system, which had no memory left
            sink.state["short"] = True
        sink.warn(*(worker.late if late else ("loader-fault", f"{task.format} {why}")), _HIDES)
        sink.break_off()
        return sink.finish()

    def _end(self, worker: _Worker) -> int | None:
        """Kills a worker; its wait status, None when that is not known."""
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        _signal(worker.pid, signal.SIGKILL)  # changes nothing for one that has died
        worker.stream.close()
        worker.channel.close()
        return self._server.status(worker.pid)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _words(status: int | None) -> str:
    if status is None:
        return "ended without saying why"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        known = {s.value: s.name for s in signal.Signals}
        return f"was killed by signal {number} ({known.get(number, 'unknown')})"
    return f"ended its process with status {os.waitstatus_to_exitcode(status)}"
