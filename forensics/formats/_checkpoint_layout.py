"""What the readers of checkpoints hand on: where each tensor lies in its file, and what is wrong with the file.

Positions are of the decompressed file. A file is read at places, never mapped: one that is cut under a mapping would
end the process.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO

from forensics.artifact import Source
from forensics.compression import compression_of
from forensics.errors import ArtifactError

MAX_TENSORS = 500_000
MAX_NAME = 1000
_MAX_UNPACKED = 4 << 30  # some seconds of decompressing
# Bits of one element, by torch's names.
BITS = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 64),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 32),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int8", "uint8", "bool", "qint8", "quint8"), 8),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 8),
    **dict.fromkeys(("float6_e2m3", "float6_e3m2"), 6),
    "float4_e2m1": 4,
    "complex128": 128,
}
# Faults of single tensors, the worst first.
FAULTS = ("outside", "no-data", "cut", "wrong-size", "overlapping", "wrong-checksum")


@dataclass(slots=True)
class StoredTensor:
    """`start`: of its first element; None where the file has no data for it. `n_bytes`: from there to its last byte.

    `stride`: in elements; None where its elements follow each other without gaps in the order of the last index.
    `fault`: one of FAULTS. `file`: of an index, the shard that is to hold it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int | None
    n_bytes: int
    device: str | None = None
    storage: str | None = None
    stride: tuple[int, ...] | None = None
    fault: str | None = None
    file: str | None = None

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class Problem:
    """What is wrong with the file as a whole; `code` is one of `checkpoint.damage`."""

    code: str
    message: str
    hides: str
    byte: int | None = None


@dataclass
class Layout:
    """One file of a checkpoint. `settings`: numbers and texts that it holds beside its tensors."""

    kind: str
    tensors: list[StoredTensor] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    step: int | None = None
    n_said: int | None = None  # tensors that it announces, where it does
    byteorder: str = "<"

    def add(self, code: str, message: str, hides: str, byte: int | None = None) -> None:
        self.problems.append(Problem(code, message, hides, byte))


@contextmanager
def at_places(source: Source) -> Iterator[tuple[BinaryIO, int]]:
    """The decompressed file, which can be read at any place, and its size. What is compressed is unpacked to a file.

    Raises ArtifactError where that would take more room than it may: half a file would look like a damaged one.
    """
    with source.path.open("rb") as plain:
        if compression_of(plain.read(6)) is None:
            yield plain, plain.seek(0, os.SEEK_END)
            return
    with tempfile.TemporaryFile() as unpacked, source.open() as stream:
        most = min(_MAX_UNPACKED, shutil.disk_usage(tempfile.gettempdir()).free // 2)
        while data := stream.read(1 << 20):
            if unpacked.tell() + len(data) > most:
                room = f"more than {most / (1 << 30):.2g} GiB"
                raise ArtifactError(f"{source.name}: unpacks to {room}; decompress it and analyze that file", byte=0)
            unpacked.write(data)
        yield unpacked, unpacked.tell()


def read_at(file: BinaryIO, start: int, n_bytes: int) -> bytes:
    """Up to `n_bytes` from a place; less where the file ends."""
    file.seek(start)
    return file.read(n_bytes)


def shape_of(value: Any) -> tuple[int, ...] | None:
    """A shape out of a file, when it can be one."""
    if not isinstance(value, list | tuple) or len(value) > 64:
        return None
    if any(type(size) is not int or not 0 <= size < 1 << 48 for size in value):
        return None
    return tuple(value) if prod(value) < 1 << 60 else None


def mark_places(tensors: Iterable[StoredTensor], file_size: int) -> None:
    """Says of each tensor whose data the file does not hold whole that it is `outside` or `cut`."""
    for tensor in tensors:
        if tensor.start is None or tensor.fault or not tensor.n_bytes:
            continue
        if tensor.start < 0 or tensor.start >= file_size:
            tensor.fault = "outside"
        elif tensor.start + tensor.n_bytes > file_size:
            tensor.fault = "cut"


def lost(tensors: Sequence[StoredTensor]) -> list[StoredTensor]:
    """Those whose values cannot be had as they were saved."""
    return [tensor for tensor in tensors if tensor.fault]
