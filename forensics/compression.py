"""Reads compressed streams: gzip, zstd, xz, bzip2 and LZ4 frames, concatenated or cut, never more than a bound.

No decoder hands over more than a few MiB at a time, whatever the compressed bytes ask for.
"""

from __future__ import annotations

import bz2
import lzma
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

MAX_UNPACKED_BYTES = 200 << 30
MAX_RATIO = 500  # the densest real traces compress about 60:1
_PIECE_BYTES = 1 << 20
_AHEAD_PIECES = 8  # of _PIECE_BYTES: unpacked before they are asked for
_ZSTD_BYTES = 512  # a block of 4 bytes may unpack to 128 KiB, so this many to 16 MiB at most
_XZ_MEMORY = 1 << 30  # the largest preset needs 65 MiB
_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
}
_UNOPENED = {
    b"7z\xbc\xaf\x27\x1c": "7z archive",
    b"Rar!\x1a\x07": "RAR archive",
    b"\x1f\x9d": "file of compress (.Z)",
    b"LZIP": "lzip file",
    b"\x89LZO\x00": "lzop file",
    b"hsqs": "SquashFS image",
    b"070701": "cpio archive",
    b"070707": "cpio archive",
}


def compression_of(start: bytes) -> str | None:
    """Name of the compression whose stream begins with these bytes (six are enough)."""
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)


def unopened_kind(start: bytes) -> str | None:
    """What the bytes begin that holds files or compressed data, but is of a kind that is not opened here."""
    return next((name for magic, name in _UNOPENED.items() if start.startswith(magic)), None)


def allowed_bytes(n_bytes: int) -> int:
    """How much a compressed file or archive of this size may unpack to."""
    return min(MAX_UNPACKED_BYTES, max(n_bytes, 1 << 20) * MAX_RATIO)


class Decoder(Protocol):
    """One compressed stream. `unused`: what was given beyond its end."""

    eof: bool
    unused: bytes

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What the next compressed bytes unpack to; take all of it before giving more."""


class _Deflate:
    def __init__(self, wbits: int) -> None:
        from isal import isal_zlib

        self._decoder = isal_zlib.decompressobj(wbits)
        self.eof, self.unused = False, b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while not self.eof:
            piece = self._decoder.decompress(data, _PIECE_BYTES)
            self.eof, self.unused = self._decoder.eof, self._decoder.unused_data
            data = self._decoder.unconsumed_tail
            if piece:
                yield piece
            elif not data:
                return


class _Stdlib:
    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self.eof, self.unused = False, b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while True:
            piece = self._decoder.decompress(data, _PIECE_BYTES)
            data = b""
            self.eof, self.unused = self._decoder.eof, self._decoder.unused_data
            if piece:
                yield piece
            if self.eof or self._decoder.needs_input:
                return


class _Zstd:
    def __init__(self) -> None:
        import zstandard

        self._decoder = zstandard.ZstdDecompressor().decompressobj()
        self.eof, self.unused = False, b""

    def pieces(self, data: bytes) -> Iterator[bytes]:
        for start in range(0, len(data), _ZSTD_BYTES):
            piece = self._decoder.decompress(data[start : start + _ZSTD_BYTES])
            if self._decoder.eof:
                self.eof, self.unused = True, self._decoder.unused_data + data[start + _ZSTD_BYTES :]
            if piece:
                yield piece
            if self.eof:
                return


DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": lambda: _Deflate(31),  # 31: with gzip's header and checksum
    "deflate": lambda: _Deflate(-15),  # bare, as in zip
    "zstd": _Zstd,
    "xz": lambda: _Stdlib(lzma.LZMADecompressor(memlimit=_XZ_MEMORY)),
    "bzip2": lambda: _Stdlib(bz2.BZ2Decompressor()),
}


def open_compressed(kind: str, file: BinaryIO) -> Any:
    """An object whose `read(size)` gives what the file unpacks to; it raises where the data is cut or damaged."""
    if kind == "lz4":
        import pyarrow as pa

        return pa.CompressedInputStream(pa.PythonFile(file, "r"), "lz4")
    return _Members(file, DECODERS[kind])


class _Members:
    """Concatenated gzip members, zstd frames, xz or bzip2 streams, as far as they go; EOFError where one is cut.

    Unlike the libraries' file objects it hands over what was decompressed before the damage, to the last byte.
    """

    def __init__(self, file: BinaryIO, start: Callable[[], Decoder]) -> None:
        self._file, self._start = file, start
        self._decoder = start()
        self._pieces: Iterator[bytes] = iter(())
        self._ready = memoryview(b"")
        self._used = False  # the current member has got data

    def read(self, size: int) -> bytes:
        while not self._ready:
            piece = next(self._pieces, None)
            if piece is not None:
                self._ready = memoryview(piece)
            elif not self._go_on():
                return b""
        data, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return data

    def _go_on(self) -> bool:
        """Gives the decoder more data, or the rest to the next one; False at the end of the file."""
        chunk = self._decoder.unused if self._decoder.eof else b""
        if self._decoder.eof:
            self._decoder.unused = b""
        chunk = chunk or self._file.read(1 << 16)
        if not chunk:
            if self._used and not self._decoder.eof:
                raise EOFError("ended before the end-of-stream marker was reached")
            return False
        if self._decoder.eof:
            if not chunk.strip(b"\0"):  # padding between and after streams
                return True
            self._decoder, self._used = self._start(), False
        self._used = True
        self._pieces = self._decoder.pieces(chunk)
        return True


class ReadAhead:
    """Unpacks on a thread of its own, a bounded number of pieces ahead, while what was unpacked is worked on.

    An error comes when all that was unpacked before it has been read. `close` ends the thread.
    """

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._changed = threading.Condition()
        self._pieces: deque[bytes] = deque()
        self._error: Exception | None = None
        self._ended = False  # nothing follows what is in `_pieces`
        self._closed = False
        self._first = b""  # what is left of the piece being read
        self._thread = threading.Thread(target=self._run, name="forensics-unpack", daemon=True)
        self._thread.start()

    def read(self, size: int) -> bytes:
        if not self._first:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._ended)
                if self._pieces:
                    self._first = self._pieces.popleft()
                    self._changed.notify()
                elif self._error is not None:
                    raise self._error
        data, self._first = self._first[:size], self._first[size:]
        return data

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        more = True
        while more:
            piece, more = self._next_piece()
            with self._changed:
                self._changed.wait_for(lambda: len(self._pieces) < _AHEAD_PIECES or self._closed)
                if piece:
                    self._pieces.append(piece)
                more = more and not self._closed
                self._ended = not more
                self._changed.notify()

    def _next_piece(self) -> tuple[bytes, bool]:
        """Small ones joined, since each costs a change of threads; and whether more follow."""
        parts: list[bytes] = []
        n_bytes = 0
        try:
            while n_bytes < _PIECE_BYTES:
                part = self._reader.read(_PIECE_BYTES)
                if not part:
                    return b"".join(parts), False
                parts.append(part)
                n_bytes += len(part)
        except Exception as error:  # of whichever library unpacks; raised again where the data is read
            self._error = error
            return b"".join(parts), False
        return b"".join(parts), True
