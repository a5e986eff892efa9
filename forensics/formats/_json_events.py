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
_CUT_BUDGET = 4 << 20  # bytes looked at to find one cut
_END_BUDGET = 64 << 20  # bytes looked at to find the end of an array in one chunk

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb"\}\s*,\s*(?=\{)")
# Possessive throughout, so that it is linear: anything up to the next bracket outside of strings.
_IN_STRING = rb'[^"\\\n]*+(?:\\.[^"\\\n]*+)*+'
_TO_BRACKET = re.compile(rb'(?:[^{}\[\]"]++|"' + _IN_STRING + rb'"|"(?=' + _IN_STRING + rb"\n))*+([{}\[\]])")
_PHASE = re.compile(rb'"ph"\s*:')
_EVENT_KEY = re.compile(rb'\{\s*"(?:ph|name|cat|pid|tid|ts|args)"\s*:')
_END = re.compile(rb"\}[\s,]*+\]")
_EMPTY = re.compile(rb"\s*\]")
_AFTER_END = re.compile(rb'\s*(?:\}|\]|\{|,\s*(?:"[^"\\\n]{0,200}"\s*:|[\]}])|,?\s*\Z)')
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


class _CutTest:
    """Tells places between two events from places between other objects, within a budget."""

    def __init__(self, data: bytes, limit: int) -> None:
        self._data = data
        self._limit = limit
        self._budget = _CUT_BUDGET
        self.likely: tuple[int, int] | None = None  # the first place asked about whose object looks like an event

    @property
    def spent(self) -> bool:
        return self._budget < 0

    def passes(self, cut: tuple[int, int]) -> bool:
        """Whether the object after the cut is an event, complete before the limit."""
        start = cut[1]
        limit = min(self._limit, start + _PROBE_BYTES)
        end = event_end(self._data, start, limit)
        self._budget -= (limit if end < 0 else end) - start
        if self.likely is None and _EVENT_KEY.match(self._data, start, limit):
            self.likely = cut
        return end > 0 and _PHASE.search(self._data, start, end) is not None


def next_cut(data: bytes, position: int, limit: int) -> tuple[int, int] | None:
    """End of one event and start of the next, the first such place from `position` on."""
    test = _CutTest(data, limit)
    for found in _CUT.finditer(data, position, limit):
        cut = found.start() + 1, found.end()
        if test.passes(cut):
            return cut
        if test.spent:
            return test.likely
    return None


def last_cut(data: bytes, position: int) -> tuple[int, int] | None:
    """The last place between two events of which the second is complete; in long damaged data, one that looks so."""
    test = _CutTest(data, len(data))
    for window in (1 << 16, 1 << 20, len(data)):
        start = max(position, len(data) - window)
        for found in reversed(list(_CUT.finditer(data, start))):
            cut = found.start() + 1, found.end()
            if test.passes(cut):
                return cut
            if test.spent:
                break
        if start == position or test.spent:
            break
    return test.likely if len(data) - position > 2 * CHUNK_BYTES else None


def array_end(data: bytes, position: int) -> tuple[int, int] | None:
    """Index after the array's last event and index after its closing bracket, when both are in `data`."""
    empty = _EMPTY.match(data, position)
    if empty:
        return position, empty.end()
    budget = _END_BUDGET
    for found in _END.finditer(data, position):
        closes = None
        if budget > 0:
            closes, looked_at = _closes_array(data, position, found.start() + 1)
            budget -= looked_at
        follows = _AFTER_END if closes else _AFTER_ARRAY
        if closes is not False and follows.match(data, found.end()):
            return found.start() + 1, found.end()
    return None


def _closes_array(data: bytes, position: int, end: int) -> tuple[bool | None, int]:
    """Whether an event ends at `end`, None when what is before is too damaged to say; and how much was looked at."""
    looked_at = 0
    for window in (1 << 12, 1 << 15, _PROBE_BYTES):
        start = max(position, end - window)
        opens = [found.end() for found in _CUT.finditer(data, start, end)][-8:]
        if start == position:
            opens.insert(0, data.find(b"{", position, end))
        looked_at += end - start
        for opened in reversed(opens):
            if opened < 0:
                continue
            limit = min(len(data), end + _PROBE_BYTES)
            stop = event_end(data, opened, limit)
            looked_at += (limit if stop < 0 else stop) - opened
            if not _PHASE.search(data, opened, end if stop < 0 else min(stop, end)):
                continue
            if stop == end:
                return True, looked_at
            if stop < 0 or stop > end:
                # Inside of an event, unless a quote in it was not escaped.
                return (None if _AFTER_ARRAY.match(data, end) else False), looked_at
        if opens or start == position:
            break
    return None, looked_at


@dataclass(frozen=True)
class Piece:
    """Whole events, without brackets around them."""

    data: bytes
    start: int
    end: int
    byte: int  # offset of `start` in the stream


class EventStream:
    """Reads a stream once. After `chunks` is exhausted, `texts` holds what stood before, between and after arrays."""

    def __init__(self, stream: BinaryIO, *, inside_at: int | None = None, chunk_bytes: int = 0) -> None:
        """`inside_at`: the stream is at this offset already, at an event inside of an array."""
        self._stream = stream
        self._chunk_bytes = chunk_bytes or CHUNK_BYTES
        self._inside = inside_at is not None
        self._data = b""
        self._offset = inside_at or 0  # of _data[0]
        self._at = 0  # next unread index in _data
        self.ended = False  # all of the stream is read
        self.texts: list[bytes] = []
        self.array_bytes: list[int] = []  # offset of the first byte inside each array
        self.cut_byte: int | None = None  # where whole events end, when the stream ends inside an array
        self.lost_bytes = 0  # after cut_byte
        self.given_up = False  # events behind cut_byte are there, but were not read
        self.skipped_at: int | None = None  # where the array seemed to end before its last events
        self.skipped_bytes = 0
        self.oversized = False

    def chunks(self) -> Iterator[list[Piece]]:
        """Pieces in the order of the stream, a bounded number at a time; `len(array_bytes) - 1` is their array."""
        while self._find_array():
            yield from self._array()

    def give_up(self, byte: int) -> None:
        """Reads on without events, which end for the reader at this offset, to what stands behind them.

        Where memory does not suffice even for that, what stands behind them is lost too.
        """
        self.given_up = True
        self._chunk_bytes = min(self._chunk_bytes, PIECE_BYTES)
        try:
            if self.array_bytes and not self.ended:
                for _ in self._array():
                    pass
                for _ in self.chunks():
                    pass
        except MemoryError:
            self.ended = True
        self.cut_byte, self.lost_bytes = byte, self._offset + self._at - byte

    def _more(self) -> None:
        """Drops what was read and appends the next chunk."""
        fresh = self._stream.read(self._chunk_bytes)
        self.ended = len(fresh) < self._chunk_bytes
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
            if self.ended or len(self._data) - self._at > TEXT_BYTES:
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
                if not self._goes_on():
                    return
                continue
            if self.ended:
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

    def _goes_on(self) -> bool:
        """Whether more events follow: then a stray bracket ended the array, and the event that holds it is skipped."""
        limit = min(len(self._data), self._at + _PROBE_BYTES)
        array = _ARRAY.search(self._data, self._at, limit)
        cut = next_cut(self._data, self._at, array.start() if array else limit)
        if cut is None:
            return False
        if self.skipped_at is None:
            self.skipped_at = self._offset + self._at
        self.skipped_bytes += cut[1] - self._at
        self._at = cut[1]
        return True

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
        self.ended = True
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
