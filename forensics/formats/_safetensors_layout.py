"""The header of a safetensors file: 8 bytes of length, JSON, then the data of all tensors without a gap.

https://github.com/huggingface/safetensors#format. The library refuses gaps, overlaps and data behind the last tensor.
"""

from __future__ import annotations

import json
import re
from typing import Any, BinaryIO

import orjson

from forensics.formats._checkpoint_layout import (
    BITS,
    MAX_NAME,
    MAX_TENSORS,
    Layout,
    StoredTensor,
    mark_places,
    read_at,
    shape_of,
)
from forensics.formats._lenient_json import JsonError, as_int, decode_at
from forensics.formats._text_lines import clean_text

MAX_HEADER_BYTES = 100_000_000  # as in the library
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F6_E2M3": "float6_e2m3",
    "F6_E3M2": "float6_e3m2",
    "F4": "float4_e2m1",
}
_GAP = re.compile(r"[\s,]*")
_METADATA = "__metadata__"


def is_safetensors(data: bytes) -> bool:
    size = int.from_bytes(data[:8], "little")
    return len(data) > 10 and 2 <= size <= MAX_HEADER_BYTES and data[8:9] == b"{" and data[9:10] in b'"} \n'


def read_safetensors(file: BinaryIO, file_size: int) -> Layout:
    """Where the tensors of a file lie that begins as `is_safetensors` says."""
    layout = Layout("safetensors")
    n_header = int.from_bytes(read_at(file, 0, 8), "little")
    text = read_at(file, 8, n_header)
    data = 8 + n_header
    if len(text) < n_header:
        message = f"the header is to have {n_header} bytes; the file ends after {len(text)} of them"
        layout.add("truncated", message, "the names of the tensors behind, and all values", file_size)
    entries = _entries(text.decode("utf-8", "replace"), layout)
    for name, entry in entries[:MAX_TENSORS]:
        if name == _METADATA:
            layout.settings |= {
                clean_text(str(k))[:200]: clean_text(str(v))[:2000] for k, v in list(entry.items())[:200]
            }
        else:
            layout.tensors.append(_tensor(name, entry, data))
    if len(entries) > MAX_TENSORS:
        layout.add("too-many", f"{len(entries)} tensors; only {MAX_TENSORS} were read", "the others")
    _check(layout, data, file_size)
    return layout


def _entries(text: str, layout: Layout) -> list[tuple[str, dict[str, Any]]]:
    """All pairs of the header, names that are given twice included; what stands before damage is kept."""
    try:
        found = orjson.loads(text)
        pairs = list(found.items()) if isinstance(found, dict) else []
        if text.count('"data_offsets"') > len(pairs):
            pairs = json.loads(text, object_pairs_hook=_pairs)
            pairs = [(name, dict(entry)) for name, entry in pairs if isinstance(entry, list)]
    except (ValueError, RecursionError):
        pairs = _pairs_before_damage(text, layout)
    return [(clean_text(name)[:MAX_NAME], entry) for name, entry in pairs if isinstance(entry, dict)]


def _pairs(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    return pairs


def _pairs_before_damage(text: str, layout: Layout) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    at = 1
    try:
        while len(pairs) <= MAX_TENSORS:
            name, end = decode_at(text, _past_gap(text, at))
            entry, end = decode_at(text, _past_gap(text, text.index(":", end) + 1))
            pairs.append((str(name), entry))
            at = end
    except (JsonError, ValueError):
        if not layout.problems and text[at:].strip() != "}":
            layout.add("bad-header", "the header is no JSON any more", "the tensors behind that place", 8 + at)
    return pairs


def _past_gap(text: str, at: int) -> int:
    gap = _GAP.match(text, at)
    return gap.end() if gap else at


def _tensor(name: str, entry: dict[str, Any], data: int) -> StoredTensor:
    dtype = _DTYPES.get(str(entry.get("dtype")), clean_text(str(entry.get("dtype")))[:40])
    shape = shape_of(entry.get("shape"))
    offsets = entry.get("data_offsets")
    pair = offsets if isinstance(offsets, list) and len(offsets) == 2 else [None, None]
    begin, end = as_int(pair[0], 0, 1 << 60), as_int(pair[1], 0, 1 << 60)
    if shape is None or begin is None or end is None or end < begin:
        return StoredTensor(name, dtype, shape or (), None, 0, fault="outside")
    tensor = StoredTensor(name, dtype, shape, data + begin, end - begin)
    if dtype in BITS and -(-tensor.n_elements * BITS[dtype] // 8) != tensor.n_bytes:
        tensor.fault = "wrong-size"
    return tensor


def _check(layout: Layout, data: int, file_size: int) -> None:
    """Whether the tensors cover the data without gaps, as the library wants it."""
    mark_places(layout.tensors, file_size)
    at, previous = data, None
    n_overlaps = n_gaps = 0
    for tensor in sorted((t for t in layout.tensors if t.start is not None), key=lambda t: (t.start, t.n_bytes)):
        start = tensor.start or 0
        if start < at and tensor.n_bytes:
            tensor.fault = tensor.fault or "overlapping"
            n_overlaps += 1
            if previous is not None and not previous.fault:
                previous.fault = "overlapping"
        n_gaps += start > at
        if start + tensor.n_bytes > at:
            at, previous = start + tensor.n_bytes, tensor
    if file_size < at and not layout.problems:
        message = (
            f"the tensors are to end at byte {at}; the file ends at byte {file_size}, {at - file_size} bytes short"
        )
        layout.add("truncated", message, "values of the tensors behind that place", file_size)
    if n_overlaps:
        layout.add("overlap", f"{n_overlaps} tensors lie on the data of others", "which values are meant")
    if layout.problems or any(tensor.fault for tensor in layout.tensors):
        return
    if n_gaps:
        layout.add(
            "gap", f"{n_gaps} stretches of the data belong to no tensor", "nothing, but the library refuses the file"
        )
    elif file_size > at:
        message = f"{file_size - at} bytes follow the last tensor"
        layout.add("trailing", message, "nothing, but the library refuses the file", at)
