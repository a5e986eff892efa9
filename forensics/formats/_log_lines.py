"""Reads a log of any size as blocks of lines, most of which never become Python objects.

Lines that differ in their digits only say the same, so each line carries the number of its text without digits: what
was found out about one such text holds for all of its lines. Bytes are those of the decompressed content.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from functools import cached_property
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import LEAST_ZEROS, past_zeros
from forensics.formats._log_encodings import LOOKED_AT, LineDecoder, Transcoded, encoding_of, holds_utf16
from forensics.formats._log_records import Unwrapped, holds_records, unwrap

BLOCK_BYTES = 8 << 20
LAST_BYTES = 128 << 10  # of the last part of a log
PIECE_BYTES = 64 * 1024  # longer pieces of a line are cut into several

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]{0,512}(?:\x07|\x1b\\)|[@-Z\\-_])")
ANSI_TEXT = re.compile(ANSI.pattern.decode("latin-1"))
DIGITS = b"0123456789"
_PLAIN_DIGITS = bytes.maketrans(DIGITS, b"0" * 10)
_TO_LINE_FEEDS = bytes.maketrans(b"\r", b"\n")
_NOT_ENDS = bytes(set(range(256)) - set(b"\r\n"))
_ZEROS = re.compile(rb"\0{%d,}" % LEAST_ZEROS)
_RETURN = re.compile(rb"\r(?!\n)")
_WRITER_BYTES = 17


class Piece(NamedTuple):
    """A line, or what lies between two carriage returns of it. `number` counts line feeds from 1.

    `words`: its text without digits; empty where another process cut the line.
    """

    number: int
    byte: int | None
    text: str
    words: bytes = b""


class Block:
    """Whole lines of a log as pieces, cleaned of control sequences.

    `words` has the texts without digits, each once, in the order of their first piece; `codes` the place there of each
    piece's. `n_feeds` is the number of line feeds. `is_last`: the log ends with it. `n_zeros`: bytes of holes in it,
    which a crash or a full disk leaves. `origin`: where the lines of records stand, relative to the first.
    """

    def __init__(
        self,
        data: bytes,
        first_number: int,
        first_byte: int | None,
        origin: Unwrapped | None = None,
        *,
        decoder: LineDecoder | None = None,
    ) -> None:
        self._data = data
        self._decoder = decoder or LineDecoder()
        self._origin = origin
        self._first_number = first_number
        self._first_byte = first_byte
        self.is_last = False
        self.n_zeros = sum(map(len, _ZEROS.findall(data))) if b"\0" in data else 0
        # Of each piece, where lines are not pieces already: its part between line ends, and lines before that part.
        self._parts: memoryview | None = None
        self._lines_before = memoryview(b"")
        self._places: list[tuple[int, int]] | None = None
        drawn_over = b"\r" in data and _RETURN.search(data) is not None
        ended = data.endswith((b"\n", b"\r") if drawn_over else b"\n")
        raw = _split(data.replace(b"\r", b"\n") if drawn_over else data, ended)
        self.n_feeds = len(raw) - (not ended)
        self._offsets = _offsets(raw)
        if pc.max(pc.binary_length(raw)).as_py() > PIECE_BYTES:
            self.pieces, wordless = self._cut(data)
            self.n_feeds = data.count(b"\n")
        else:
            clean = data
            if b"\x1b" in data or b"\0" in data or codecs.BOM_UTF8 in data:
                clean = _cleaned(data)
            if drawn_over:
                self._keep(raw, data)
                self.n_feeds = self._lines_before[len(raw) - 1] + data.endswith(b"\n")
                wordless = _split(clean.translate(_TO_LINE_FEEDS, DIGITS), ended).take(self._kept)
                parts = raw if clean is data else _split(clean.replace(b"\r", b"\n"), ended)
                self.pieces = parts.take(self._kept)
            else:
                clean = clean.replace(b"\r\n", b"\n") if b"\r" in clean else clean
                wordless = _split(clean.translate(None, DIGITS), ended)
                self.pieces = raw if clean is data else _split(clean, ended)
        encoded = wordless.dictionary_encode()
        self.codes: pa.Array = encoded.indices
        self.words: list[bytes] = encoded.dictionary.to_pylist()

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> Piece:
        raw = self.raw(index).rstrip(b"\r")
        line, byte = self._place(index)
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            text = self._decoder.text(raw)
        at = None if self._first_byte is None else self._first_byte + byte
        return Piece(self._first_number + line, at, text, self.words_of(index))

    def words_of(self, index: int) -> bytes:
        """The piece's text without digits."""
        return self.words[self.codes_view[index]]

    def raw(self, index: int) -> bytes:
        """The piece's bytes, cleaned."""
        offsets, data = self._content
        return bytes(data[offsets[index] : offsets[index + 1]])

    def number(self, index: int) -> int:
        """The line's number."""
        return self._first_number + self._place(index)[0]

    def first_line(self, code: int) -> int:
        """The number of the first line of some words."""
        return self.number(pc.index(self.codes, code).as_py())

    def numbers(self, indices: pa.Array) -> pa.Array:
        """The line numbers of pieces."""
        if self._places is not None:
            lines = pa.array([line for line, _ in self._places], pa.int64()).take(indices)
        elif self._parts is None:
            lines = indices
        else:
            before = pa.Array.from_buffers(
                pa.int64(), len(self._lines_before), [None, pa.py_buffer(self._lines_before)]
            )
            lines = before.take(self._kept.take(indices))
        if self._origin is not None:
            of_records = self._origin.lines
            lines = pa.Array.from_buffers(pa.int64(), len(of_records), [None, pa.py_buffer(of_records)]).take(lines)
        return pc.add(lines.cast(pa.int64()), self._first_number)

    def with_plain_digits(self, indices: pa.Array) -> pa.Array:
        """Pieces with 0 for each digit."""
        return _split(joined(self.pieces.take(indices)).translate(_PLAIN_DIGITS), ended=False)

    def rest(self, index: int) -> Block | None:
        """The block from a piece on; None where that cannot be told."""
        if self._places is not None:
            return None
        line, start = self._written(index)
        data = self._data[start:]
        if self._origin is not None:
            rest = Unwrapped(data, self._origin.lines[line:], self._origin.places[line:])
            return Block(data, self._first_number, self._first_byte, rest, decoder=self._decoder)
        first_byte = None if self._first_byte is None else self._first_byte + start
        return Block(data, self._first_number + line, first_byte, decoder=self._decoder)

    def starts(self, pattern: re.Pattern[bytes]) -> list[str]:
        """What a pattern of a bracket and at most 16 bytes finds at the beginning of pieces, each text once."""
        bracketed = self.pieces.filter(pc.starts_with(self.pieces, b"["))
        beginnings = pc.binary_slice(bracketed, 0, _WRITER_BYTES).unique().to_pylist()
        found = {m[0] for text in beginnings if (m := pattern.match(text))}
        return sorted(text.decode("utf-8", "replace") for text in found)

    def _place(self, index: int) -> tuple[int, int]:
        """The number of a piece's line and where the piece is, relative to the block; for those of records, both of
        the record."""
        line, byte = self._written(index)
        return (line, byte) if self._origin is None else (self._origin.lines[line], self._origin.places[line])

    def _written(self, index: int) -> tuple[int, int]:
        if self._places is not None:
            return self._places[index]
        part = index if self._parts is None else self._parts[index]
        return part if self._parts is None else self._lines_before[part], self._offsets[part] + part

    @cached_property
    def codes_view(self) -> memoryview:
        return memoryview(self.codes.buffers()[1]).cast("i")[self.codes.offset :]

    @cached_property
    def _content(self) -> tuple[memoryview, memoryview]:
        data = self.pieces.buffers()[2]
        return _offsets(self.pieces), memoryview(data if data is not None else b"")

    def _keep(self, parts: pa.Array, data: bytes) -> None:
        """Notes which parts of lines that are drawn over are pieces: an empty one only where it is a whole line."""
        ends = data.translate(None, _NOT_ENDS)
        is_feed = pc.equal(pa.Array.from_buffers(pa.uint8(), len(ends), [None, pa.py_buffer(ends)]), ord("\n"))
        feeds = pa.concat_arrays([pa.array([True]), is_feed, pa.array([True])])
        whole_line = pc.and_(feeds[: len(parts)], feeds[1 : len(parts) + 1])
        self._kept = pc.indices_nonzero(pc.or_(pc.greater(pc.binary_length(parts), 0), whole_line))
        before = pc.subtract(pc.cumulative_sum(feeds.cast(pa.int64())), 1)
        self._lines_before = memoryview(before.buffers()[1]).cast("q")
        self._parts = memoryview(self._kept.buffers()[1]).cast("Q")

    def _cut(self, data: bytes) -> tuple[pa.Array, pa.Array]:
        """Pieces of lines of which some are too long."""
        pieces: list[bytes] = []
        self._places = []
        byte = 0
        for number, line in enumerate(data.removesuffix(b"\n").split(b"\n")):
            offset = byte
            for part in line.split(b"\r"):
                for begin in range(0, len(part), PIECE_BYTES):
                    pieces.append(_cleaned(part[begin : begin + PIECE_BYTES]))
                    self._places.append((number, offset + begin))
                offset += len(part) + 1
            byte += len(line) + 1
            if not line:
                pieces.append(b"")
                self._places.append((number, offset - 1))
        words = [piece.translate(None, DIGITS) for piece in pieces]
        return pa.array(pieces, pa.binary()), pa.array(words, pa.binary())


def _cleaned(data: bytes) -> bytes:
    """Without control sequences, zeros and the byte order marks that files leave inside when they are joined."""
    return ANSI.sub(b"", data).translate(None, b"\0").replace(codecs.BOM_UTF8, b"")


def joined(pieces: pa.Array) -> bytes:
    """Pieces as lines."""
    text: bytes = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(pieces)], pa.int32()), pieces), b"\n")[
        0
    ].as_py()
    return text


def _split(data: bytes, ended: bool) -> pa.Array:
    """What lies between line feeds. `ended`: nothing lies after the last one."""
    parts = pc.split_pattern(pa.array([data], pa.binary()), b"\n").flatten()
    return parts[:-1] if ended else parts


def _offsets(array: pa.Array) -> memoryview:
    return memoryview(array.buffers()[1]).cast("i")[array.offset :]


def decoded(data: bytes) -> str:
    """The beginning of a log as text."""
    encoding = encoding_of(data)
    text = data.decode(encoding or "utf-8", "replace").replace("\ufeff", "")
    plain = text.encode("utf-8", "replace")
    found = unwrap(plain) if holds_records(plain) else None
    return ANSI_TEXT.sub("", text if found is None else found.text.decode("utf-8", "replace"))


def read_blocks(stream: BinaryIO, decoder: LineDecoder | None = None) -> Iterator[Block]:
    """Blocks of a stream in order. UTF-16 is transcoded; from its first block on, bytes are not counted."""
    data, n_zeros = past_zeros(stream, stream.read(LOOKED_AT), LOOKED_AT)
    encoding = encoding_of(data)
    byte: int | None = None if encoding else n_zeros
    if encoding:
        stream, data = io.BufferedReader(Transcoded(stream, data, encoding), buffer_size=1 << 20), b""
    elif data.startswith(codecs.BOM_UTF8):
        byte, data = n_zeros + len(codecs.BOM_UTF8), data[len(codecs.BOM_UTF8) :]
    number, ended = 1, False
    decoder = decoder or LineDecoder()
    while data or not ended:
        more = stream.read(BLOCK_BYTES)
        left, ended = data + more, not more
        if byte is not None and holds_utf16(left):
            stream = io.BufferedReader(Transcoded(stream, left, None), buffer_size=1 << 20)
            byte, data, ended = None, b"", False
            continue
        size = len(left) if ended else _whole_lines(left)
        data, left = left[:size], left[size:]
        if data:
            block, n_feeds = _block(data, number, byte, decoder)
            block.is_last = ended
            if not data.isascii():
                decoder.study(block.words, block.first_line)
            yield block
            number += n_feeds
            byte = None if byte is None else byte + len(data)
        data = left


def _block(data: bytes, number: int, byte: int | None, decoder: LineDecoder) -> tuple[Block, int]:
    """A block, and how many line feeds the log has there."""
    unwrapped = unwrap(data) if holds_records(data) else None
    if unwrapped is not None:
        return Block(unwrapped.text, number, byte, unwrapped, decoder=decoder), data.count(b"\n")
    block = Block(data, number, byte, decoder=decoder)
    return block, block.n_feeds


def _whole_lines(data: bytes) -> int:
    """How much of what was read so far is not the last part of the log, in whole lines.

    Of a very long line less; the next block's pieces keep its number.
    """
    longest = len(data) - LAST_BYTES
    end = data.rfind(b"\n", 0, max(longest, 0)) + 1
    return longest if not end and longest >= 2 * BLOCK_BYTES else end
