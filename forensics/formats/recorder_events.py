"""What happened while a recorder watched: `forensics.events/1`, JSON lines, a header first.

    {"ts_ns": 1795981131412410118, "step": 12, "event": "nonfinite", "what": "loss", "recorded": "replayed"}

| event | other keys |
|---|---|
| `nonfinite` | `what`: loss or gradient; `recorded`: replayed, live or no (then `why`) |
| `stall` | `seconds` since the last step began |
| `log` | `global_step`, `logs`: metrics as the Hugging Face Trainer logs them; by default it hides NaN losses |
| `halted` | `why`: the recorder ended the run itself, as it was asked to |
| `recorder_fault` | `where`, `what`: something in the recorder went wrong; what it should have recorded is missing |
| `train_begin` | `first_step`, `max_steps` |
| `optimizer_began` | `first_step`, `optimizer`, `n_states` (parameters that had any state before that step), |
| | `keeps_state` (whether any has some one step later), `steps_before` (as it counts), `learning_rate`, `loss_scale`; |
| | `n_parameters`, `n_decayed` (by weight decay), of these `n_decayed_vectors` and the name of the first, |
| | `decayed_vector`; `weight_decay` (largest of all groups), `decoupled` (false: it is added to gradients) |
"""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.formats._bad_fields import BadFields
from forensics.formats._metric_rows import MetricRows
from forensics.formats._recorder_lines import check_version, describe_process, json_objects, sure_of_format
from forensics.formats._text_lines import BadLines, clean_text

VERSION = 3
TITLE = "Events of a recorder (forensics.events)"
PROVIDES = ("log_event", "sample")

FORMAT = "forensics.events/1"
_MAX_EVENTS = 100_000
_MAX_TEXT = 2000
# Event: class, role and level of its row.
_KINDS = {
    "nonfinite": ("numerics.nan", "evidence", "error"),
    "stall": ("process.stalled", "symptom", "error"),
    "halted": ("process.stopping", "evidence", "warning"),
    "train_begin": ("process.info", "evidence", "info"),
    "optimizer_began": ("ckpt.state", "evidence", "info"),
}

_TEXTS, _NUMBERS = {"what", "recorded", "why", "where"}, {"seconds", "first_step", "max_steps"}


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.events")


def load(source: Source, sink: Sink) -> None:
    bad = BadLines(sink, "bad-json", "the event of that line")
    lines = json_objects(source, bad)
    _, header = next(lines, (0, {}))
    check_version(source, header, FORMAT)
    odd = BadFields()
    describe_process(sink, header, odd)
    metrics = MetricRows(sink, odd)
    rows: list[dict[str, Any]] = []
    n_read = 0
    for number, line in lines:
        n_read += 1
        odd.line = number
        kind = line.get("event")
        if kind == "log" and isinstance(line.get("logs"), dict):
            at = {"step": odd.whole(line, "global_step"), "ts_ns": odd.whole(line, "ts_ns")}
            metrics.add({**line["logs"], **at}, number)
        elif kind == "log":
            odd.count("logs", line.get("logs", "none"))
        elif kind == "recorder_fault":
            what = f"{line.get('where')}: {line.get('what')}"
            sink.warn("recorder-fault", what, "what this recorder should have recorded", line=number)
        elif not isinstance(kind, str) or kind not in _KINDS:
            odd.count("event", kind if kind is not None else "none")
        elif len(rows) < _MAX_EVENTS:
            rows.append(_row(line, kind, number, len(rows), odd))
        else:
            odd.count("event (too many)", kind)
    bad.close()
    complete = not odd.tell(sink) and bad.count == 0 and source.damage is None
    metrics.finish(n_read, complete=complete)
    times = [row["ts_ns"] for row in rows if row["ts_ns"] is not None]
    if rows:
        sink.emit("log_event", pa.Table.from_pylist(rows))
        low, high = min(times, default=None), max(times, default=None)
        sink.cover("log_event", complete=complete, n_read=n_read, n_kept=len(rows), from_ns=low, to_ns=high)
    if times:
        sink.clock("epoch")


def _row(line: dict[str, Any], kind: str, number: int, ordinal: int, odd: BadFields) -> dict[str, Any]:
    cls, role, level = _KINDS[kind]
    facts = {key: value for key, value in line.items() if key not in {"ts_ns", "step", "event"}}
    for key in _TEXTS & facts.keys():
        odd.text(facts, key)
    for key in _NUMBERS & facts.keys():
        odd.number(facts, key)
    said = ", ".join(f"{key} {value}" for key, value in facts.items())
    return {
        "row": ordinal,
        "ts_ns": odd.whole(line, "ts_ns"),
        "step": odd.whole(line, "step"),
        "line": number,
        "source": "recorder",
        "level": level,
        "signature": f"recorder-{kind.replace('_', '-')}",
        "class": cls,
        "role": role,
        "message": clean_text(f"{kind.replace('_', ' ')}: {said}")[:_MAX_TEXT],
        "fields": orjson.dumps({k: v for k, v in facts.items() if isinstance(v, str | int | float)}).decode(),
    }
