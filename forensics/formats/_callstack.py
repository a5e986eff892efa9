"""One failure as a launcher's or recorder's error file tells it: message and traceback in, rows of `log_event` out."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._log_catalogue import catalogue

_MAX_FRAMES = 2000
_MAX_MESSAGE = 100_000
_FRAME = re.compile(r'[\s|]*File "([^"]{1,1000})", line ([0-9]{1,9})(?:, in (.{1,500}))?')
_EXCEPTION = re.compile(r"[\s|]{0,40}([A-Za-z_]\w{0,100}(?:\.\w{1,100}){0,20})(?::|$)")
_EXCEPTION_ENDS = ("Error", "Exception", "Exit", "Interrupt", "Warning", "Timeout", "Group", "Iteration")


def emit_failure(
    sink: Sink,
    message: str,
    callstack: str,
    *,
    fallback: tuple[str, str],
    source: str,
    ts_ns: int | None,
    line: int,
    byte: int,
    fields: dict[str, Any],
) -> None:
    """Emits a row for each thing that the message is known to mean; `fallback`: signature and class for none."""
    frames, raised = _read_traceback(callstack)
    stacks = Stacks()
    stack = stacks.add(frames)
    said = (message or callstack)[:_MAX_MESSAGE]
    exception = _exception_of(message) or raised
    # What the message says is what a log with the same message would say.
    named = [(m.name, m.cls, m.role, {**m.fields, **fields}) for m in catalogue().match(said) if m.role != "noise"]
    events = named or [(*fallback, "primary", fields)]
    rows = [
        {
            "row": number,
            "ts_ns": ts_ns,
            "line": line,
            "byte": byte,
            "source": source,
            "level": "error",
            "signature": name,
            "class": kind,
            "role": role,
            "exception": exception,
            "message": said.removeprefix(f"{exception}: "),
            "stack_id": stack,
            "fields": orjson.dumps(more).decode(),
        }
        for number, (name, kind, role, more) in enumerate(events)
    ]
    if stack is not None:
        sink.emit("stack", stacks.table())
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["stack_id"] = pa.array(columns["stack_id"], pa.uint64())
    sink.emit("log_event", pa.table(columns))


def _read_traceback(callstack: str) -> tuple[list[Frame], str | None]:
    """Frames (outermost first) and exception type of the last traceback in a text: the one that was not survived."""
    frames: list[Frame] = []
    raised = None
    for line in callstack.split("\n"):
        if "Traceback (most recent call last)" in line:
            frames, raised = [], None
            continue
        match = _FRAME.match(line)
        if match:
            if len(frames) < _MAX_FRAMES:
                frames.append(Frame((match[3] or "<module>").strip(), match[1], min(int(match[2]), 2**31 - 1)))
        elif frames and raised is None and not line.startswith("    "):
            raised = _exception_of(line)
    return frames, raised


def _exception_of(message: str) -> str | None:
    match = _EXCEPTION.match(message.split("\n", 1)[0][:3000])
    return match[1] if match and match[1].endswith(_EXCEPTION_ENDS) else None
