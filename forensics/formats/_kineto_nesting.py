"""Which slice encloses which on its thread, and the Python stack that each was called from."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator

import duckdb
import numpy as np
import pyarrow as pa

from forensics.artifact import Frame, Stacks
from forensics.formats._kineto_links import LinkTables

_BATCH_ROWS = 100_000
_NOTHING = 0, 1 << 64  # what encloses the outermost slices: no row, without end
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
    """Puts 1 + row of the enclosing slice as `parent`, and the `stack` where there are Python frames (`names`)."""
    if not links.has("host"):
        return
    # Times in whole microseconds are cut, not rounded: an inner slice can seem to end after the outer.
    ((whole, n_frames),) = con.execute(_NEEDS).fetchall()
    slack = 1000 if whole else 0
    batches = con.sql(_ORDERED).to_arrow_reader(_BATCH_ROWS)
    if n_frames:
        _nest_with_frames(batches, slack, names, stacks, links)
    else:
        _nest(batches, slack, links)


def _nest(batches: Iterable[pa.RecordBatch], slack: int, links: LinkTables) -> None:
    current = -1
    enclosing: list[tuple[int, int]] = []  # around the innermost open slice: 1 + row, end
    push, pop = enclosing.append, enclosing.pop
    outer, until = _NOTHING
    for batch in batches:
        parents = array("q")
        note = parents.append
        for row, thread, start, end in zip(*_columns(batch), strict=True):
            if thread != current:
                current = thread
                enclosing.clear()
                outer, until = _NOTHING
            while until <= start or until + slack < end:
                outer, until = pop()
            note(outer)
            push((outer, until))
            outer, until = row + 1, end
        links.put("parent", batch.column(0).to_numpy(), np.frombuffer(parents, np.int64))


def _nest_with_frames(
    batches: Iterable[pa.RecordBatch], slack: int, names: list[str], stacks: CallStacks, links: LinkTables
) -> None:
    current = -1
    enclosing: list[tuple[int, int, int]] = []  # around the innermost open slice: 1 + row, end, stack
    push, pop = enclosing.append, enclosing.pop
    inner, known = stacks.inner, stacks.known
    (outer, until), stack = _NOTHING, 0
    for batch in batches:
        parents, stack_ids = array("q"), array("Q")
        note_parent, note_stack = parents.append, stack_ids.append
        frames = batch.column(4).to_pylist()
        for row, thread, start, end, frame in zip(*_columns(batch), frames, strict=True):
            if thread != current:
                current = thread
                enclosing.clear()
                (outer, until), stack = _NOTHING, 0
            while until <= start or until + slack < end:
                outer, until, stack = pop()
            note_parent(outer)
            push((outer, until, stack))
            if frame is not None:
                stack = known.get((stack, frame)) or inner(stack, frame, names[frame])
            note_stack(stack)
            outer, until = row + 1, end
        rows = batch.column(0).to_numpy()
        links.put("parent", rows, np.frombuffer(parents, np.int64))
        links.put("stack", rows, np.frombuffer(stack_ids, np.uint64))


def _columns(batch: pa.RecordBatch) -> Iterator[list[int]]:
    """row, thread, start and end as lists; none of them has NULLs."""
    for number, code in enumerate("qQqq"):
        column = batch.column(number)
        values = memoryview(column.buffers()[1]).cast(code)  # type: ignore[call-overload]
        yield values[column.offset : column.offset + len(column)].tolist()
