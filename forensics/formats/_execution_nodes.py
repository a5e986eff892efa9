"""Reads the nodes of a PyTorch execution trace one by one from a stream of any size.

Nodes are cut where an object ends and the next begins with the key with which the first one began; the pieces between
are parsed whole. Only a piece that is no JSON is gone through node by node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import orjson

from forensics.formats._json_events import event_end
from forensics.formats._lenient_json import JsonError, parse_json

PIECE_BYTES = 1 << 20
NODE_BYTES = 64 << 20  # no node is longer: beyond, the rest of the stream is given up
_CHUNK_BYTES = 4 << 20
_MAX_HEADER_BYTES = 16 << 20
_NODES = re.compile(rb'"nodes"\s{0,100}:\s{0,100}\[')
_FIRST_KEY = re.compile(rb'\s{0,1000}\{\s{0,1000}"([A-Za-z_]{1,40})"')


class NodeStream:
    """After `nodes` is exhausted, `header` and `tail` hold what stood around the array, and the rest what was lost."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._data = b""
        self._byte = 0  # offset of _data[0]
        self.header = b""
        self.tail = b""
        self.found = False
        self.closed = False  # the array's end was there
        self.cut_byte: int | None = None
        self.lost_bytes = 0
        self.bad: list[int] = []  # offsets of the first nodes that are no JSON
        self.n_bad = 0

    def nodes(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(byte or that of a piece which holds it, node) in the order of the file."""
        if not self._find():
            return
        while not (first := _FIRST_KEY.match(self._data)) and self._more():
            if len(self._data) > 1 << 16:
                break
        key = first[1] if first else b"id"
        cut = re.compile(rb'\}\s{0,1000},\s{0,1000}(?=\{\s{0,1000}"' + key + rb'")')
        while True:
            found = cut.search(self._data, PIECE_BYTES)
            if found:
                yield from self._piece(self._data[: found.start() + 1], self._byte)
                self._drop(found.end())
            elif len(self._data) > NODE_BYTES or not self._more():
                break
        yield from self._last_piece(cut)

    def _find(self) -> bool:
        while not (found := _NODES.search(self._data)):
            if len(self._data) > _MAX_HEADER_BYTES or not self._more():
                self.header = self._data
                return False
        self.header, self.found = self._data[: found.start()], True
        self._drop(found.end())
        return True

    def _more(self) -> bool:
        chunk = self._stream.read(_CHUNK_BYTES)
        self._data += chunk
        return bool(chunk)

    def _drop(self, n: int) -> None:
        self._data = self._data[n:]
        self._byte += n

    def _last_piece(self, cut: re.Pattern[bytes]) -> Iterator[tuple[int, dict[str, Any]]]:
        data, at = self._data, 0
        for found in cut.finditer(data):
            at = found.end()
        start = data.find(b"{", at)
        end = event_end(data, start, len(data)) if start >= 0 else -1
        if end < 0:  # the last node is not whole, or there is none
            whole = data[:at].rstrip(b", \t\r\n")
            yield from self._piece(whole, self._byte)
            rest = data[at:]
            self.closed = rest.lstrip().startswith(b"]")
            if self.closed:
                self.tail = rest.lstrip()[1:]
            else:
                self.cut_byte, self.lost_bytes = self._byte + at, len(rest.strip(b", \t\r\n"))
            return
        yield from self._piece(data[:end], self._byte)
        self.tail = data[end:].lstrip()
        self.closed = self.tail.startswith(b"]")
        self.tail = self.tail[1:]
        if not self.closed:
            self.cut_byte, self.lost_bytes = self._byte + end, len(self.tail.strip(b", \t\r\n"))

    def _piece(self, data: bytes, byte: int) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            values = orjson.loads(b"[" + data + b"]")
        except orjson.JSONDecodeError:
            yield from self._one_by_one(data, byte)
            return
        for value in values:
            if isinstance(value, dict):
                yield byte, value
            else:
                self._note_bad(byte)

    def _one_by_one(self, data: bytes, byte: int) -> Iterator[tuple[int, dict[str, Any]]]:
        at = data.find(b"{")
        while at >= 0:
            end = event_end(data, at, len(data))
            if end < 0:
                self._note_bad(byte + at)
                return
            try:
                value = parse_json(data[at:end].decode("utf-8", "replace"))
                yield byte + at, value
            except JsonError:
                self._note_bad(byte + at)
            at = data.find(b"{", end)

    def _note_bad(self, byte: int) -> None:
        self.n_bad += 1
        if len(self.bad) < 20:
            self.bad.append(byte)
