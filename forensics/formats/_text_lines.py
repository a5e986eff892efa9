"""Text artifacts as lines with their numbers: encodings told by their mark, everything bounded, nothing raised.

Lines end at `\n` only, as editors and the log count them; a `\r` before it is dropped.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator

from forensics.artifact import Sink, Source

MAX_LINE_CHARS = 1 << 20
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
# What neither Arrow, DuckDB nor orjson can hold: halves of surrogate pairs and NUL.
_UNSTORABLE = re.compile("[\ud800-\udfff\0]")
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")


def encoding_of(data: bytes) -> str:
    """The encoding that a byte order mark tells (PowerShell redirects as UTF-16), else UTF-8."""
    return next((name for mark, name in _MARKS if data.startswith(mark)), "utf-8")


def decode_text(data: bytes) -> str:
    return data.decode(encoding_of(data), errors="replace")


def clean_text(text: str) -> str:
    """The text with what cannot be stored replaced by U+FFFD."""
    return _UNSTORABLE.sub("\ufffd", text)


def without_ansi(text: str) -> str:
    return _ANSI.sub("", text) if "\x1b" in text else text


def read_text(source: Source, limit: int) -> tuple[str, bool]:
    """Up to `limit` bytes of the artifact as text, and whether there was more."""
    with source.open() as stream:
        data = stream.read(limit + 1)
    return decode_text(data[:limit]), len(data) > limit


def numbered_lines(source: Source, *, max_chars: int = MAX_LINE_CHARS) -> Iterator[tuple[int, str, bool]]:
    """(number from 1, text without its end, whole) of every line; of longer lines only the first `max_chars`."""
    with source.open() as raw:
        encoding = encoding_of(raw.peek(4)[:4])  # type: ignore[attr-defined]
        with io.TextIOWrapper(raw, encoding=encoding, errors="replace", newline="\n") as stream:
            number = 0
            while line := stream.readline(max_chars):
                number += 1
                whole = line.endswith("\n") or len(line) < max_chars
                rest = line
                while not rest.endswith("\n") and len(rest) == max_chars:
                    rest = stream.readline(max_chars)
                yield number, line.rstrip("\r\n"), whole


def head_lines(text: str, *, whole: bool) -> list[str]:
    """The lines of the beginning of an artifact, without a last one that may be cut."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    return lines if whole or len(lines) == 1 else lines[:-1]


class LineCounter:
    """Line numbers of ascending positions in one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._line = 1

    def at(self, position: int) -> int:
        self._line += self._text.count("\n", self._position, position)
        self._position = max(position, self._position)
        return self._line


class BadLines:
    """Warns about the first unreadable lines one by one and about the others in one sentence."""

    REPORTED = 20

    def __init__(self, sink: Sink, code: str, hides: str) -> None:
        self._sink = sink
        self._code = code
        self._hides = hides
        self.count = 0

    def add(self, line: int, message: str) -> None:
        self.count += 1
        if self.count <= self.REPORTED:
            self._sink.warn(self._code, f"line {line}: {clean_text(message)}", self._hides, line=line)

    def close(self) -> None:
        """Tells the rest, and marks the artifact as partial when any line was bad."""
        if self.count > self.REPORTED:
            more = self.count - self.REPORTED
            self._sink.warn(self._code, f"{more} more lines could not be read", self._hides)
        if self.count:
            self._sink.damaged("partial")
