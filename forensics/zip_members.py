"""Reads zip archives, whole or cut: by their directory, and where that is lost by the header before each member.

Only the directory says which members are links. Sizes in headers are claims; what counts is what is there.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from forensics.compression import DECODERS, Decoder

LOCAL, _CENTRAL, _END, _END64, _DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x07\x08"
_LOCAL = struct.Struct("<4s5H3L2H")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_TAIL_BYTES = (1 << 16) + 22 + 20 + 56  # the longest comment, and the records before it
_CHUNK = 1 << 16
_IN_EXTRA = 0xFFFFFFFF  # a size or offset that stands in the zip64 field
_METHODS = {8: "deflate", 12: "bzip2", 93: "zstd", 20: "zstd"}
_STORED = 0


@dataclass(frozen=True)
class ZipEntry:
    """What the archive says of one member. `packed`: bytes in the archive; None where its header leaves that open."""

    name: bytes
    is_utf8: bool
    encrypted: bool
    method: int
    packed: int | None
    crc: int | None
    header: int  # offset of the local header
    mode: int = 0  # of Unix, 0 when not given

    @property
    def is_folder(self) -> bool:
        return self.name.endswith(b"/")

    @property
    def readable(self) -> bool:
        return self.method == _STORED or self.method in _METHODS


def read_directory(file: BinaryIO) -> list[ZipEntry] | None:
    """The members by the archive's directory; None where it is missing, cut or leads nowhere."""
    size = file.seek(0, 2)
    base = max(0, size - _TAIL_BYTES)
    file.seek(base)
    tail = file.read(_TAIL_BYTES)
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        return None
    count, n_bytes, offset = struct.unpack_from("<HLL", tail, at + 10)
    end = base + at
    at64 = tail.rfind(_END64, 0, at)
    if at64 >= 0 and len(tail) >= at64 + 56:
        count, n_bytes, offset = struct.unpack_from("<QQQ", tail, at64 + 32)
        end = base + at64
    # Bytes may stand before the archive; offsets then count from where it begins.
    shift = end - n_bytes - offset
    if shift < 0:
        return None
    file.seek(offset + shift)
    entries: list[ZipEntry] = []
    while len(entries) < count:
        entry = _read_entry(file, shift)
        if entry is None:
            return None
        entries.append(entry)
    return entries


def _read_entry(file: BinaryIO, shift: int) -> ZipEntry | None:
    data = file.read(_ENTRY.size)
    if len(data) < _ENTRY.size or data[:4] != _CENTRAL:
        return None
    _, made_by, _, flags, method, _, _, crc, packed, size, n_name, n_extra, n_comment, _, _, attributes, header = (
        _ENTRY.unpack(data)
    )
    name, extra = file.read(n_name), file.read(n_extra)
    file.seek(n_comment, 1)
    wide = _wide(extra)
    if size == _IN_EXTRA and wide:
        wide.pop(0)
    if packed == _IN_EXTRA and wide:
        packed = wide.pop(0)
    if header == _IN_EXTRA and wide:
        header = wide.pop(0)
    mode = attributes >> 16 if made_by >> 8 == 3 else 0  # 3: made on Unix
    return ZipEntry(name, bool(flags & 0x800), bool(flags & 1), method, packed, crc, header + shift, mode)


def _wide(extra: bytes) -> list[int]:
    """The numbers of the zip64 field."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            data = extra[at + 4 : at + 4 + size]
            return [number for (number,) in struct.iter_unpack("<Q", data[: len(data) // 8 * 8])]
        at += 4 + size
    return []


def find_header(file: BinaryIO, start: int) -> int | None:
    """Offset of the first local header at or behind `start`."""
    file.seek(start)
    kept = b""
    while chunk := file.read(1 << 20):
        data = kept + chunk
        at = data.find(LOCAL)
        if at >= 0:
            return start + at
        kept = data[-3:]
        start += len(data) - len(kept)
    return None


def read_header(file: BinaryIO, offset: int) -> tuple[ZipEntry, int] | None:
    """The member whose local header is at `offset`, and where its data begins; None where there is none."""
    file.seek(offset)
    data = file.read(_LOCAL.size)
    if len(data) < _LOCAL.size or data[:4] != LOCAL:
        return None
    _, _, flags, method, _, _, crc, packed, size, n_name, n_extra = _LOCAL.unpack(data)
    name, extra = file.read(n_name), file.read(n_extra)
    if len(name) < n_name:
        return None
    wide = _wide(extra)
    if packed == _IN_EXTRA and size == _IN_EXTRA and len(wide) > 1:
        packed = wide[1]
    open_end = bool(flags & 8) and not packed  # what the data says comes behind it, in a descriptor
    entry = ZipEntry(
        name,
        bool(flags & 0x800),
        bool(flags & 1),
        method,
        None if open_end else packed,
        None if open_end else crc,
        offset,
    )
    return entry, offset + _LOCAL.size + n_name + n_extra


def copy_member(file: BinaryIO, entry: ZipEntry, start: int, write: Callable[[bytes], None]) -> tuple[int, str]:
    """Writes the content of a member whose data begins at `start`; where it ends, and what is wrong with it."""
    file.seek(start)
    decoder = DECODERS[_METHODS[entry.method]]() if entry.method != _STORED else None
    crc, wrong, end = 0, "", start
    try:
        pieces = _decoded(file, entry, decoder) if decoder else _stored(file, entry)
        for piece, position in pieces:
            end = position
            crc = zlib.crc32(piece, crc)
            write(piece)
    except (EOFError, ValueError, OSError) as error:
        return end, str(error)
    if entry.crc is not None and crc != entry.crc:
        wrong = "its checksum does not match"
    return end, wrong


def _decoded(file: BinaryIO, entry: ZipEntry, decoder: Decoder) -> Iterator[tuple[bytes, int]]:
    left, position = entry.packed, file.tell()
    while not decoder.eof:
        chunk = file.read(_CHUNK if left is None else min(_CHUNK, left))
        if not chunk:
            raise EOFError("its data ends early")
        left = None if left is None else left - len(chunk)
        position += len(chunk)
        pieces = decoder.pieces(chunk)
        piece: bytes | None = b""
        while piece is not None:
            yield piece, position - len(decoder.unused)
            try:
                piece = next(pieces, None)
            except Exception as error:  # isal, bz2 and zstandard each raise types of their own
                raise ValueError(f"its data is damaged ({error})") from error


def _stored(file: BinaryIO, entry: ZipEntry) -> Iterator[tuple[bytes, int]]:
    if entry.packed is None:
        yield from _stored_to_descriptor(file)
        return
    left, position = entry.packed, file.tell()
    while left:
        chunk = file.read(min(_CHUNK, left))
        if not chunk:
            raise EOFError("its data ends early")
        left -= len(chunk)
        position += len(chunk)
        yield chunk, position


def _stored_to_descriptor(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Stored data of unknown length: up to a descriptor that names just this length."""
    position, kept, done = file.tell(), b"", 0
    while True:
        chunk = file.read(_CHUNK)
        data = kept + chunk
        at = data.find(_DESCRIPTOR)
        while at >= 0 and at + 16 <= len(data):
            if struct.unpack_from("<L", data, at + 8)[0] == (done + at) & 0xFFFFFFFF:
                yield data[:at], position + done + at
                return
            at = data.find(_DESCRIPTOR, at + 4)
        if not chunk:
            yield data, position + done + len(data)
            raise EOFError("its data ends early")
        n_given = max(0, len(data) - 23)
        yield data[:n_given], position + done + n_given
        done += n_given
        kept = data[n_given:]
