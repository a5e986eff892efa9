"""Indices of sharded checkpoints (model.safetensors.index.json): which shard holds which tensor."""

from __future__ import annotations

import re
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._checkpoint_layout import MAX_NAME, MAX_TENSORS, Layout, StoredTensor
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._lenient_json import JsonError, as_int, parse_json
from forensics.formats._text_lines import clean_text, decode_text, read_text

VERSION = 1
TITLE = "Indices of sharded checkpoints (*.index.json)"
PROVIDES = ("checkpoint",)

_MAX_BYTES = 256 << 20
_PAIR = re.compile(r'"((?:[^"\\]|\\.){1,1000})"\s{0,20}:\s{0,20}"([^"\\]{1,300})"')


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff \t\r\n")
    return 90 if text.startswith("{") and re.search(r'"weight_map"\s{0,20}:\s{0,20}\{', text) else 0


def load(source: Source, sink: Sink) -> None:
    layout = Layout("index")
    text, more = read_text(source, _MAX_BYTES)
    weights: dict[str, Any]
    try:
        found = parse_json(text) if not more else None
        weights = found.get("weight_map") if isinstance(found, dict) else None  # type: ignore[assignment]
        metadata = found.get("metadata") if isinstance(found, dict) else None
    except JsonError as error:
        layout.add(
            "truncated", f"the index is no JSON any more ({error})", "the tensors behind that place", error.position
        )
        start = text.find('"weight_map"')
        weights, metadata = {m[1]: m[2] for m in _PAIR.finditer(text, max(start, 0))}, None
    if not isinstance(weights, dict):
        raise ArtifactError(
            f"{source.name}: no object `weight_map`; expected one that names a shard for each tensor", byte=0
        )
    if isinstance(metadata, dict):
        layout.settings = {
            clean_text(str(k))[:200]: v for k, v in list(metadata.items())[:100] if not isinstance(v, dict | list)
        }
        layout.settings["total_size"] = as_int(metadata.get("total_size"), 0)
    for name, shard in list(weights.items())[:MAX_TENSORS]:
        if isinstance(shard, str):
            tensor = StoredTensor(clean_text(name)[:MAX_NAME], "", (), None, 0, file=clean_text(shard)[:300])
            layout.tensors.append(tensor)
    layout.n_said = len(weights)
    emit_checkpoint(layout, source, sink)
