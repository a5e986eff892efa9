"""Values of stored tensors: decoded by numpy a chunk at a time, and what they add up to.

bfloat16 and float8 have no type in numpy: bfloat16 is the upper half of a float32, float8_e5m2 that of a float16; for
the other float8 types their 256 values are looked up.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from typing import Any, BinaryIO

import numpy as np

from forensics.formats._checkpoint_layout import BITS, StoredTensor

CHUNK_BYTES = 4 << 20
_MAX_STRIDED_BYTES = 256 << 20  # of the stretch that a view with gaps or another order lies in
_PLAIN = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint64": "u8",
    "uint32": "u4",
    "uint16": "u2",
    "uint8": "u1",
    "bool": "u1",
    "qint8": "i1",
    "quint8": "u1",
    "qint32": "i4",
    "complex64": "f4",
    "complex128": "f8",
    "bfloat16": "u2",
}
FLOATS = {name for name in BITS if name.startswith(("float", "bfloat", "complex"))}
# Exponent bits, mantissa bits, bias, and what the largest exponent means.
_FLOAT8 = {
    "float8_e4m3fn": (4, 3, 7, "nan-last"),
    "float8_e4m3fnuz": (4, 3, 8, "nan-minus-zero"),
    "float8_e5m2fnuz": (5, 2, 16, "nan-minus-zero"),
}
_Values = np.ndarray[Any, Any]


def can_be_read(dtype: str) -> bool:
    return dtype in _PLAIN or dtype in _FLOAT8 or dtype in {"float8_e5m2", "float8_e8m0fnu"}


def decode(data: bytes | bytearray, dtype: str, byteorder: str = "<") -> _Values:
    """Elements of a stretch of whole ones; complex ones give two each. bfloat16 and float8 come as float32."""
    if dtype == "bfloat16":
        raw = np.frombuffer(data, f"{byteorder}u2")
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype == "float8_e5m2":
        return (np.frombuffer(data, np.uint8).astype(np.uint16) << 8).view(np.float16)
    if dtype in _FLOAT8 or dtype == "float8_e8m0fnu":
        values: _Values = _table(dtype)[np.frombuffer(data, np.uint8)]
        return values
    return np.frombuffer(data, f"{byteorder}{_PLAIN[dtype]}")


@lru_cache(maxsize=8)
def _table(dtype: str) -> _Values:
    codes = np.arange(256)
    if dtype == "float8_e8m0fnu":
        return np.where(codes == 255, np.nan, np.exp2(codes - 127.0)).astype(np.float32)
    n_exponent, n_mantissa, bias, last = _FLOAT8[dtype]
    exponent, mantissa = (codes >> n_mantissa) & ((1 << n_exponent) - 1), codes & ((1 << n_mantissa) - 1)
    part = mantissa / (1 << n_mantissa)
    size = np.where(exponent == 0, part * 2.0 ** (1 - bias), (1 + part) * 2.0 ** (exponent - bias))
    is_nan = codes & 127 == 127 if last == "nan-last" else codes == 128
    return np.where(is_nan, np.nan, np.where(codes & 128, -size, size)).astype(np.float32)


def chunks(
    file: BinaryIO, tensor: StoredTensor, byteorder: str = "<", first: int = 0, n: int | None = None
) -> Iterator[_Values]:
    """Elements `first` to `first + n` in the order of the last index, a few megabytes at a time.

    Ends early where the file does. Gives nothing of a type that cannot be read, and of views that are too wide.
    """
    size = BITS.get(tensor.dtype, 0) // 8
    if tensor.start is None or not size or not can_be_read(tensor.dtype):
        return
    left = tensor.n_elements - first if n is None else min(n, tensor.n_elements - first)
    if tensor.stride is not None:
        yield from _strided(file, tensor, byteorder, first, left)
        return
    file.seek(tensor.start + first * size)
    while left > 0:
        data = file.read(min(left, CHUNK_BYTES // size) * size)
        n_whole = len(data) // size
        if not n_whole:
            return
        yield decode(data[: n_whole * size], tensor.dtype, byteorder)
        left -= n_whole


def _strided(file: BinaryIO, tensor: StoredTensor, byteorder: str, first: int, left: int) -> Iterator[_Values]:
    if (
        tensor.n_bytes > _MAX_STRIDED_BYTES
        or tensor.n_elements > _MAX_STRIDED_BYTES
        or tensor.dtype.startswith("complex")
    ):
        return
    file.seek(tensor.start or 0)
    data = file.read(tensor.n_bytes)
    if len(data) < tensor.n_bytes or tensor.stride is None:
        return
    values = decode(data, tensor.dtype, byteorder)
    strides = [step * values.itemsize for step in tensor.stride]
    yield np.lib.stride_tricks.as_strided(values, tensor.shape, strides, writeable=False).ravel()[first : first + left]


@dataclass
class Statistics:
    """Of the elements that were added; `n_read` of them. `checksum` only where all were, in their order.

    `places`: of elements whose values are kept in `picked`, rising.
    """

    places: Sequence[int] = ()
    picked: list[float] = field(default_factory=list)

    n_read: int = 0
    n_nan: int = 0
    n_inf: int = 0
    n_zero: int = 0
    absmax: float = 0.0
    _squares: float = 0.0
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))

    def add(self, values: _Values) -> None:
        first = bisect_left(self.places, self.n_read)
        here = self.places[first : bisect_left(self.places, self.n_read + values.size)]
        self.picked += [float(values[place - self.n_read]) for place in here]
        self.n_read += values.size
        self._digest.update(np.ascontiguousarray(values).data)
        if values.dtype.kind == "f":
            finite = np.isfinite(values)
            if not finite.all():
                n_nan = int(np.isnan(values).sum())
                self.n_nan += n_nan
                self.n_inf += int(values.size - finite.sum()) - n_nan
                values = values[finite]
        if not values.size:
            return
        wide = values.astype(np.float64)
        self.n_zero += int(values.size - np.count_nonzero(values))
        self.absmax = max(self.absmax, float(np.abs(wide).max()))
        with np.errstate(over="ignore"):
            self._squares += float(np.dot(wide, wide))

    def add_all(self, parts: Iterable[_Values]) -> Statistics:
        for values in parts:
            self.add(values)
        return self

    @property
    def norm(self) -> float:
        """Euclidean, of the finite elements."""
        return sqrt(self._squares)

    @property
    def checksum(self) -> int:
        return int.from_bytes(self._digest.digest(), "big")


def sampled_stretches(n_elements: int, n_wanted: int, n_stretches: int = 8) -> Iterator[tuple[int, int]]:
    """First element and number of stretches that lie evenly over a tensor, begin and end included."""
    length = max(1, n_wanted // n_stretches)
    for number in range(n_stretches):
        first = (n_elements - length) * number // max(n_stretches - 1, 1)
        yield first, length
