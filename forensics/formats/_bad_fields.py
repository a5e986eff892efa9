"""Values of a document that should be of one kind: what is of another is left out, counted and said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from forensics.artifact import Sink
from forensics.formats._lenient_json import as_float, as_int
from forensics.formats._quantities import parse_number
from forensics.formats._text_lines import clean_text

_MAX_FIELDS = 200
_SHOWN = 20


class BadFields:
    """`line`: of what is being read, None for a document that has no lines."""

    def __init__(self) -> None:
        self.line: int | None = None
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def count(self, field: str, value: Any) -> None:
        """Counts a value that cannot be used; None stands for one that is not there."""
        if value is None or (field not in self._first and len(self._first) >= _MAX_FIELDS):
            return
        self._counts[field] += 1
        if field not in self._first:
            at = "" if self.line is None else f" in line {self.line}"
            self._first[field] = f"{clean_text(repr(value)[:40])}{at}"

    def whole(self, given: Mapping[str, Any], field: str, low: int = 0, high: int = 2**63 - 1) -> int | None:
        value = given.get(field)
        number = as_int(value, low, high)
        if number is None and value is not None:
            self.count(field, value)
        return number

    def number(self, given: Mapping[str, Any], field: str) -> float | None:
        """A number, also where it is spelt as a text, such as "nan"."""
        value = given.get(field)
        number = as_float(parse_number(value) if isinstance(value, str) else value)
        if number is None and value is not None:
            self.count(field, value)
        return number

    def text(self, given: Mapping[str, Any], field: str) -> str | None:
        value = given.get(field)
        if isinstance(value, str):
            return value
        self.count(field, value)
        return None

    def tell(self, sink: Sink, *, partial: bool = True) -> bool:
        """Warns of what was counted and, if `partial`, marks the artifact as such; whether there was any."""
        if self._counts:
            listed = [f"{name[:60]} ({n}, first {self._first[name]})" for name, n in self._counts.most_common(_SHOWN)]
            text = f"values of the wrong kind or out of range: {', '.join(listed)}"
            sink.warn("bad-values", text, "these values, and what they would say of their line")
            if partial:
                sink.damaged("partial")
        return bool(self._counts)
