"""Builds small profiler traces for tests, laid out as the profiler lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import MemorySink, load

from forensics.artifact import Head
from forensics.formats import kineto

BASE_NS = 1_775_078_550_000_000_000


def op(name: str, ts: float | str, dur: float | str = 5, *, cat: str = "cpu_op", tid: Any = 7, **args: Any) -> str:
    """One event, written as the profiler writes it."""
    return (
        f'  {{\n    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": 41, "tid": {json.dumps(tid)},\n'
        f'    "ts": {ts}, "dur": {dur},\n    "args": {{\n      '
        + ", ".join(f'"{key.replace("_", " ")}": {json.dumps(value)}' for key, value in args.items())
        + "\n    }\n  }"
    )


def trace(events: list[str], *, head: str = "", tail: str = "", base: bool = True) -> bytes:
    """A whole trace of the newest layout."""
    return (
        '\n{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {\n      "id": 0, "name": "NVIDIA H100",\n'
        '      "totalGlobalMem": 85018279936\n    }\n  ],\n'
        + head
        + (f'  "baseTimeNanoseconds": {BASE_NS},\n' if base else "")
        + '  "traceEvents": [\n'
        + ",\n".join(events)
        + '\n  ],\n  "traceName": "/tmp/t.json"'
        + tail
        + "\n}\n"
    ).encode()


def many(count: int) -> list[str]:
    return [
        op(f"aten::op{n}", f"{1000 + 10 * n}.125", "7.250", External_id=n, Input_Dims=[[n, 2], []])
        for n in range(count)
    ]


@pytest.fixture(name="read")
def reader(tmp_path: Path) -> Any:
    def read(data: bytes, name: str = "trace.json") -> MemorySink:
        path = tmp_path / name
        path.write_bytes(data)
        return load(kineto, path)

    return read


def covered(sink: MemorySink, capability: str = "slice") -> dict[str, Any]:
    return next(c for c in sink.coverage if c["capability"] == capability)


def names(sink: MemorySink) -> list[str]:
    return [row["name"] for row in sink.rows("slice")]


def head_of(data: bytes) -> Head:
    return Head("x.json", data, whole=True)
