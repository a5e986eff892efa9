"""How a recorded process ended: `forensics.end/1`, one JSON object.

`how` is completed, exception (`exception`, `message`, `traceback`), signal (`signal`, `name`, `stack`) or exit (`code`,
null when the interpreter ended without one). A recorder's folder without this file is that of a process that could not
run any code at its end.
"""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._bad_fields import BadFields
from forensics.formats._callstack import emit_failure
from forensics.formats._lenient_json import JsonError, parse_json
from forensics.formats._log_catalogue import catalogue_edition
from forensics.formats._recorder_lines import check_version, describe_process, sure_of_format
from forensics.formats._text_lines import clean_text, read_text

VERSION = 2
TITLE = "End of a recorded process (forensics.end)"
PROVIDES = ("log_event",)
edition = catalogue_edition

FORMAT = "forensics.end/1"
_MAX_BYTES = 4 << 20
_WAYS = ("completed", "exception", "signal", "exit")


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.end")


def load(source: Source, sink: Sink) -> None:
    text, more = read_text(source, _MAX_BYTES)
    try:
        end = parse_json(text) if not more else None
    except JsonError as error:
        raise ArtifactError(f"{source.name}: {error}; expected one JSON object", byte=0) from error
    if not isinstance(end, dict):
        raise ArtifactError(f"{source.name}: no JSON object of at most {_MAX_BYTES} bytes", byte=0)
    check_version(source, end, FORMAT)
    bad = BadFields()
    describe_process(sink, end, bad)
    at = bad.whole(end, "ts_ns")
    code, signal = bad.whole(end, "code", -255, 255), bad.whole(end, "signal", 1, 64)
    how = bad.text(end, "how")
    if how not in _WAYS:
        bad.count("how", how)
    sink.proc(0, end_ns=at, exit_code=code, signal=signal)
    if at is not None:
        sink.clock("epoch")
    if how == "exception":
        name, message = bad.text(end, "exception") or "an exception of no name", bad.text(end, "message") or ""
        emit_failure(
            sink,
            f"{clean_text(name)}: {clean_text(message)}",
            clean_text(bad.text(end, "traceback") or ""),
            fallback=("recorder-end", "exception.unknown"),
            source="python",
            ts_ns=at,
            line=1,
            byte=0,
            fields={},
        )
    elif how in _WAYS:
        sink.emit("log_event", pa.Table.from_pylist([_row(end, how, at, bad)]))
    is_odd = bad.tell(sink)
    if how in _WAYS:
        sink.cover("log_event", complete=not is_odd, n_read=1, n_kept=1, from_ns=at, to_ns=at)


def _row(end: dict[str, Any], how: str, at: int | None, bad: BadFields) -> dict[str, Any]:
    cls, said = {
        "completed": ("outcome.completed", f"the recorded block ended normally after step {end.get('step')}"),
        "signal": ("process.signal", f"received {bad.text(end, 'name')}"),
    }.get(how, ("process.exit", f"the interpreter ended with code {end.get('code')}"))
    kept = {key: value for key, value in end.items() if key in {"signal", "name", "code", "step"} and value is not None}
    return {
        "row": 0,
        "ts_ns": at,
        "step": bad.whole(end, "step"),
        "line": 1,
        "source": "recorder",
        "level": "info" if how == "completed" else "warning",
        "signature": f"recorder-{how}"[:60],
        "class": cls,
        "role": "evidence",
        "message": clean_text(said),
        "fields": orjson.dumps({k: v for k, v in kept.items() if isinstance(v, str | int)}).decode(),
    }
