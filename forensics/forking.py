"""Processes forked from a server that has imported what they need, so that each starts in milliseconds.

The server is started by `exec`, or forked from a process that has no thread yet, so nothing is ever forked from a
process with threads of DuckDB or of a caller. It has no threads itself and reads nothing but requests.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_PR_SET_PDEATHSIG = 1
_MAX_REQUEST = 1 << 16
_MAX_DESCRIPTORS = 3
ENVIRONMENT = {  # of a server and all below it
    # The default pool takes a gibibyte of writable addresses at once, which counts against the bound on memory.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",  # no threads in a process that forks
}
BeChild = Callable[[Sequence[int], Mapping[str, Any]], NoReturn]


def serve_forks(control: int, be_child: BeChild, *, idle_seconds: float | None = None) -> None:
    """Forks until the other end closes `control`, or has no child and asked nothing for `idle_seconds`.

    Call it once everything is imported.

    Requests are lines of JSON. `{"pid": N}` is answered by the wait status of that child, once it has ended, or at once
    where N is 0; any other by the pid of a new child, which runs `be_child(descriptors, request)` with the descriptors
    that came with it.
    """
    gc.collect()
    gc.freeze()  # children share what is here as long as nobody writes to it
    channel = socket.socket(fileno=control)
    children: set[int] = set()
    while True:
        if not select.select([channel], [], [], None if children else idle_seconds)[0]:
            return
        request, descriptors, _, _ = socket.recv_fds(channel, _MAX_REQUEST, _MAX_DESCRIPTORS)
        if not request:
            return
        asked, answer = json.loads(request), 0
        if pid := asked.get("pid"):
            with contextlib.suppress(ChildProcessError):
                answer = os.waitpid(pid, 0)[1]
            children.discard(pid)
        elif pid is None:
            answer = os.fork()
            if answer == 0:
                _run(be_child, channel, descriptors, asked)
            children.add(answer)
            for descriptor in descriptors:
                os.close(descriptor)
        channel.sendall(b"%d\n" % answer)


def _run(be_child: BeChild, channel: socket.socket, descriptors: Sequence[int], asked: Mapping[str, Any]) -> NoReturn:
    try:
        channel.close()
        be_child(descriptors, asked)
    finally:
        os._exit(1)  # never back into the server's loop


def die_with_parent(parent: int) -> None:
    """Ends this process when its parent ends, also by SIGKILL. Elsewhere than on Linux it ends when its input does."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)


class ForkServer:
    """Starts a server and asks it for processes; safe to use from several threads.

    The server runs `MODULE.serve(control, parent, *arguments)`; arguments are written out as Python. `here`: fork it
    from this process, which then must not have any thread. A server that has died is started anew, by `exec`.
    """

    def __init__(self, module: str, *arguments: Any, here: bool = False) -> None:
        self._module, self._arguments = module, arguments
        self._asking = threading.Lock()
        self._start(here)

    def _start(self, here: bool = False) -> None:
        self._control, theirs = socket.socketpair()
        given = (theirs.fileno(), os.getpid(), *self._arguments)
        try:
            self._server = _Forked(self._module, given, self._control) if here else _executed(self._module, given)
        finally:
            theirs.close()

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int | None:
        """The pid of a new process; None where none can be started. Raises OSError where no server can be."""
        with self._asking:
            if pid := self._ask(request, descriptors):
                return pid
            self._end()
            self._start()
            return self._ask(request, descriptors)

    def wait_until_ready(self) -> None:
        """Until it has imported everything; at once where it cannot."""
        with self._asking:
            self._ask({"pid": 0})

    def status(self, pid: int) -> int | None:
        """Waits for a process to end; its wait status, None where that is not known."""
        with self._asking:
            return self._ask({"pid": pid})

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int] = ()) -> int | None:
        try:
            socket.send_fds(self._control, [json.dumps(request).encode()], list(descriptors))
            answer = self._control.recv(64)
        except OSError:
            return None
        return int(answer) if answer else None

    def close(self) -> None:
        """Ends the server, and with it the processes that end with their parent."""
        with self._asking:
            self._end()

    def forget(self) -> None:
        """In a fork of the process that it belongs to."""
        self._control.close()
        self._server.returncode = 0  # nobody waits for it here

    def _end(self) -> None:
        self._control.close()
        self._server.kill()
        self._server.wait()


def _executed(module: str, given: Sequence[Any]) -> subprocess.Popen[bytes]:
    # The parent's search path as it is, never the current folder, which may hold anything.
    path = [entry for entry in sys.path if entry and Path(entry).is_absolute()]
    code = f"import sys; sys.path[:] = {path!r}\nfrom {module} import serve\nserve(*{tuple(given)!r})"
    return subprocess.Popen(  # noqa: S603 - this package's own code
        [sys.executable, "-P", "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # what a library prints as it crashes
        pass_fds=[given[0]],
        env={**os.environ, **ENVIRONMENT},
    )


class _Forked:
    """A server that is a fork of this process: what a Popen is to one that was executed."""

    returncode: int | None = None

    def __init__(self, module: str, given: Sequence[Any], control: socket.socket) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            try:
                control.close()
                importlib.import_module(module).serve(*given)
            finally:
                os._exit(1)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
