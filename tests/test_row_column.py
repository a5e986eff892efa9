"""Numbers of rows, in memory and in a temporary file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from forensics.formats import _row_column
from forensics.formats._row_column import RowColumn


@pytest.mark.parametrize("held", [1 << 20, 0])
@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint64])
def test_numbers_come_back_by_row_and_are_0_where_none_was_put(
    held: int, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_row_column, "_HELD_BYTES", held)
    column = RowColumn(10_000, kind)
    column.put(np.array([9_999, 3, 5_000]), np.array([7, 8, 9], np.int64))
    column.put(np.array([4]), np.array([2**31 - 1], np.int64))
    assert column.take(np.array([0, 3, 4, 5_000, 9_999])).tolist() == [0, 8, 2**31 - 1, 9, 7]
    column.close()
    column.close()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="files are used where room can be reserved")
def test_a_full_disk_is_an_error_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_row_column, "_HELD_BYTES", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        RowColumn(10, np.int32)
