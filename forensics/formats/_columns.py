"""Turns values of any type into lists that fit a column: what does not fit becomes None and is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

MAX_INT64 = (1 << 63) - 1
MAX_UINT64 = (1 << 64) - 1
_NONE = type(None)


def clean_text(text: str, limit: int = 4096) -> str:
    """The text as valid UTF-8 of at most `limit` characters."""
    text = text[:limit]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


class Columns:
    """Checks values field by field; `bad` counts, per field, those that did not fit."""

    def __init__(self) -> None:
        self.bad: Counter[str] = Counter()

    def whole(self, field: str, value: Any, low: int = 0, high: int = MAX_INT64) -> int | None:
        if type(value) is int and low <= value <= high:
            return value
        if value is not None:
            self.bad[field] += 1
        return None

    def wholes(self, field: str, values: Sequence[Any], low: int = 0, high: int = MAX_INT64) -> Sequence[int | None]:
        kinds = set(map(type, values))
        if kinds <= {int, _NONE}:
            present = [v for v in values if v is not None] if _NONE in kinds else values
            if not present or (low <= min(present) and max(present) <= high):
                return values
        return [self.whole(field, v, low, high) for v in values]

    def text(self, field: str, value: Any) -> str | None:
        if type(value) is str:
            return clean_text(value)
        if value is not None:
            self.bad[field] += 1
        return None

    def texts(self, field: str, values: Sequence[Any]) -> Sequence[str | None]:
        if set(map(type, values)) <= {str, _NONE} and all(v is None or v.isascii() for v in set(values)):
            return values
        return [self.text(field, v) for v in values]

    def pair(self, field: str, value: Any) -> str | None:
        """A pool id (a, b), a list where it went through JSON, as "a.b"."""
        if type(value) in (tuple, list) and len(value) == 2:
            first, second = value
            if type(first) is int and type(second) is int and min(value) >= 0 and max(value) <= MAX_UINT64:
                return f"{first}.{second}"
        if value is not None:
            self.bad[field] += 1
        return None

    def pairs(self, field: str, values: Sequence[Any]) -> Any:
        """Arrow array of pool ids. Never hashes them: tuples of equal hashes can be chosen."""
        if set(map(type, values)) <= {tuple, list} and set(map(len, values)) == {2}:
            halves = [v[0] for v in values], [v[1] for v in values]
            if all(set(map(type, h)) == {int} and min(h) >= 0 and max(h) <= MAX_UINT64 for h in halves):
                return pc.binary_join_element_wise(*(pa.array(h, pa.uint64()).cast(pa.string()) for h in halves), ".")
        return pa.array([self.pair(field, v) for v in values], pa.string())
