"""Reads a log of any size as blocks of lines, and tells which lines are worth looking at.

A block is searched at once with RE2 (pyarrow), about 400 MB/s; only lines in which something was found, and lines that
belong to an event being read, are handled one by one. Bytes are those of the decompressed content.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

BLOCK_BYTES = 2 << 20
PIECE_BYTES = 64 * 1024  # longer pieces of a line are cut into several

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])")


class Piece(NamedTuple):
    """A line, or what lies between two carriage returns of it. `number` counts line feeds from 1."""

    number: int
    byte: int | None
    text: str


class Patterns(NamedTuple):
    """What to look for, in RE2 syntax: messages and whatever structures them; lines of numbers, which are frequent."""

    notable: str
    counting: str


def _matching(lines: pa.Array, pattern: str) -> list[int]:
    found: list[int] = pc.indices_nonzero(pc.match_substring_regex(lines, pattern)).to_pylist()
    return found


class Block:
    """Whole lines of a log as pieces. `notable` and `counting` are the indices of pieces that the patterns match."""

    def __init__(self, data: bytes, first_number: int, first_byte: int | None, patterns: Patterns) -> None:
        self._data = data
        self._first_number = first_number
        self._first_byte = first_byte
        self._raw: list[bytes] = data.split(b"\n")
        if not self._raw[-1]:
            self._raw.pop()
        # (line, offset) of each piece where lines are not pieces already
        self._places: list[tuple[int, int]] | None = None
        if data.count(b"\r") != data.count(b"\r\n") or any(len(line) > PIECE_BYTES for line in self._raw):
            self._split()
        self._clean: Sequence[bytes] = self._raw
        if b"\x1b" in data or b"\0" in data:
            self._clean = [ANSI.sub(b"", piece).replace(b"\0", b"") for piece in self._raw]
        lines = pa.array(self._clean, pa.large_binary())
        self.notable: list[int] = _matching(lines, patterns.notable)
        self.counting: list[int] = _matching(lines, patterns.counting)
        self._starts: list[int] | None = None

    def __len__(self) -> int:
        return len(self._raw)

    def __getitem__(self, index: int) -> Piece:
        text = self._clean[index].rstrip(b"\r").decode("utf-8", "replace")
        if self._places is not None:
            line, byte = self._places[index]
            return Piece(self._first_number + line, None if self._first_byte is None else byte, text)
        if self._first_byte is None:
            return Piece(self._first_number + index, None, text)
        if self._starts is None:
            self._starts = list(accumulate((len(line) + 1 for line in self._raw), initial=self._first_byte))
        return Piece(self._first_number + index, self._starts[index], text)

    def starts(self, pattern: re.Pattern[bytes]) -> list[str]:
        """What a pattern that begins with a line feed finds in the block, each text once: prefixes of any line."""
        found = set(pattern.findall(self._data)) | set(pattern.findall(b"\n" + self._data[:200]))
        return sorted(text.decode("utf-8", "replace") for text in found)

    def _split(self) -> None:
        pieces: list[bytes] = []
        places: list[tuple[int, int]] = []
        byte = self._first_byte or 0
        for number, line in enumerate(self._raw):
            offset = byte
            for part in line.split(b"\r"):
                for begin in range(0, len(part), PIECE_BYTES):
                    pieces.append(part[begin : begin + PIECE_BYTES])
                    places.append((number, offset + begin))
                offset += len(part) + 1
            byte += len(line) + 1
            if not line:
                pieces.append(b"")
                places.append((number, offset - 1))
        self._raw, self._places = pieces, places


def read_blocks(stream: BinaryIO, patterns: Patterns) -> Iterator[Block]:
    """Blocks of a stream in order. UTF-16 is transcoded, its bytes are not counted."""
    head = stream.read(3)
    encoding = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}.get(head[:2])
    byte: int | None = None if encoding else 0
    if head == codecs.BOM_UTF8:
        head, byte = b"", len(head)
    chunks = _transcoded(stream, head[2:], encoding) if encoding else _chunks(stream, head)
    number, rest = 1, b""
    for chunk in chunks:
        data = rest + chunk
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) < BLOCK_BYTES:
                rest = data
                continue
            end = len(data)  # one line longer than a block: its pieces keep the number
        yield Block(data[:end], number, byte, patterns)
        number += data.count(b"\n", 0, end)
        byte = None if byte is None else byte + end
        rest = data[end:]
    if rest:
        yield Block(rest, number, byte, patterns)


def _chunks(stream: BinaryIO, head: bytes) -> Iterator[bytes]:
    if head:
        yield head
    while chunk := stream.read(BLOCK_BYTES):
        yield chunk


def _transcoded(stream: BinaryIO, head: bytes, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    chunk = head
    while chunk:
        yield decoder.decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(BLOCK_BYTES)
    yield decoder.decode(b"", final=True).encode("utf-8", "replace")
