"""JSON as failed jobs leave it: NaN and Infinity tokens, documents that end in the middle, damaged elements.

Strings come out storable (see `clean_text`); integers may be of any size, so convert them with `as_int` and `as_float`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from forensics.formats._text_lines import clean_text

Path = tuple[str | int, ...]

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
# Not after a colon: that object is a part of the damaged element.
_NEXT_OBJECT = re.compile(r"[,\[\n][ \t\r\n]{0,200}(?=\{)")
_MAX_RESUMES = 1000
_MAX_DEPTH = 64


class JsonError(ValueError):
    """The text is no JSON (any more) from `position` on."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason)
        self.position = position


def parse_json(text: str) -> Any:
    """The value of a whole JSON text; NaN and Infinity allowed. Raises JsonError."""
    try:
        value = orjson.loads(text)
    except (ValueError, UnicodeEncodeError):
        pass  # NaN, lone surrogates and deep nesting are refused there
    else:
        return _cleaned(value, 0) if "\\u0000" in text else value
    start = _SPACE.match(text)
    value, end = decode_at(text, start.end() if start else 0)
    rest = _SPACE.match(text, end)
    if rest and rest.end() != len(text):
        raise JsonError("something follows the value", rest.end())
    return value


def decode_at(text: str, position: int) -> tuple[Any, int]:
    """The JSON value that starts at a position, and where it ends. Raises JsonError."""
    try:
        value, end = _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.pos) from None
    except (RecursionError, ValueError) as error:  # ValueError: more than 4300 digits
        raise JsonError(f"too deep or too long ({type(error).__name__})", position) from None
    return (_cleaned(value, 0) if text.find("\\u", position, end) >= 0 else value), end


def _cleaned(value: Any, depth: int) -> Any:
    """The value with storable texts; what lies deeper than any format looks is dropped."""
    if isinstance(value, str):
        return clean_text(value)
    if depth > _MAX_DEPTH:
        return None
    if isinstance(value, list):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _cleaned(item, depth + 1) for key, item in value.items()}
    return value


@dataclass(frozen=True)
class Leaf:
    path: Path
    value: Any
    position: int


class JsonWalk:
    """Goes through a JSON text in order and hands over what is complete before any damage.

    `whole(path, first_character)` says which containers to hand over as one value; scalars always are. After
    `leaves()` ended, `damage` is the first position at which the text is no JSON, and `n_lost` counts the array
    elements that were skipped to go on.
    """

    def __init__(self, text: str, whole: Callable[[Path, str], bool]) -> None:
        self._text = text
        self._whole = whole
        self._position = 0
        self.damage: int | None = None
        self.reason = ""
        self.n_lost = 0

    def leaves(self) -> Iterator[Leaf]:
        try:
            self._skip_space()
            yield from self._value(())
            self._skip_space()
            if self._position < len(self._text):
                raise JsonError("something follows the value", self._position)
        except JsonError as error:
            self._note(error)

    def _note(self, error: JsonError) -> None:
        if self.damage is None:
            self.damage, self.reason = min(error.position, len(self._text)), str(error)

    def _skip_space(self) -> str:
        match = _SPACE.match(self._text, self._position)
        self._position = match.end() if match else self._position
        return self._text[self._position : self._position + 1]

    def _value(self, path: Path) -> Iterator[Leaf]:
        first = self._text[self._position : self._position + 1]
        if first and first in "{[" and len(path) < _MAX_DEPTH and not self._whole(path, first):
            yield from self._members(path) if first == "{" else self._elements(path)
            return
        start = self._position
        value, end = decode_at(self._text, start)
        follows = self._text[end : end + 1]
        if first not in '"{[' and path and (not follows or follows not in " \t\r\n,]}"):
            raise JsonError("a number or word that may be cut", start)  # 12 of 123, or 1 of 1.5
        self._position = end
        yield Leaf(path, value, start)

    def _members(self, path: Path) -> Iterator[Leaf]:
        self._position += 1
        if self._skip_space() == "}":
            self._position += 1
            return
        while True:
            if self._skip_space() != '"':
                raise JsonError("a key is missing", self._position)
            key, self._position = decode_at(self._text, self._position)
            if self._skip_space() != ":":
                raise JsonError("a colon is missing", self._position)
            self._position += 1
            self._skip_space()
            yield from self._value((*path, key))
            if self._closes("}"):
                return

    def _elements(self, path: Path) -> Iterator[Leaf]:
        self._position += 1
        if self._skip_space() == "]":
            self._position += 1
            return
        index = 0
        while True:
            self._skip_space()
            start = self._position
            try:
                yield from self._value((*path, index))
                if self._closes("]"):
                    return
            except JsonError as error:
                self._note(error)
                self._resume(start, error)
            index += 1

    def _closes(self, bracket: str) -> bool:
        found = self._skip_space()
        if found not in {",", bracket}:
            raise JsonError(f"a comma or {bracket} is missing", self._position)
        self._position += 1
        return found == bracket

    def _resume(self, start: int, error: JsonError) -> None:
        """Goes to the next object after a comma, a bracket or a line end; raises the error when there is none."""
        self.n_lost += 1
        match = _NEXT_OBJECT.search(self._text, start + 1) if self.n_lost <= _MAX_RESUMES else None
        if match is None:
            raise error
        self._position = match.end()


def flatten(value: Any, separator: str, *, max_depth: int = 16, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(joined key, value) of everything in nested objects; lists and what lies too deep come as they are."""
    if not isinstance(value, dict) or max_depth == 0 or not value:
        yield prefix, value
        return
    for key, item in value.items():
        joined = f"{prefix}{separator}{key}" if prefix else str(key)
        yield from flatten(item, separator, max_depth=max_depth - 1, prefix=joined[:500])


def as_int(value: object, low: int = -(2**63), high: int = 2**63 - 1) -> int | None:
    """An integer (or a float or text that is one) within bounds, else None; booleans are none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()) else None
    if isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    return value if isinstance(value, int) and low <= value <= high else None


def as_float(value: object) -> float | None:
    """A number as a float, NaN and infinities kept; None for booleans, other values and what a double cannot hold."""
    if type(value) is float:  # nearly every value of a metric
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
