"""The error file of one torchelastic worker (`error.json`), which `@record` on the entry point writes.

`{"message": {"message", "extraInfo": {"py_callstack", "timestamp"}, "errorCode"}}`; older and custom writers put a
plain text under the outer `message`. Attempt and local rank are those of its path, `attempt_N/LOCAL_RANK/error.json`:
they are not taken here, since files of several workers may be equal. The timestamp is in whole seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._callstack import emit_failure
from forensics.formats._lenient_json import JsonError, JsonWalk, Path, as_int, decode_at
from forensics.formats._log_catalogue import catalogue_edition
from forensics.formats._quantities import epoch_ns
from forensics.formats._text_lines import decode_text, read_text

VERSION = 2
TITLE = "torchelastic error file (error.json)"
PROVIDES = ("log_event",)
edition = catalogue_edition

_MAX_BYTES = 16 << 20
_OPENING = re.compile(r'\s*\{\s*"(message)"\s*:')


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff")
    if not _OPENING.match(text):
        return 0
    leaves = {leaf.path for leaf in JsonWalk(text, lambda path, first: len(path) > 3).leaves()}
    if any(path[:2] == ("message", "extraInfo") for path in leaves) or '"py_callstack"' in text:
        return 90
    named = head.name.rpartition("/")[2].startswith("error") and head.name.endswith(".json")
    others = {path[0] for path in leaves if path} - {"message", "errorCode", "timestamp"}
    if others:
        return 0
    return 70 if named else 30


@dataclass
class _Error:
    message: str = ""
    callstack: str = ""
    timestamp_ns: int | None = None
    error_code: int | None = None
    position: int = 0
    unread: list[str] = field(default_factory=list)


def load(source: Source, sink: Sink) -> None:
    text, _ = read_text(source, _MAX_BYTES)
    walk = JsonWalk(text, lambda path, first: len(path) > 3)
    error = _Error()
    for leaf in walk.leaves():
        _take(error, leaf.path, leaf.value, leaf.position)
    if walk.damage is not None:
        byte = len(text[: walk.damage].encode())
        sink.warn("truncated", f"no JSON from byte {byte} on ({walk.reason})", "the end of the traceback", byte=byte)
        sink.damaged("partial", byte=byte)
        error.message = error.message or _cut_string(text, '"message"')
        error.callstack = error.callstack or _cut_string(text, '"py_callstack"')
    if not error.message and not error.callstack:
        raise ArtifactError(f"{source.name}: no message; expected the error file of a torchelastic worker", byte=0)
    emit_failure(
        sink,
        error.message,
        error.callstack,
        fallback=("torchelastic-error-file", "exception.unknown"),
        source="torchrun",
        ts_ns=error.timestamp_ns,
        line=text.count("\n", 0, error.position) + 1,
        byte=len(text[: error.position].encode()),
        fields={} if error.error_code is None else {"error_code": error.error_code},
    )
    if error.error_code is not None:
        sink.proc(0, exit_code=error.error_code)
    if error.timestamp_ns is not None:
        sink.clock("epoch", error_ns=1_000_000_000)
    at = error.timestamp_ns
    sink.cover("log_event", complete=walk.damage is None, n_read=1, n_kept=1, from_ns=at, to_ns=at)


def _take(error: _Error, path: Path, value: object, position: int) -> None:
    name = path[-1] if path else None
    if name == "message" and isinstance(value, str):
        error.message, error.position = value, position
    elif name == "py_callstack" and isinstance(value, str):
        error.callstack = value
    elif name == "timestamp" and isinstance(value, int | float | str) and not isinstance(value, bool):
        error.timestamp_ns = epoch_ns(value)
    elif name == "errorCode":
        error.error_code = as_int(value, -(2**31), 2**31 - 1)


def _cut_string(text: str, key: str) -> str:
    """What is left of a string that the end of the file cuts; empty when there is none."""
    found = text.rfind(key)
    start = text.find('"', found + len(key)) if found >= 0 else -1
    if start < 0:
        return ""
    rest = text[start:]
    for dropped in range(7):  # the longest escape, \uXXXX, may be cut before its last character
        try:
            value, _ = decode_at(rest[: len(rest) - dropped] + '"', 0)
        except JsonError:
            continue
        return value if isinstance(value, str) else ""
    return ""
