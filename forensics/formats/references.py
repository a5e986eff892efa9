"""Who keeps the largest tensors of a process alive: `forensics.references/1`, one JSON object with a list `tensors`.

Each has bytes, shape, dtype, device and `chain`: the objects from the tensor outwards to a variable, module or class.
A row of `reference_link` is one object of a chain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import as_int
from forensics.formats._recorder_lines import describe_process, read_tensors, sure_of_format
from forensics.formats._text_lines import clean_text

VERSION = 1
TITLE = "Who keeps tensors alive (forensics.references)"
PROVIDES = ("reference_link",)

FORMAT = "forensics.references/1"
_MAX_BYTES = 16 << 20
_MAX_TENSORS = 1_000
_MAX_LINKS = 64
_MAX_LINK = 500  # characters


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.references")


def load(source: Source, sink: Sink) -> None:
    found, tensors = read_tensors(source, FORMAT, _MAX_BYTES)
    odd = BadFields()
    describe_process(sink, found, odd)
    kept = [one for one in tensors[:_MAX_TENSORS] if isinstance(one, dict) and _links(one)]
    n_bad = sum(not isinstance(one, dict) or not isinstance(one.get("chain"), list) for one in tensors)
    if n_bad or len(tensors) > _MAX_TENSORS:
        sink.warn("bad-entries", f"{n_bad} entries have no chain, or there are too many", "who keeps these alive")
        sink.damaged("partial")
    if kept:
        rows = list(_rows(kept, odd))
        sink.emit("reference_link", pa.Table.from_pylist(rows, schema=_SCHEMA))
    complete = not odd.tell(sink) and not n_bad and len(tensors) <= _MAX_TENSORS
    sink.cover("reference_link", complete=complete, n_read=len(tensors), n_kept=len(kept))


_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("row", "tensor", "place"), pa.int64()),
        "holder": pa.string(),
        "size_bytes": pa.int64(),
        **dict.fromkeys(("shape", "dtype", "device"), pa.string()),
    }
)


def _links(entry: dict[str, Any]) -> list[str]:
    chain = entry.get("chain")
    if not isinstance(chain, list):
        return []
    return [clean_text(link)[:_MAX_LINK] for link in chain[:_MAX_LINKS] if isinstance(link, str) and link]


def _rows(kept: list[dict[str, Any]], odd: BadFields) -> Iterator[dict[str, Any]]:
    row = 0
    for number, entry in enumerate(kept):
        shape = entry.get("shape")
        sizes = [as_int(size, 0) for size in shape[:64]] if isinstance(shape, list) else None
        facts = {
            "tensor": number,
            "size_bytes": odd.whole(entry, "bytes", 0, 1 << 62),
            "shape": orjson.dumps(sizes).decode() if sizes is not None and None not in sizes else None,
            "dtype": clean_text(odd.text(entry, "dtype") or "")[:40] or None,
            "device": clean_text(odd.text(entry, "device") or "")[:40] or None,
        }
        for place, holder in enumerate(_links(entry)):
            yield {"row": row, "place": place, "holder": holder, **facts}
            row += 1
