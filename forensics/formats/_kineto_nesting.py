"""Which slice encloses which on its thread, and the Python stack that each was called from."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

import duckdb
import numpy as np

from forensics.artifact import Frame, Stacks
from forensics.formats._kineto_links import LinkTables
from forensics.formats._row_column import Numbers

_BATCH_ROWS = 200_000
_ROUNDS = 64  # in a step each that is asked about skips all that is known to lie behind
_MOST_AROUND = 100_000  # slices around one that are known in the next batch
_MAX_DEPTH = 512  # frames of one stack that are kept
_MAX_STACKS = 500_000  # distinct stacks of one trace

# Outer before inner; where both start and end together, the id that was given first is the outer.
_ORDERED = """
SELECT row, thread_key, ts_ns, end_ns, coalesce(frame, -1)::INTEGER AS frame FROM host
ORDER BY thread_key, ts_ns, end_ns DESC, innermost, external NULLS FIRST, row
"""
_NEEDS = "SELECT coalesce(bool_and(ts_ns % 1000 = 0), true) FROM host"

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
        self._known: dict[tuple[int, int | str], int] = {}

    def inner(self, outer: int, key: int | str, name: str) -> int:
        """Id of the stack that has one more frame than the stack `outer`; `key` stands for `name`; 0 is no stack."""
        known = self._known.get((outer, key))
        if known is not None:
            return known
        if len(self.stacks) >= _MAX_STACKS or (outer and self.stacks.depth(outer) + 1 >= _MAX_DEPTH):
            self.full = True
            return outer
        added = self._known[outer, key] = self.stacks.inner(outer or None, python_frame(name))
        return added

    def from_text(self, calls: str) -> int:
        """Id of a stack as older recorders wrote it: frames separated by semicolons, innermost first."""
        stack = 0
        for name in reversed(calls.split(";")[:_MAX_DEPTH]):
            if name.strip():
                stack = self.inner(stack, name.strip(), name.strip())
        return stack


@dataclass
class _Slices:
    """Slices by thread and start, outer before inner, as columns of one length; `frame`: -1 for none."""

    row: Numbers
    thread_key: Numbers
    ts_ns: Numbers
    end_ns: Numbers
    frame: Numbers

    def after(self, before: _Slices) -> _Slices:
        return _Slices(*(np.concatenate(pair) for pair in zip(vars(before).values(), vars(self).values(), strict=True)))

    def take(self, places: Numbers) -> _Slices:
        return _Slices(*(column[places] for column in vars(self).values()))


_COLUMNS = tuple(field.name for field in fields(_Slices))


def nest(con: duckdb.DuckDBPyConnection, links: LinkTables, names: list[str], stacks: CallStacks) -> None:
    """Puts 1 + row of the enclosing slice as `parent`, and the `stack` where there are Python frames (`names`)."""
    if not links.has("host"):
        return
    # Times in whole microseconds are cut, not rounded: an inner slice can seem to end after the outer.
    ((whole,),) = con.execute(_NEEDS).fetchall()
    # Those around the last slice of the batch before, and it itself, outermost first; and the stacks of these.
    around: _Slices | None = None
    stacks_around = np.zeros(0, np.uint64)
    for batch in con.sql(_ORDERED).to_arrow_reader(_BATCH_ROWS):
        slices = _Slices(*(batch.column(name).to_numpy() for name in _COLUMNS))
        if around is not None:
            slices = slices.after(around)
        fresh = slice(len(slices.row) - batch.num_rows, None)
        parents = enclosing(slices.thread_key, slices.ts_ns, slices.end_ns, slack_ns=1000 if whole else 0)
        links.put("parent", slices.row[fresh], np.where(parents < 0, 0, slices.row[parents] + 1)[fresh])
        still_open = _way_out(parents)
        if names:
            of_each = _stacks(slices.frame, parents, stacks_around, names, stacks)
            links.put("stack", slices.row[fresh], of_each[fresh])
            stacks_around = of_each[still_open]
        around = slices.take(still_open)


def enclosing(thread_key: Numbers, ts_ns: Numbers, end_ns: Numbers, slack_ns: int) -> Numbers:
    """For each slice the place of the one that encloses it, -1 for none.

    Slices come by thread and start, outer before inner. It is the last one before on the thread that ends after this
    one begins and at most `slack_ns` before this one ends; of two that overlap none encloses the other.
    """
    n = len(ts_ns)
    begins = np.flatnonzero(np.diff(thread_key, prepend=thread_key[:1] + 1))  # places of the threads' first slices
    first = np.repeat(begins, np.diff(begins, append=n))
    until = np.maximum(ts_ns, end_ns - slack_ns - 1)  # the one that encloses ends after this, and so do those around it
    found = np.arange(n) - 1
    # Of each slice a place before it, such that all between end no later than it does: whom it does not enclose, they
    # do not either. Those places are found alongside, each by that of the one it leads to.
    passed = found.copy()
    asking = passing = np.arange(n)
    for _ in range(_ROUNDS):
        at = found[asking]
        asking = asking[(at >= first[asking]) & (end_ns[at] <= until[asking])]
        found[asking] = passed[found[asking]]
        at = passed[passing]
        more = (at >= first[passing]) & (end_ns[at] <= end_ns[passing])
        passing = passing[more]
        passed[passing] = passed[at[more]]
    for place in np.union1d(asking, passing).tolist():  # after many nested ones that end together; one by one
        at, outermost, before_end, end = place - 1, first[place], until[place], end_ns[place]
        while at >= outermost and end_ns[at] <= before_end:
            at = passed[at]
        found[place] = at
        while at >= outermost and end_ns[at] <= end:
            at = passed[at]
        passed[place] = at
    return np.where(found < first, -1, found)


def _stacks(frame: Numbers, parents: Numbers, known: Numbers, names: list[str], stacks: CallStacks) -> Numbers:
    """Stack of each slice: that of the slice around it, with its own frame where it is a Python frame.

    `known`: of the first slices, those of the batch before.
    """
    n, n_known = len(frame), len(known)
    own = frame >= 0
    own[:n_known] = True
    # The slice whose stack is also that of this one; n stands for none.
    holder = np.append(np.where(own, np.arange(n), np.where(parents < 0, n, parents)), n)
    while True:
        further = holder[holder]
        if np.array_equal(further, holder):
            break
        holder = further
    of_holder = [*known.tolist(), *[0] * (n + 1 - n_known)]
    places = np.flatnonzero(own[n_known:]) + n_known
    outers = holder[np.where(parents < 0, n, parents)[places]]
    inner = stacks.inner
    for place, outer, key in zip(places.tolist(), outers.tolist(), frame[places].tolist(), strict=True):
        of_holder[place] = inner(of_holder[outer], key, names[key])
    of_each: Numbers = np.array(of_holder, np.uint64)[holder[:n]]
    return of_each


def _way_out(parents: Numbers) -> Numbers:
    """Places of the last slice and those around it, outermost first; of absurdly many the inner ones."""
    places: list[int] = []
    place = len(parents) - 1
    while place >= 0 and len(places) < _MOST_AROUND:
        places.append(place)
        place = int(parents[place])
    return np.array(places[::-1], np.int64)
