"""Turns the texts that signatures capture into typed values; the suffix of a field's name says which.

`*_bytes` integer bytes, `*_ms` integer milliseconds, `*_s` seconds, `*rank` an integer that a job can have, `*ranks`
list of integers, `*_id` and the names in `_TEXT` stay text; anything else becomes an integer or a float where it is
one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

from forensics.formats._quantities import parse_size

Value: TypeAlias = int | float | str | bool | list[int]

# Sizes above this are placeholders: NVML gives 2^64 - 1 where a driver model hides memory (WSL, Windows).
_MAX_BYTES = 1 << 50
_TEXT_LIMIT = 400  # characters kept of a captured text

_RANK = re.compile(r"\d{1,6}\Z")
_INTEGER = re.compile(r"-?\d{1,18}\Z")
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\Z")
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+\Z")
_NUMBERS = re.compile(r"\d+")
_UNKNOWN = {"<unknown>", "<N/A>", "N/A"}
_TEXT = {"pci", "host", "peer", "version", "address", "code_line", "shape", "other_shape", "block", "thread", "tasks"}


def typed(name: str, text: str) -> Value | None:
    """The value of a captured text, or None where it has none (an empty or impossible one)."""
    text = text.strip()
    if len(text) > 1 and text[0] in "'\"" and text[0] == text[-1] and text.count(text[0]) == 2:
        text = text[1:-1].strip()
    if not text or text in _UNKNOWN:
        return None
    if name.endswith("_bytes"):
        size = parse_size(text.replace(",", ""))
        return size if size is not None and size <= _MAX_BYTES else None
    if name.endswith("rank"):
        return int(text) if _RANK.match(text) else None
    if name.endswith("ranks"):
        return [int(n) for n in _NUMBERS.findall(text)[:4096]]
    return text[:_TEXT_LIMIT] if name.endswith("_id") or name in _TEXT else _number_or_text(text)


def _number_or_text(text: str) -> Value:
    plain = text.replace(",", "") if _GROUPED.match(text) else text
    if _INTEGER.match(plain):
        return int(plain)
    return float(plain) if _FLOAT.match(plain) else text[:_TEXT_LIMIT]


def combine(name: str, texts: Sequence[str], how: str) -> Value | None:
    """Several captures of one part as one value: the first, the last, their sum or how many there are."""
    if how == "count":
        return len(texts)
    values = [value for value in (typed(name, text) for text in texts) if value is not None]
    if not values:
        return None
    if how == "sum":
        return sum(value for value in values if isinstance(value, int | float))
    return values[-1] if how == "last" else values[0]


def own_process_bytes(entries: Sequence[int], allocated: int, unallocated: int) -> int | None:
    """The entry that is this process's own, where the text names processes but not which one it is.

    In containers NVML gives the host's process ids: then the own entry is the smallest that holds what the allocator
    reserved, up to 3 GiB more for the context and libraries.
    """
    reserved = allocated + unallocated
    fitting = [size for size in entries if reserved * 0.99 <= size <= reserved + (3 << 30)]
    return min(fitting, default=None)
