"""Cuts a stream of trace JSON into pieces of whole events, without parsing it.

Events are the objects of the array `traceEvents` (or of a bare list). Everything here works on damaged input: a
string that does not end on its line is not taken for a string, and the end of the stream may be anywhere. Offsets
are bytes of the decompressed stream.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

CHUNK_BYTES = 16 << 20  # read at once
PIECE_BYTES = 1 << 20  # one piece holds at least this much, where the array is that long
EVENT_BYTES = 64 << 20  # no event is longer: beyond, the rest of the stream is given up
TEXT_BYTES = 64 << 20  # the same for what stands before or after an array
_PROBE_BYTES = 1 << 18  # an event longer than this is never used to check a cut
_CUT_TRIES = 24

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
# Possessive throughout, so that it is linear: anything up to the next bracket outside of strings.
_TO_BRACKET = re.compile(rb'(?:[^{}\[\]"]++|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"|")*+([{}\[\]])')
_PHASE = re.compile(rb'"ph"\s*:')
_EVENT_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:')
_END = re.compile(rb"\}[\s,]*+\]")
_EMPTY = re.compile(rb"\s*\]")
_AFTER_ARRAY = re.compile(
    rb'\s*,\s*"(?:traceName|displayTimeUnit|baseTimeNanoseconds|distributedInfo|schemaVersion|deviceProperties'
    rb'|trace_id|INFO|WARNING|ERROR|VERBOSE|STAGE|USDT)"\s*:|\s*\}\s*\Z'
)


def event_end(data: bytes, start: int, limit: int) -> int:
    """Index after the bracket that closes the object at `start`; -1 when it is not closed before `limit`."""
    depth = 0
    at = start
    while True:
        found = _TO_BRACKET.match(data, at, limit)
        if found is None:
            return -1
        at = found.end()
        depth += 1 if data[at - 1] in b"{[" else -1
        if depth <= 0:
            return at


def is_cut(data: bytes, start: int, limit: int) -> bool:
    """Whether the object at `start` is an event of its own, complete before `limit`."""
    end = event_end(data, start, min(limit, start + _PROBE_BYTES))
    return end > 0 and _PHASE.search(data, start, end) is not None


def next_cut(data: bytes, position: int, limit: int) -> tuple[int, int] | None:
    """End of one event and start of the next, the first such place from `position` on."""
    fallback = None
    for tries, found in enumerate(_CUT.finditer(data, position, limit), 1):
        if is_cut(data, found.end(), limit):
            return found.start() + 1, found.end()
        if fallback is None and _EVENT_KEY.match(data, found.end(), limit):
            fallback = found.start() + 1, found.end()
        if tries >= _CUT_TRIES:
            return fallback
    return None


def last_cut(data: bytes, position: int) -> tuple[int, int] | None:
    """The last place between two events of which the second is complete."""
    for window in (1 << 16, 1 << 20, len(data)):
        start = max(position, len(data) - window)
        cuts = list(_CUT.finditer(data, start))[-_CUT_TRIES:]
        for found in reversed(cuts):
            if is_cut(data, found.end(), len(data)):
                return found.start() + 1, found.end()
        for found in reversed(cuts):
            if _EVENT_KEY.match(data, found.end()):
                return found.start() + 1, found.end()
        if start == position:
            break
    return None


def array_end(data: bytes, position: int) -> tuple[int, int] | None:
    """Index after the array's last event and index after its closing bracket, when both are in `data`."""
    empty = _EMPTY.match(data, position)
    if empty:
        return position, empty.end()
    for found in _END.finditer(data, position):
        closes = _closes_array(data, position, found.start() + 1)
        if closes or (closes is None and _AFTER_ARRAY.match(data, found.end())):
            return found.start() + 1, found.end()
    return None


def _closes_array(data: bytes, position: int, end: int) -> bool | None:
    """Whether an event ends at `end`; None when the events before it are too damaged to say."""
    for window in (1 << 12, _PROBE_BYTES):
        start = max(position, end - window)
        opens = [found.end() for found in _CUT.finditer(data, start, end)][-8:]
        if start == position:
            opens.insert(0, data.find(b"{", position, end))
        for opened in reversed(opens):
            if opened < 0:
                continue
            stop = event_end(data, opened, end)
            if _PHASE.search(data, opened, end if stop < 0 else stop):
                if stop == end:
                    return True
                if stop < 0:
                    # Inside of an event, unless a quote in it was not escaped.
                    return None if _AFTER_ARRAY.match(data, end) else False
        if opens or start == position:
            return None
    return None


@dataclass(frozen=True)
class Piece:
    """Whole events, without brackets around them."""

    data: bytes
    start: int
    end: int
    byte: int  # offset of `start` in the stream


class EventStream:
    """Reads a stream once. After `chunks` is exhausted, `texts` holds what stood before, between and after arrays."""

    def __init__(self, stream: BinaryIO, *, inside_at: int | None = None) -> None:
        """`inside_at`: the stream is at this offset already, at an event inside of an array."""
        self._stream = stream
        self._inside = inside_at is not None
        self._data = b""
        self._offset = inside_at or 0  # of _data[0]
        self._at = 0  # next unread index in _data
        self._eof = False
        self.texts: list[bytes] = []
        self.array_bytes: list[int] = []  # offset of the first byte inside each array
        self.cut_byte: int | None = None  # where whole events end, when the stream ends inside an array
        self.lost_bytes = 0
        self.oversized = False

    def chunks(self) -> Iterator[list[Piece]]:
        """Pieces in the order of the stream, a bounded number at a time; `len(array_bytes) - 1` is their array."""
        while self._find_array():
            yield from self._array()

    def _more(self) -> None:
        """Drops what was read and appends the next chunk."""
        fresh = self._stream.read(CHUNK_BYTES)
        self._eof = not fresh
        self._data = self._data[self._at :] + fresh
        self._offset += self._at
        self._at = 0

    def _find_array(self) -> bool:
        if not self.array_bytes and not self._data:
            self._more()
            if self._inside:
                self._start_array(0, 0)
                return True
        while True:
            found = _ARRAY.search(self._data, self._at)
            if found:
                self._start_array(found.start(), found.end())
                return True
            if not self.array_bytes and self._data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
                bracket = self._data.index(b"[")
                self._start_array(bracket, bracket + 1)
                return True
            if self._eof or len(self._data) - self._at > TEXT_BYTES:
                self.texts.append(self._data[self._at :][:TEXT_BYTES])
                return False
            self._more()

    def _start_array(self, text_end: int, start: int) -> None:
        self.texts.append(self._data[self._at : text_end])
        self._at = start
        self.array_bytes.append(self._offset + start)

    def _array(self) -> Iterator[list[Piece]]:
        while True:
            end = array_end(self._data, self._at)
            if end:
                yield self._pieces(end[0])
                self._at = end[1]
                return
            if self._eof:
                yield self._tail()
                return
            if len(self._data) - self._at > EVENT_BYTES:
                self.oversized = True
                yield self._tail()
                return
            cut = last_cut(self._data, self._at)
            if cut:
                yield self._pieces(cut[0])
                self._at = cut[1]
            self._more()

    def _tail(self) -> list[Piece]:
        """What is whole of an array that does not end."""
        start, size = self._at, len(self._data)
        cut = last_cut(self._data, start)
        opened = self._data.find(b"{", cut[0] if cut else start)
        end = event_end(self._data, opened, size) if opened >= 0 else -1
        if end < 0:
            end = cut[0] if cut else start
        pieces = self._pieces(end)
        self.cut_byte = self._offset + end
        self.lost_bytes = len(self._data[end:].strip(b" \t\r\n,"))
        self._at = size
        self._eof = True
        return pieces

    def _pieces(self, end: int) -> list[Piece]:
        pieces = []
        start = self._at
        while start < end:
            cut = next_cut(self._data, start + PIECE_BYTES, end) if end - start > 2 * PIECE_BYTES else None
            stop = cut[0] if cut else end
            if not self._data[start : min(stop, start + 64)].isspace():
                pieces.append(Piece(self._data, start, stop, self._offset + start))
            start = cut[1] if cut else end
        return pieces
