"""The recorded events of one device as a sequence of operations that can be replayed.

Allocations are numbered: blocks that were alive before the first event come after those that events tell of. An
operation is a kind and a number, whose meaning the kind gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

DEFAULT_POOL = "0.0"


class Op(IntEnum):
    """Kinds of operations, and what their number is."""

    ALLOC = 0  # an allocation
    FREE = 1  # an allocation, whose block can be used again at once
    WAIT = 2  # an allocation that is freed, but still in use on another stream
    DONE = 3  # one of those, which is no longer
    OBTAIN = 4  # a row of `segments`: got from the device
    RELEASE = 5  # a row of `segments`: given back to the device
    MAP = 6  # a row of `segments`
    UNMAP = 7  # a row of `segments`
    OOM = 8  # a row of `failures`
    FLUSH = 9  # the cache is emptied by the job itself


@dataclass(frozen=True)
class Segment:
    addr: int
    size: int
    stream: int
    pool_id: str


@dataclass(frozen=True)
class Failure:
    """A request that failed. `size` is rounded by the recorded settings; `device_free` as the driver said."""

    row: int
    size: int
    stream: int
    pool_id: str
    device_free: int | None


@dataclass
class History:
    """`sizes` as requested; `groups`: pool id and stream, of which `group_of` says which an allocation belongs to."""

    n_events: int = 0
    sizes: list[int] = field(default_factory=list)
    addrs: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)
    groups: list[tuple[str, int]] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    segments: list[Segment] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    n_allocs: int = 0  # those that events tell of
    alive: dict[int, int] = field(default_factory=dict)  # address → allocation, at the end
    waiting: dict[int, int] = field(default_factory=dict)
    n_lost: int = 0  # allocations at an address where the record does not tell of a free before
    is_ambiguous: bool = False  # whether the job or the allocator gave back segments cannot be told, for want of stacks

    @property
    def n_older(self) -> int:
        """Blocks that were alive before the first event and were freed later."""
        return len(self.sizes) - self.n_allocs

    def requested(self) -> npt.NDArray[np.int64]:
        return np.array(self.sizes, dtype=np.int64)


Row = tuple[Any, ...]
_EVENTS = """
SELECT row, action, addr, size_bytes, coalesce(stream, 0), pool_id, device_free_bytes, stack_id
FROM memory_event
WHERE artifact_id = ? AND device = ?
  AND action IN ('alloc', 'free_requested', 'free_completed', 'segment_alloc', 'segment_free', 'segment_map',
                 'segment_unmap', 'oom')
  AND size_bytes >= 0 AND (addr IS NOT NULL OR action = 'oom')
ORDER BY row
"""
_SEGMENT_OPS = {
    "segment_alloc": Op.OBTAIN,
    "segment_free": Op.RELEASE,
    "segment_map": Op.MAP,
    "segment_unmap": Op.UNMAP,
}


def read_history(
    con: duckdb.DuckDBPyConnection, artifact_id: int, device: int, *, doubt_as_flush: bool = False
) -> History:
    """`doubt_as_flush`: where nothing tells, the job itself emptied the cache."""
    reader = _Reader(doubt_as_flush=doubt_as_flush)
    cursor = con.execute(_EVENTS, [artifact_id, device])
    while rows := cursor.fetchmany(100_000):
        reader.read(rows)
    return reader.finish()


class _Reader:
    def __init__(self, *, doubt_as_flush: bool = False) -> None:
        self.history = History()
        self.doubt_as_flush = doubt_as_flush
        self.group_ids: dict[tuple[str, int], int] = {}
        self.older: list[tuple[int, int, int, int]] = []  # position of the operation, address, size, group
        self.released: list[int] = []  # positions of releases since the last operation of another kind
        self.released_by: set[int | None] = set()  # their stacks

    def read(self, rows: Sequence[Row]) -> None:
        history = self.history
        history.n_events += len(rows)
        add_kind, add_number = history.kinds.append, history.numbers.append
        for row, action, addr, size, stream, pool_id, device_free, stack_id in rows:
            if action == "alloc":
                self._settle(stack_id)
                add_kind(Op.ALLOC)
                add_number(len(history.sizes))
                self._allocate(row, addr, size, self._group(pool_id, stream))
            elif action == "free_requested":
                self._settle(None)
                self._end(addr, size, pool_id, stream, history.alive, Op.WAIT)
            elif action == "free_completed":
                self._complete(addr, size, pool_id, stream)
            elif action == "oom":
                self._settle(stack_id)
                add_kind(Op.OOM)
                add_number(len(history.failures))
                history.failures.append(Failure(row, size, stream, pool_id or DEFAULT_POOL, device_free))
            else:
                self._segment(action, addr, size, stream, pool_id, stack_id)

    def finish(self) -> History:
        """Numbers the older blocks behind the allocations."""
        history = self.history
        self._settle(None)
        history.n_allocs = len(history.sizes)
        for position, addr, size, group in self.older:
            number = len(history.sizes)
            history.numbers[position] = number
            if history.kinds[position] == Op.WAIT:
                self._mend(position, number)
            history.sizes.append(size)
            history.addrs.append(addr)
            history.rows.append(-1)
            history.group_of.append(group)
        return history

    def _mend(self, position: int, number: int) -> None:
        """Gives the completion of an older block the number that its request has got."""
        for later in range(position + 1, len(self.history.kinds)):
            if self.history.kinds[later] == Op.DONE and self.history.numbers[later] == -1 - position:
                self.history.numbers[later] = number
                return

    def _group(self, pool_id: str | None, stream: int) -> int:
        key = (pool_id or DEFAULT_POOL, stream)
        found = self.group_ids.get(key)
        if found is None:
            found = self.group_ids[key] = len(self.history.groups)
            self.history.groups.append(key)
        return found

    def _allocate(self, row: int, addr: int, size: int, group: int) -> None:
        history = self.history
        if addr in history.alive:
            history.n_lost += 1
        history.alive[addr] = len(history.sizes)
        history.sizes.append(size)
        history.addrs.append(addr)
        history.rows.append(row)
        history.group_of.append(group)

    def _end(self, addr: int, size: int, pool_id: str | None, stream: int, known: dict[int, int], op: Op) -> None:
        """A free of an allocation in `known`, or of one older than the history."""
        history = self.history
        number = known.pop(addr, None)
        if number is None:
            number = -1 - len(history.kinds)
            self.older.append((len(history.kinds), addr, size, self._group(pool_id, stream)))
        if op == Op.WAIT:
            history.waiting[addr] = number
        history.kinds.append(op)
        history.numbers.append(number)

    def _complete(self, addr: int, size: int, pool_id: str | None, stream: int) -> None:
        history = self.history
        if addr not in history.waiting:
            self._end(addr, size, pool_id, stream, history.waiting, Op.FREE)
            return
        number = history.waiting.pop(addr)
        if history.kinds[-1] == Op.WAIT and history.numbers[-1] == number:
            history.kinds[-1] = Op.FREE  # both in one go: no other stream used it
        else:
            history.kinds.append(Op.DONE)
            history.numbers.append(number)

    def _segment(
        self, action: str, addr: int, size: int, stream: int, pool_id: str | None, stack_id: int | None
    ) -> None:
        history = self.history
        op = _SEGMENT_OPS[action]
        if op in (Op.RELEASE, Op.UNMAP):
            self.released.append(len(history.kinds))
            self.released_by.add(stack_id)
        history.kinds.append(op)
        history.numbers.append(len(history.segments))
        history.segments.append(Segment(addr, size, stream, pool_id or DEFAULT_POOL))

    def _settle(self, stack_id: int | None) -> None:
        """Tells whether segments were given back inside the request that follows, or because the job asked for it.

        The allocator records both with the stack of the call, so the request's own stack tells. Without stacks, memory
        obtained between the two tells.
        """
        if not self.released:
            return
        history = self.history
        obtains = any(kind in (Op.OBTAIN, Op.MAP) for kind in history.kinds[self.released[-1] :])
        if stack_id is not None:
            within = stack_id in self.released_by
        else:
            within = obtains and not self.doubt_as_flush
            history.is_ambiguous |= obtains
        pools = {history.segments[history.numbers[at]].pool_id for at in self.released}
        if not within and DEFAULT_POOL in pools:
            history.kinds.append(Op.FLUSH)
            history.numbers.append(0)
        self.released.clear()
        self.released_by.clear()
