"""Which slice encloses which on its thread, and the Python stack that each was called from."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

import duckdb
import pyarrow as pa

from forensics.artifact import Frame, Stacks
from forensics.formats._kineto_links import LinkTables

_BATCH_ROWS = 100_000
_APPEND_ROWS = 500_000
_MAX_DEPTH = 512  # frames of one stack that are kept
_MAX_STACKS = 500_000  # distinct stacks of one trace

# Outer before inner; where both start and end together, the id that was given first is the outer.
_ORDERED = """
SELECT row, thread_key, ts_ns, end_ns, frame FROM host
ORDER BY thread_key, ts_ns, end_ns DESC, innermost, external NULLS FIRST, row
"""
_NEEDS = "SELECT coalesce(bool_and(ts_ns % 1000 = 0), true), count(frame) FROM host"

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
        self.known: dict[tuple[int, int | str], int] = {}

    def inner(self, outer: int, key: int | str, name: str) -> int:
        """Id of the stack that has one more frame than the stack `outer`; `key` stands for `name`; 0 is no stack."""
        known = self.known.get((outer, key))
        if known is not None:
            return known
        if len(self.stacks) >= _MAX_STACKS or (outer and self.stacks.depth(outer) + 1 >= _MAX_DEPTH):
            self.full = True
            return outer
        added = self.known[outer, key] = self.stacks.inner(outer or None, python_frame(name))
        return added

    def from_text(self, calls: str) -> int:
        """Id of a stack as older recorders wrote it: frames separated by semicolons, innermost first."""
        stack = 0
        for name in reversed(calls.split(";")[:_MAX_DEPTH]):
            if name.strip():
                stack = self.inner(stack, name.strip(), name.strip())
        return stack


def nest(con: duckdb.DuckDBPyConnection, links: LinkTables, names: list[str], stacks: CallStacks) -> None:
    """Fills `nested` with 1 + row of the enclosing slice, and the stack where there are Python frames (`names`)."""
    if not links.has("host"):
        return
    # Times in whole microseconds are cut, not rounded: an inner slice can seem to end after the outer.
    ((whole, n_frames),) = con.execute(_NEEDS).fetchall()
    slack = 1000 if whole else 0
    batches = con.sql(_ORDERED).to_arrow_reader(_BATCH_ROWS)
    nested = _nest_with_frames(batches, slack, names, stacks) if n_frames else _nest(batches, slack)
    waiting: list[pa.Table] = []
    for table in nested:
        waiting.append(table)
        if len(waiting) * _BATCH_ROWS >= _APPEND_ROWS:
            links.insert("nested", pa.concat_tables(waiting))
            waiting = []
    if waiting:
        links.insert("nested", pa.concat_tables(waiting))


def _nest(batches: Iterable[pa.RecordBatch], slack: int) -> Iterator[pa.Table]:
    current = -1
    rows: list[int] = []
    ends: list[int] = []
    for batch in batches:
        parents = array("q")
        note = parents.append
        for row, thread, start, end in zip(*_columns(batch), strict=True):
            if thread != current:
                current = thread
                rows, ends = [], []
            while ends and (ends[-1] <= start or ends[-1] + slack < end):
                ends.pop()
                rows.pop()
            note(rows[-1] + 1 if rows else 0)
            rows.append(row)
            ends.append(end)
        yield pa.table({"row": batch.column(0), "parent": _numbers(parents, pa.int64())})


def _nest_with_frames(
    batches: Iterable[pa.RecordBatch], slack: int, names: list[str], stacks: CallStacks
) -> Iterator[pa.Table]:
    current = -1
    open_slices: list[tuple[int, int, int]] = []  # row, end, stack
    inner, known = stacks.inner, stacks.known
    for batch in batches:
        parents, stack_ids = array("q"), array("Q")
        frames = batch.column(4).to_pylist()
        for row, thread, start, end, frame in zip(*_columns(batch), frames, strict=True):
            if thread != current:
                current = thread
                open_slices = []
            while open_slices and (open_slices[-1][1] <= start or open_slices[-1][1] + slack < end):
                open_slices.pop()
            outer, stack = (open_slices[-1][0] + 1, open_slices[-1][2]) if open_slices else (0, 0)
            parents.append(outer)
            if frame is not None:
                stack = known.get((stack, frame)) or inner(stack, frame, names[frame])
            stack_ids.append(stack)
            open_slices.append((row, end, stack))
        yield pa.table(
            {
                "row": batch.column(0),
                "parent": _numbers(parents, pa.int64()),
                "stack": _numbers(stack_ids, pa.uint64()),
            }
        )


def _columns(batch: pa.RecordBatch) -> Iterator[list[int]]:
    """row, thread, start and end as lists; none of them has NULLs."""
    for number, code in enumerate("qQqq"):
        column = batch.column(number)
        values = memoryview(column.buffers()[1]).cast(code)  # type: ignore[call-overload]
        yield values[column.offset : column.offset + len(column)].tolist()


def _numbers(values: array[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
