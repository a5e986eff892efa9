"""State of a Hugging Face Trainer: `trainer_state.json` of an output folder or checkpoint.

Two traps in its numbers: by default (`logging_nan_inf_filter`) a loss that is not finite is replaced by the running
average, so that only `grad_norm` shows it; and `loss` is an average over `logging_steps`, so the first bad step may lie
that many steps before its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import JsonWalk, Path, as_float, flatten
from forensics.formats._quantities import parse_number
from forensics.formats._samples import SampleRows, canonical_metric
from forensics.formats._text_lines import LineCounter, decode_text, read_text
from forensics.redact import masked_value

VERSION = 2
TITLE = "Hugging Face Trainer state (trainer_state.json)"
PROVIDES = ("sample", "fact")

_HISTORY = "log_history"
_OWN_KEYS = {
    "log_history",
    "global_step",
    "is_world_process_zero",
    "is_local_process_zero",
    "is_hyper_param_search",
} | {
    "best_model_checkpoint",
    "best_metric",
    "best_global_step",
    "num_train_epochs",
    "max_steps",
    "total_flos",
    "trial_params",
}
_MAX_BYTES = 512 << 20  # a row of history is about 150 bytes
_MAX_FACTS = 500


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff \t\r\n")
    if not text.startswith("{"):
        return 0
    keys = {leaf.path[0] for leaf in JsonWalk(text, _is_one_value).leaves() if leaf.path}
    if f'"{_HISTORY}":' in text:  # a history without a complete row gives no leaf
        keys.add(_HISTORY)
    known = len(keys & _OWN_KEYS)
    if _HISTORY in keys and known >= 2:
        return 95
    return 75 if known >= 3 else 0


def _is_one_value(path: Path, first: str) -> bool:
    return bool(path) and path != (_HISTORY,)


def load(source: Source, sink: Sink) -> None:
    text, more = read_text(source, _MAX_BYTES)
    walk = JsonWalk(text, _is_one_value)
    lines = LineCounter(text)
    samples = SampleRows(sink, "metrics")
    odd = BadFields()
    n_rows = n_facts = 0
    for leaf in walk.leaves():
        line = lines.at(leaf.position)
        if leaf.path[:1] == (_HISTORY,) and len(leaf.path) == 2:
            n_rows += 1
            _add_row(samples, leaf.value, line, odd)
        elif leaf.path:
            n_facts += _add_facts(sink, str(leaf.path[0]), leaf.value, line)
    samples.flush()
    odd.tell(sink, partial=False)
    _report_damage(sink, walk, text, more)
    if not n_rows and not n_facts:
        raise ArtifactError(f"{source.name}: {walk.reason or 'no known key'}; expected the state of a Trainer", byte=0)
    complete = walk.damage is None and source.damage is None
    if samples.count:
        sink.cover("sample", complete=complete, n_read=n_rows + walk.n_lost, n_kept=n_rows)
    if n_facts:
        sink.cover("fact", job=True, complete=complete, n_read=n_facts, n_kept=n_facts)


def _report_damage(sink: Sink, walk: JsonWalk, text: str, more: bool) -> None:
    if walk.damage is None:
        return
    byte = len(text[: walk.damage].encode())
    line = text.count("\n", 0, walk.damage) + 1
    ends_early = more or not text.rstrip().endswith("}")
    lost = f"; {walk.n_lost} rows could not be read" if walk.n_lost else ""
    sink.warn(
        "truncated" if ends_early else "bad-json",
        f"no JSON from line {line} on ({walk.reason}){' after the largest size read' if more else ''}{lost}",
        "rows of log_history and settings in the damaged part",
        byte=byte,
        line=line,
    )
    sink.damaged("partial", byte=byte)


def _add_row(samples: SampleRows, row: Any, line: int, odd: BadFields) -> None:
    if not isinstance(row, Mapping):
        return
    odd.line = line
    step = odd.whole(row, "step")
    for name, value in flatten(dict(row), "/"):
        if name == "step" and step is not None:
            continue
        number = parse_number(value) if isinstance(value, str) else as_float(value)
        unit = None
        if isinstance(value, bool):
            number, unit = float(value), "bool"
        if number is not None:
            # train_loss is the mean over the whole run, in its last row
            metric = name if name == "train_loss" else canonical_metric(name)
            samples.add(metric, number, step=step, line=line, unit=unit)


def _add_facts(sink: Sink, key: str, value: Any, line: int) -> int:
    """Facts of one top-level key; `stateful_callbacks` and `trial_params` give dotted keys."""
    if key == "is_world_process_zero" and value is True:
        sink.proc(0, rank=0, rank_origin="content")
    told = 0
    for name, item in flatten(value, ".", prefix=key):
        if told >= _MAX_FACTS or isinstance(item, list | dict):
            continue
        text = (
            {None: "null", True: "true", False: "false"}.get(item)
            if item is None or isinstance(item, bool)
            else str(item)
        )
        number = as_float(item)
        sink.fact(name, masked_value(name, str(text))[:2000], scope="option", line=line, number=number)
        told += 1
    return told
