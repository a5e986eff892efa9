"""Memo of a pickle whose values are read one by one or many at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class _Gone(str):
    """Nothing that takes texts takes it for one: what was there was none."""


GONE = _Gone("(an item that was read before)")  # what a reference to a value that was not kept gives
GONE_CODE = 1


def distinct(codes: Array, n_values: int) -> tuple[Array, Array]:
    """The different codes, all below `n_values`, in order, and for each code its place among them."""
    if len(codes) and (codes == codes[0]).all():
        return codes[:1], np.zeros(len(codes), np.intp)
    if n_values > 4 * len(codes):
        found, places = np.unique(codes, return_inverse=True)
        return found, places
    seen = np.zeros(n_values, np.bool_)
    seen[codes] = True
    found = np.flatnonzero(seen)
    place = np.empty(n_values, np.intp)
    place[found] = np.arange(len(found))
    return found, place[codes]


class Memo:
    """Memo of a pickle: an array of value numbers by index, and the values. Number 0 is none, 1 `GONE`."""

    def __init__(self) -> None:
        self.values: list[Any] = [None, GONE]
        self.codes: Array = np.zeros(4096, np.int32)
        self.lists: dict[bytes, int] = {}  # the opcodes of a list's items → its value number
        self.pairs: dict[int, int] = {}
        self._n = 0

    def __len__(self) -> int:
        return self._n

    def __contains__(self, index: int) -> bool:
        return 0 <= index < len(self.codes) and bool(self.codes[index])

    def __getitem__(self, index: int) -> Any:
        code = self.codes[index] if 0 <= index < len(self.codes) else 0
        if not code:
            raise KeyError(index)
        return self.values[code]

    def __setitem__(self, index: int, value: Any) -> None:
        self.reserve(index + 1)
        self._n += not self.codes[index]
        self.codes[index] = len(self.values)
        self.values.append(value)

    def reserve(self, size: int) -> None:
        if size > len(self.codes):
            grown = np.zeros(max(size, 2 * len(self.codes)), np.int32)
            grown[: len(self.codes)] = self.codes
            self.codes = grown

    def put(self, indices: Array, codes: Array | int) -> None:
        if len(indices):
            self.reserve(int(indices.max()) + 1)
            self._n += int(np.count_nonzero(self.codes[indices] == 0))
            self.codes[indices] = codes

    def extend(self, n: int) -> None:
        """Adds indices whose values nobody will ask for."""
        self.reserve(self._n + n)
        self.codes[self._n : self._n + n] = GONE_CODE
        self._n += n

    def shrink(self, n: int) -> None:
        """Takes back what `extend` added."""
        self.codes[n : self._n] = 0
        self._n = n

    def add(self, value: Any) -> int:
        self.values.append(value)
        return len(self.values) - 1
