"""`.metadata` of torch.distributed.checkpoint: which file holds which part of each tensor."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._checkpoint_layout import MAX_NAME, MAX_TENSORS, Layout, StoredTensor, shape_of
from forensics.formats._checkpoint_rows import emit_checkpoint
from forensics.formats._symbolic_pickle import Global, Opaque, walk_symbolically
from forensics.formats._text_lines import clean_text

VERSION = 1
TITLE = "Index of a distributed checkpoint (.metadata of torch.distributed.checkpoint)"
PROVIDES = ("checkpoint",)

_MARK = b"torch.distributed.checkpoint.metadata"
_MAX_BYTES = 512 << 20


def recognise(head: Head) -> int:
    return 90 if head.data.startswith(b"\x80") and _MARK in head.data[:200] else 0


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        data = stream.read(_MAX_BYTES)
    state, _ = walk_symbolically(data)
    layout = Layout("distributed-index")
    if state.error is not None:
        layout.add("truncated", f"the index ends early: {state.error}", "what lies behind that place", state.error.byte)
    told = _fields(state.value)
    named, places = told.get("state_dict_metadata"), told.get("storage_data")
    if not isinstance(named, dict):
        raise ArtifactError(
            f"{source.name}: no state_dict_metadata; expected the index of a distributed checkpoint", byte=0
        )
    files, ends = _places(places if isinstance(places, dict) else {})
    for name, entry in list(named.items())[:MAX_TENSORS]:
        fields = _fields(entry)
        shape = shape_of(fields.get("size"))
        if shape is None:
            continue
        for file in sorted(files.get(str(name), {""})):
            tensor = StoredTensor(clean_text(str(name))[:MAX_NAME], _dtype(fields), shape, None, 0, file=file or None)
            tensor.fault = None if file else "no-data"
            layout.tensors.append(tensor)
    layout.settings = {"files": ends}
    layout.n_said = len(named)
    emit_checkpoint(layout, source, sink)


def _places(places: dict[Any, Any]) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Files of each name, and how many bytes each file needs."""
    files: dict[str, set[str]] = defaultdict(set)
    ends: dict[str, int] = {}
    for index, info in places.items():
        where, of = _fields(info), _fields(index)
        path, offset, length = where.get("relative_path"), where.get("offset"), where.get("length")
        if isinstance(path, str) and type(offset) is int and type(length) is int:
            name = clean_text(path)[:300]
            files[str(of.get("fqn"))].add(name)
            ends[name] = max(ends.get(name, 0), offset + length)
    return files, ends


def _fields(record: Any) -> dict[Any, Any]:
    """The attributes of a record, as far as its pickle names them."""
    if not isinstance(record, Opaque):
        return {}
    state = record.state
    if type(state) is tuple and len(state) == 2 and type(state[1]) is dict:
        state = state[1]
    if type(state) is dict:
        return state
    return (
        dict(zip(("fqn", "offset", "index"), record.arguments, strict=False)) if type(record.arguments) is tuple else {}
    )


def _dtype(fields: dict[Any, Any]) -> str:
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, Opaque) else None
    first = state[0] if type(state) is tuple and state else None
    return first.name if isinstance(first, Global) else ""
