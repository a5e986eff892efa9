"""What the files of the recorders have in common: JSON lines or one object, `format` first, then whose they are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import JsonError, as_float, parse_json
from forensics.formats._text_lines import BadLines, decode_text, numbered_lines, read_text
from forensics.redact import masked_value

_INT32_MAX = 2**31 - 1
_MAX_TEXT = 1000
IDENTITY = {"format", "rank", "local_rank", "world_size", "host", "pid", "attempt"}


def sure_of_format(head: Head, family: str) -> int:
    """How sure the head is of `"format": "FAMILY/VERSION"`: as its first key, or somewhere in its first line."""
    text = decode_text(head.data[:4096]).lstrip("\ufeff")
    mark = rf'"format"\s{{0,20}}:\s{{0,20}}"{re.escape(family)}/'
    if re.match(rf"\s{{0,100}}\{{\s{{0,20}}{mark}", text):
        return 95
    first = text.split("\n", 1)[0]
    return 90 if first.lstrip().startswith("{") and re.search(mark, first) else 0


def json_objects(source: Source, bad: BadLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is one; the others are told to `bad`."""
    for number, text, whole in numbered_lines(source):
        if not text.strip():
            continue
        try:
            value = parse_json(text.lstrip("\ufeff")) if whole else None
        except JsonError as error:
            bad.add(number, f"{error} ({text[:60]!r}); expected one JSON object a line")
            continue
        if isinstance(value, dict):
            yield number, value
        else:
            bad.add(number, "no JSON object, or too long; expected one JSON object a line")


def check_version(source: Source, header: dict[str, Any], expected: str) -> None:
    """Raises ArtifactError for a header of another version: its fields may mean something else."""
    version = header.get("format")
    if version != expected:
        found = str(version)[:100] if version else "no header line"
        raise ArtifactError(
            f"{source.name}: {found}; expected {expected}; use the reader that came with its recorder", byte=0
        )


def read_tensors(source: Source, expected: str, most_bytes: int) -> tuple[dict[str, Any], list[Any]]:
    """An object that holds a list `tensors`, and that list; raises ArtifactError for anything else."""
    text, more = read_text(source, most_bytes)
    try:
        found = parse_json(text) if not more else None
    except JsonError as error:
        raise ArtifactError(f"{source.name}: {error}; expected one JSON object", byte=0) from error
    tensors = found.get("tensors") if isinstance(found, dict) else None
    if not isinstance(found, dict) or not isinstance(tensors, list):
        raise ArtifactError(f"{source.name}: no list `tensors` in at most {most_bytes} bytes", byte=0)
    check_version(source, found, expected)
    return found, tensors


def describe_process(sink: Sink, header: dict[str, Any], bad: BadFields, *, facts: bool = False) -> None:
    """Tells whose file it is; with `facts`, the header's other keys too."""
    rank = bad.whole(header, "rank", 0, _INT32_MAX)
    host = bad.text(header, "host")
    sink.proc(
        0,
        rank=rank,
        rank_origin="none" if rank is None else "content",
        local_rank=bad.whole(header, "local_rank", 0, _INT32_MAX),
        world_size=bad.whole(header, "world_size", 1, _INT32_MAX),
        host=host[:_MAX_TEXT] if host else None,
        pid=bad.whole(header, "pid"),
        attempt=bad.whole(header, "attempt", 0, _INT32_MAX),
    )
    if not facts:
        return
    others = [(k, v) for k, v in header.items() if k not in IDENTITY and isinstance(v, str | int | float)]
    for key, value in others[:100]:
        scope = "version" if key in {"torch", "python", "cuda"} else "option"
        text = str(value).lower() if isinstance(value, bool) else str(value)
        sink.fact(key, masked_value(key, text)[:_MAX_TEXT], scope=scope, line=1, number=as_float(value), proc=0)
