"""Where a model's tensors really lay: `forensics.device_map/1`, one JSON object with a list `tensors`.

Each entry has name, role (parameter, buffer, attribute), device, shape, dtype, contiguous, addr, requires_grad, and
`declared`: the device that a map of module prefixes asked for. Entries become `placement` rows and
`tensor` rows of that role.
"""

from __future__ import annotations

import math
import re
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import as_int
from forensics.formats._recorder_lines import describe_process, read_tensors, sure_of_format
from forensics.formats._text_lines import clean_text

VERSION = 2
TITLE = "Placement of a model's tensors (forensics.device_map)"
PROVIDES = ("tensor", "placement", "fact")

FORMAT = "forensics.device_map/1"
_MAX_BYTES = 64 << 20
_MAX_ENTRIES = 100_000
_INDEX = re.compile(r"(?:[a-z]{1,20}:)?([0-9]{1,4})")


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.device_map")


def load(source: Source, sink: Sink) -> None:
    found, entries = read_tensors(source, FORMAT, _MAX_BYTES)
    odd = BadFields()
    describe_process(sink, found, odd)
    kept = [entry for entry in entries[:_MAX_ENTRIES] if isinstance(entry, dict) and isinstance(entry.get("name"), str)]
    if len(kept) < len(entries):
        sink.warn("bad-entries", f"{len(entries) - len(kept)} entries have no name, or are too many", "where these lie")
        sink.damaged("partial")
    if kept:
        rows = [_row(*pair, odd) for pair in enumerate(kept)]
        sink.emit("tensor", pa.Table.from_pylist(rows, schema=_SCHEMA))
        complete = not odd.tell(sink) and len(kept) == len(entries)
        sink.emit("placement", pa.Table.from_pylist([_place(*pair) for pair in enumerate(kept)], schema=_PLACES))
        sink.cover("placement", complete=complete, n_read=len(entries), n_kept=len(kept))
        sink.cover("tensor", complete=complete, n_read=len(entries), n_kept=len(kept))
    for entry in kept:
        declared, device = entry.get("declared"), entry.get("device")
        if declared is not None and not _same_device(str(declared), str(device)):
            name, places = (
                clean_text(entry["name"])[:300],
                [clean_text(str(place))[:40] for place in (device, declared)],
            )
            said = f"{name} lies on {places[0]}, declared {places[1]}"
            sink.fact("device_map_mismatch", said, scope="device", line=1, proc=0)


_SCHEMA = pa.schema(
    {
        "row": pa.int64(),
        "role": pa.string(),
        "name": pa.string(),
        "dtype": pa.string(),
        "shape": pa.string(),
        "device": pa.int32(),
        "addr": pa.uint64(),
    }
)


_PLACES = pa.schema(
    {
        "row": pa.int64(),
        **dict.fromkeys(("name", "kind", "device", "declared"), pa.string()),
        "is_as_declared": pa.bool_(),
        "size_bytes": pa.int64(),
    }
)
_ITEM_BYTES = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
}
_ITEM_BYTES |= dict.fromkeys(("int8", "uint8", "bool", "float8_e4m3fn", "float8_e5m2"), 1)


def _row(number: int, entry: dict[str, Any], odd: BadFields) -> dict[str, Any]:
    shape = entry.get("shape")
    sizes = shape if isinstance(shape, list) and all(as_int(size, 0) is not None for size in shape[:64]) else None
    if sizes is None:
        odd.count("shape", shape)
    return {
        "row": number,
        "role": "placement",
        "name": clean_text(entry["name"])[:1000],
        "dtype": clean_text(odd.text(entry, "dtype") or "")[:40] or None,
        "shape": orjson.dumps(sizes[:64]).decode() if sizes is not None else None,
        "device": _device_index(odd.text(entry, "device") or ""),
        "addr": odd.whole(entry, "addr", 0, 2**64 - 1),
    }


def _place(number: int, entry: dict[str, Any]) -> dict[str, Any]:
    declared, device = entry.get("declared"), clean_text(str(entry.get("device") or "unknown"))[:40]
    shape, role = entry.get("shape"), entry.get("role")
    sizes = [as_int(size, 0) for size in shape[:64]] if isinstance(shape, list) else [None]
    item = _ITEM_BYTES.get(str(entry.get("dtype")))
    known = [size for size in sizes if size is not None]
    n = math.prod(known) if len(known) == len(sizes) else None
    wanted = None if declared is None else clean_text(str(declared))[:40]
    return {
        "row": number,
        "name": clean_text(entry["name"])[:1000],
        "kind": role if role in {"parameter", "buffer", "attribute"} else "parameter",
        "device": device,
        "declared": wanted,
        "is_as_declared": None if wanted is None else _same_device(wanted, device),
        "size_bytes": n * item if n is not None and item is not None and n < 1 << 50 else None,
    }


def _device_index(device: str) -> int | None:
    """0 for cuda:0, -1 for the host; None for what has no index."""
    if device == "cpu":
        return -1
    found = _INDEX.fullmatch(device)
    return int(found[1]) if found and int(found[1]) < 1024 else None


def _same_device(declared: str, device: str) -> bool:
    """`0`, `cuda` and `cuda:0` are one device; `disk` and `meta` both mean that nothing is loaded."""
    if {declared, device} <= {"disk", "meta"}:
        return True
    a, b = (_device_index("0" if name == "cuda" else name) for name in (declared, device))
    return declared == device or (a is not None and a == b)
