"""Numbers of the rows of one artifact, found in any order and asked for in the order of rows."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import IO, Any

import numpy as np
import numpy.typing as npt

_HELD_BYTES = 4 << 20  # more lie in a temporary file, of which only what is in use stays in memory
_ON_DISK = hasattr(os, "posix_fallocate") and hasattr(mmap, "MADV_DONTNEED")

Numbers = npt.NDArray[Any]


class RowColumn:
    """A number for each of `n_rows` rows, 0 until one is put; close it to remove its file.

    Raises OSError where a file is needed and the disk has no room for it.
    """

    def __init__(self, n_rows: int, kind: npt.DTypeLike) -> None:
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        n_bytes = n_rows * np.dtype(kind).itemsize
        if n_bytes > _HELD_BYTES and _ON_DISK:
            self._file = tempfile.TemporaryFile(prefix="forensics-trace-")  # noqa: SIM115
            try:
                os.posix_fallocate(self._file.fileno(), 0, n_bytes)  # a map that finds no room later kills the process
                self._map = mmap.mmap(self._file.fileno(), n_bytes)
            except BaseException:
                self._file.close()
                raise
            self._values: Numbers | None = np.frombuffer(self._map, kind)
        else:
            self._values = np.zeros(n_rows, kind)

    def put(self, rows: Any, values: Any) -> None:
        assert self._values is not None
        self._values[rows] = values
        self._release()

    def take(self, rows: Numbers) -> Numbers:
        assert self._values is not None
        found: Numbers = self._values[rows]
        self._release()
        return found

    def _release(self) -> None:
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)  # the system keeps the pages as long as it has memory for them

    def close(self) -> None:
        self._values = None
        if self._map is not None and self._file is not None:
            self._map.close()
            self._file.close()
