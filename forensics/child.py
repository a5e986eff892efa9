"""The processes that load artifacts: a server that has imported all formats, and workers forked from it.

Nothing a worker meets reaches the analysis: a crash, a loop without end or unbounded memory end that worker alone. The
server is started by `exec`, so nothing is ever forked from a process with threads of DuckDB or of a caller; it has no
threads itself and reads no artifact. On Linux server and workers are killed with the process above them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

import forensics.formats
from forensics.artifact import Source
from forensics.formats import formats
from forensics.imports import leave_out_pandas
from forensics.loading import Stopped, load_artifact
from forensics.memory import bound_growth
from forensics.parquet_sink import ParquetSink

_PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY = "exceeded its memory limit"
_AMPLE_BYTES = 1 << 30
_MAX_REQUEST = 1 << 16


def serve(control: int, parent: int, folders: Sequence[str]) -> None:
    """Forks workers until the other end closes `control`. `folders`: where formats are looked for.

    Requests are lines of JSON: `{"memory_bytes": N}` with the worker's socket attached is answered by its pid,
    `{"pid": N}` by the wait status of that worker, once it has ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent(parent)
    forensics.formats.__path__[:] = folders
    leave_out_pandas()
    formats()
    channel, server = socket.socket(fileno=control), os.getpid()
    while True:
        request, descriptors, _, _ = socket.recv_fds(channel, _MAX_REQUEST, 1)
        if not request:
            return
        asked, answer = json.loads(request), 0
        if "pid" in asked:
            with contextlib.suppress(ChildProcessError):
                answer = os.waitpid(asked["pid"], 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                channel.close()
                _be_worker(descriptors[0], server, asked["memory_bytes"])
            os.close(descriptors[0])
        channel.sendall(b"%d\n" % answer)


def die_with_parent(parent: int) -> None:
    """Ends this process when its parent ends, also by SIGKILL. Elsewhere than on Linux it ends when its input does."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os._exit(1)


def _be_worker(descriptor: int, server: int, memory_bytes: int) -> None:
    code = 1
    try:
        die_with_parent(server)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if memory_bytes < _AMPLE_BYTES:  # a thread's stack counts
            pa.set_cpu_count(1)
            pa.set_io_thread_count(1)
        bound_growth(memory_bytes)
        with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as stream:
            for line in stream:
                answer = _load(json.loads(line))
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
        code = 0
    finally:
        os._exit(code)  # never back into the server's loop


def _load(task: Mapping[str, Any]) -> str:
    """What is to be said of the load beside its `meta.json`: nothing, or why there is none."""
    sink = ParquetSink(Path(task["folder"]))
    sink.keep_journal()
    signal.signal(signal.SIGTERM, lambda *_: sink.stop(Stopped()))
    try:
        load_artifact(task["format"], formats()[task["format"]], source_of(task["source"]), sink)
    except Stopped:
        return "was stopped"
    except MemoryError:
        return OUT_OF_MEMORY
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return ""


def describe(source: Source, *, alone: bool = False) -> dict[str, Any]:
    """A source as JSON can hold it; `source_of` makes it one again.

    Companions come without theirs: the files of a folder may be each other's.
    """
    companions = {} if alone else source.companions
    return {
        "path": str(source.path),
        "name": source.name,
        "sha256": source.sha256,
        "threads": source.threads,
        "companions": {name: describe(other, alone=True) for name, other in companions.items()},
    }


def source_of(described: Mapping[str, Any]) -> Source:
    companions = {name: source_of(other) for name, other in described["companions"].items()}
    return Source(**{**described, "path": Path(described["path"]), "companions": companions})


def read_answer(stream: BinaryIO) -> str | None:
    """What a worker answers to a task; None when it has ended."""
    try:
        line = stream.readline()
        return str(json.loads(line)) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None
