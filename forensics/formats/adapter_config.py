"""adapter_config.json of PEFT: rank, alpha, target modules and base model of an adapter."""

from __future__ import annotations

import re
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._checkpoint_layout import Layout
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._lenient_json import JsonError, parse_json
from forensics.formats._text_lines import clean_text, decode_text, read_text

VERSION = 1
TITLE = "Configuration of a PEFT adapter (adapter_config.json)"
PROVIDES = ("checkpoint", "fact")

_MAX_BYTES = 16 << 20


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff \t\r\n")
    return 92 if text.startswith("{") and re.search(r'"peft_type"\s{0,20}:', text) else 0


def load(source: Source, sink: Sink) -> None:
    text, _ = read_text(source, _MAX_BYTES)
    try:
        found = parse_json(text)
    except JsonError as error:
        raise ArtifactError(f"{source.name}: {error}; expected one JSON object", byte=error.position) from error
    if not isinstance(found, dict):
        raise ArtifactError(f"{source.name}: no JSON object; expected the settings of an adapter", byte=0)
    layout = Layout("adapter-config")
    layout.settings = {clean_text(str(key))[:200]: _bounded(value) for key, value in list(found.items())[:300]}
    emit_checkpoint(layout, source, sink)
    for key, value in layout.settings.items():
        if isinstance(value, str | int | float):
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
            sink.fact(f"peft.{key}", str(value)[:1000], scope="option", line=1, number=number)
    sink.cover("fact", job=True, n_read=len(layout.settings), n_kept=len(layout.settings))


def _bounded(value: Any) -> Any:
    if isinstance(value, list):
        return [str(part)[:300] for part in value[:2000]]
    if isinstance(value, dict):
        return {str(key)[:300]: part for key, part in list(value.items())[:2000] if isinstance(part, int | float | str)}
    return value[:2000] if isinstance(value, str) else value
