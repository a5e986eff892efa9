"""Metrics as JSON lines: one object a line, as training loops, samplers and trackers write them.

Objects nested one level are joined with `/`; names and columns as in `_metric_rows`. JSON lines that are logs, traces
or requests are left to others: what marks them is a text under `log`, `msg` or `message`, or a trace's own keys.
"""

from __future__ import annotations

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._lenient_json import JsonError, as_float, flatten, parse_json
from forensics.formats._metric_rows import STEP_COLUMNS, TIME_COLUMNS, MetricRows, is_known_metric
from forensics.formats._quantities import parse_number
from forensics.formats._samples import folded
from forensics.formats._text_lines import BadLines, decode_text, head_lines, numbered_lines

VERSION = 2
TITLE = "Metrics as JSON lines"
PROVIDES = ("sample",)

_HIDES = "the metrics of that line"
_MAX_KEYS = 512
_LOOK_AT_LINES = 200
# A text under one of these makes a record of a log.
_LOG_KEYS = {"log", "msg", "message", "event", "text", "exception", "traceback"}
# Any value under one of these makes one of a trace, an nsys export, a dump, a request, or of a format of our own.
# fmt: off
_FOREIGN_KEYS = {
    "traceEvents", "ph", "resourceSpans", "resourceMetrics", "traceId", "trace_id", "spanId", "NvtxEvent", "CudaEvent",
    "TraceProcessEvent", "pg_config", "log_history", "prompt", "messages", "choices", "role", "format",
}
# fmt: on


def recognise(head: Head) -> int:
    lines = [line for line in head_lines(decode_text(head.data), whole=head.whole)[:_LOOK_AT_LINES] if line.strip()]
    if not lines or not any(line.lstrip("\ufeff ").startswith("{") for line in lines[:5]):
        return 0
    records = [record for record in map(_record, lines) if record is not None]
    if not records or len(records) < 0.6 * len(lines) or any(_is_foreign(record) for record in records):
        return 0
    rated = [_rate(record) for record in records]
    if len(records) == 1 and rated[0] < 3:
        return 0  # one line with a step and nothing known may as well be settings
    if sum(rate >= 2 for rate in rated) >= 0.5 * len(rated):
        return 70
    return 60 if len(records) > 1 and sum(rate >= 1 for rate in rated) >= 0.8 * len(rated) else 0


def _record(line: str) -> dict[str, object] | None:
    if not line.lstrip().startswith("{"):
        return None
    try:
        value = parse_json(line)
    except JsonError:
        return None
    return value if isinstance(value, dict) else None


def _is_foreign(record: dict[str, object]) -> bool:
    return bool(_FOREIGN_KEYS.intersection(record)) or any(isinstance(record.get(key), str) for key in _LOG_KEYS)


def _rate(record: dict[str, object]) -> int:
    """0 no metrics; 1 mostly numbers; 2 also a step, time or known metric; 3 a known metric beside a step or time."""
    flat = dict(list(_flat(record))[:_MAX_KEYS])
    numeric = sum(_is_numeric(value) for value in flat.values())
    if not numeric or 2 * numeric < len(flat):
        return 0
    placed = any(folded(name) in {*STEP_COLUMNS, *TIME_COLUMNS} for name in flat)
    known = any(is_known_metric(name) for name in flat)
    return 1 + placed + known


def _is_numeric(value: object) -> bool:
    return (
        isinstance(value, bool)
        or as_float(value) is not None
        or (isinstance(value, str) and parse_number(value) is not None)
    )


def _flat(record: dict[str, object]) -> list[tuple[str, object]]:
    if not any(isinstance(value, dict) for value in record.values()):
        return list(record.items())
    return list(flatten(record, "/", max_depth=2))


def load(source: Source, sink: Sink) -> None:
    rows = MetricRows(sink)
    bad = BadLines(sink, "bad-json", _HIDES)
    n_read = 0
    for number, text, whole in numbered_lines(source):
        if not text.strip():
            continue
        n_read += 1
        record = _record(text.lstrip("\ufeff")) if whole else None
        if record is None:
            bad.add(number, f"no JSON object ({text[:80]!r}); expected one object a line")
            continue
        rows.add(dict(_flat(record)[:_MAX_KEYS]), number)
    bad.close()
    kept = rows.finish(n_read, complete=bad.count == 0 and source.damage is None)
    if not kept:
        raise ArtifactError(f"{source.name}: no line holds a metric; expected one JSON object with numbers a line")
