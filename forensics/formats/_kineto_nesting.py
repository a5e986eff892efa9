"""Which slice encloses which on its thread, and the Python stack that each was called from."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

from forensics.artifact import Frame, Stacks

_BATCH_ROWS = 200_000
_MAX_DEPTH = 512  # frames of one stack that are kept
_MAX_STACKS = 500_000  # distinct stacks of one trace

# Outer before inner; where both start and end together, the id that was given first is the outer.
_ORDERED = """
SELECT rowid AS position, row, thread, ts_ns, ts_ns + greatest(coalesce(dur_ns, 0), 0) AS end_ns, frame
FROM work WHERE NOT on_device AND ts_ns IS NOT NULL
ORDER BY document, thread, ts_ns, end_ns DESC, kind IN ('runtime', 'driver', 'memory', 'instant'),
    external NULLS FIRST, row
"""
_NEEDS = "SELECT coalesce(bool_and(ts_ns % 1000 = 0), true), count(frame) FROM work"

_FRAME = re.compile(r"(.*)\((\d{1,9})\): (.*)", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def python_frame(name: str) -> Frame:
    """A frame out of `file(line): function`, `nn.Module: Linear_0` or `<built-in method …>`."""
    found = _FRAME.fullmatch(name)
    if found:
        return Frame(found[3], found[1], min(int(found[2]), 2**31 - 1))
    return Frame(_ADDRESS.sub("", name))


class CallStacks:
    """Interns stacks frame by frame; `full` once a bound was reached and deeper frames were left out."""

    def __init__(self) -> None:
        self.stacks = Stacks()
        self.full = False
        self._frames: dict[int, tuple[Frame, ...]] = {0: ()}
        self._inner: dict[tuple[int, str], int] = {}

    def inner(self, outer: int, name: str) -> int:
        """Id of the stack that has one more frame than the stack `outer`; 0 is the empty stack."""
        known = self._inner.get((outer, name))
        if known is not None:
            return known
        frames = self._frames[outer]
        if len(frames) >= _MAX_DEPTH or len(self._frames) > _MAX_STACKS:
            self.full = True
            return outer
        frames = (*frames, python_frame(name))
        added = self.stacks.add(frames) or 0
        self._frames[added] = frames
        self._inner[outer, name] = added
        return added

    def from_text(self, calls: str) -> int:
        """Id of a stack as older recorders wrote it: frames separated by semicolons, innermost first."""
        stack = 0
        for name in reversed(calls.split(";")[:_MAX_DEPTH]):
            if name.strip():
                stack = self.inner(stack, name.strip())
        return stack


def nest(con: duckdb.DuckDBPyConnection, n_rows: int, stacks: CallStacks) -> tuple[pa.Array, pa.Array | None]:
    """parent_row, and stack_id where there are Python frames, for each position of `work`."""
    parents = array("q", bytes(8 * n_rows))
    # Times in whole microseconds are cut, not rounded: an inner slice can seem to end after the outer.
    ((whole, n_frames),) = con.execute(_NEEDS).fetchall()
    slack = 1000 if whole else 0
    batches = con.sql(_ORDERED).to_arrow_reader(_BATCH_ROWS)
    if n_frames:
        stack_ids = array("Q", bytes(8 * n_rows))
        _nest_with_frames(batches, slack, parents, stack_ids, stacks)
        return _nullable(parents, pa.int64(), 1), _nullable(stack_ids, pa.uint64(), 0)
    _nest(batches, slack, parents)
    return _nullable(parents, pa.int64(), 1), None


def _nest(batches: Iterable[pa.RecordBatch], slack: int, parents: array[int]) -> None:
    """Writes 1 + row of the enclosing slice."""
    current = -1
    rows: list[int] = []
    ends: list[int] = []
    for batch in batches:
        for position, row, thread, start, end in zip(*_columns(batch), strict=True):
            if thread != current:
                current = thread
                rows, ends = [], []
            while ends and (ends[-1] <= start or ends[-1] + slack < end):
                ends.pop()
                rows.pop()
            if rows:
                parents[position] = rows[-1] + 1
            rows.append(row)
            ends.append(end)


def _nest_with_frames(
    batches: Iterable[pa.RecordBatch], slack: int, parents: array[int], stack_ids: array[int], stacks: CallStacks
) -> None:
    current = -1
    open_slices: list[tuple[int, int, int]] = []  # row, end, stack
    for batch in batches:
        frames = batch.column(5).to_pylist()
        for position, row, thread, start, end, frame in zip(*_columns(batch), frames, strict=True):
            if thread != current:
                current = thread
                open_slices = []
            while open_slices and (open_slices[-1][1] <= start or open_slices[-1][1] + slack < end):
                open_slices.pop()
            stack = 0
            if open_slices:
                outer, _, stack = open_slices[-1]
                parents[position] = outer + 1
            if frame is not None:
                stack = stacks.inner(stack, frame)
            stack_ids[position] = stack
            open_slices.append((row, end, stack))


def _columns(batch: pa.RecordBatch) -> Iterator[list[int]]:
    """position, row, thread, start and end as lists; none of them has NULLs."""
    for number, code in enumerate("qqQqq"):
        column = batch.column(number)
        values = memoryview(column.buffers()[1]).cast(code)  # type: ignore[call-overload]
        yield values[column.offset : column.offset + len(column)].tolist()


def _nullable(values: array[int], kind: pa.DataType, added: int) -> pa.Array:
    """The numbers without what was added to them; 0 is NULL."""
    import pyarrow.compute as pc

    numbers = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
    numbers = pc.if_else(pc.equal(numbers, pa.scalar(0, kind)), pa.scalar(None, kind), numbers)
    return pc.subtract(numbers, added) if added else numbers
