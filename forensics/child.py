"""The processes that load artifacts: a server that has imported all formats, and workers forked from it.

Nothing a worker meets reaches the analysis: a crash, a loop without end or unbounded memory end that worker alone. On
Linux server and workers are killed with the process above them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import pyarrow as pa

import forensics.formats
from forensics.artifact import Source
from forensics.forking import ENVIRONMENT, die_with_parent, serve_forks
from forensics.formats import formats
from forensics.imports import leave_out_pandas
from forensics.loading import Stopped, load_artifact
from forensics.memory import bound_growth
from forensics.parquet_sink import ParquetSink

OUT_OF_MEMORY = "exceeded its memory limit"
_AMPLE_BYTES = 1 << 30
_IDLE_SECONDS = 60.0  # after which a process that may never analyze again keeps no memory for it


def serve(control: int, parent: int, folders: Sequence[str]) -> None:
    """A server of workers (see `forking`). `folders`: where formats are looked for.

    A worker's socket comes with its request. The first line in it says where and within what the worker works, as
    `place` and `{"memory_bytes": N, "work": FOLDER}`; each further line is a task.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    die_with_parent(parent)
    forensics.formats.__path__[:] = folders
    leave_out_pandas()
    formats()
    os.chdir("/")
    server = os.getpid()
    serve_forks(control, lambda descriptors, _: _be_worker(descriptors[0], server), idle_seconds=_IDLE_SECONDS)


def place() -> dict[str, Any]:
    """Current folder and environment, which a worker shall have as this process has them now."""
    folder = ""
    with contextlib.suppress(FileNotFoundError):  # removed
        folder = str(Path.cwd())
    return {"folder": folder, "environment": dict(os.environ)}


def _be_worker(descriptor: int, server: int) -> NoReturn:
    code = 1
    try:
        die_with_parent(server)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with socket.socket(fileno=descriptor) as channel, channel.makefile("rwb") as stream:
            _settle(json.loads(stream.readline()))
            for line in stream:
                answer = _load(json.loads(line))
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
        code = 0
    finally:
        os._exit(code)


def _settle(asked: Mapping[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["environment"] | ENVIRONMENT)
    time.tzset()
    if asked["folder"]:
        os.chdir(asked["folder"])
    if asked["work"]:
        os.environ["TMPDIR"] = asked["work"]
        tempfile.tempdir = None
    if asked["memory_bytes"] < _AMPLE_BYTES:  # a thread's stack counts
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)
    bound_growth(asked["memory_bytes"])


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
