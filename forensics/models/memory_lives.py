"""Lives of allocations: from the allocator's events, when each block of a device began and ended.

Moments are ordinals of the device's events, from 0; they order what times of one microsecond cannot. Bytes are those
that events tell, after the allocator's rounding to 512 B. What was there before the history began is at moment -1, what
was there at its end at `n_events`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.int64]
_ALLOC, _REQUESTED, _COMPLETED = 1, 2, 3
_ACTIONS = "CASE action WHEN 'alloc' THEN 1 WHEN 'free_requested' THEN 2 WHEN 'free_completed' THEN 3 ELSE 0 END"
_GROWTH = (
    "CASE WHEN action IN ('segment_alloc', 'segment_map') THEN size_bytes"
    " WHEN action IN ('segment_free', 'segment_unmap') THEN -size_bytes ELSE 0 END"
)


@dataclass(frozen=True)
class Device:
    """One device of one snapshot."""

    artifact_id: int
    proc_id: int | None
    rank: int | None
    device: int


@dataclass(frozen=True)
class Lives:
    """Allocations of one device, in the order of their beginning; arrays of one entry each.

    `begin`: moment of the allocation; `end`: of the request to free it; `gone`: when the allocator had it back,
    later where another stream still used it. `stack`: index into `stacks`, -1 unknown.
    """

    n_events: int
    begin: Array
    end: Array
    gone: Array
    size: Array
    addr: npt.NDArray[np.uint64]
    stack: Array
    category: list[str | None]
    rows: Array  # memory_event.row of each moment
    times: Array  # ts_ns of each moment, 0 unknown
    steps: Array  # step of each moment, -1 unknown
    reserved: Array  # bytes obtained from the driver after each moment
    oom: Array  # moments of failed allocations
    stacks: list[int]  # stack.id

    def live(self, until: Array | None = None) -> Array:
        """Live bytes after each moment, with `until` instead of `end` as the end of each allocation."""
        change = np.zeros(self.n_events + 1, np.int64)
        np.add.at(change, np.maximum(self.begin, 0), self.size)
        until = self.end if until is None else until
        inside = until < self.n_events
        np.subtract.at(change, until[inside], self.size[inside])
        return np.cumsum(change)[: max(self.n_events, 1)]

    def alive_at(self, moment: int) -> npt.NDArray[np.bool_]:
        """Which allocations were live after this moment."""
        return (self.begin <= moment) & (self.end > moment)


def devices(con: duckdb.DuckDBPyConnection) -> list[Device]:
    """Devices of which a snapshot tells segments; -1 is pinned host memory."""
    rows = con.execute(
        "SELECT s.artifact_id, min(s.proc_id), min(p.rank), s.device FROM memory_segment AS s"
        " LEFT JOIN proc AS p ON p.id = s.proc_id"
        " GROUP BY s.artifact_id, s.device ORDER BY s.artifact_id, s.device"
    ).fetchall()
    return [Device(*row) for row in rows]


def read_lives(con: duckdb.DuckDBPyConnection, of: Device) -> Lives:
    """The lives of a device, from its events where the snapshot has any and from the blocks that it held at the end."""
    key = {"artifact": of.artifact_id, "device": of.device}
    events = con.execute(
        f"SELECT row, {_ACTIONS} AS code, action = 'oom' AS is_oom, coalesce(addr, 0) AS addr, {_GROWTH} AS growth,"
        " coalesce(size_bytes, 0) AS size, coalesce(stack_id, 0) AS stack, coalesce(ts_ns, 0) AS ts,"
        " coalesce(step, -1) AS step FROM memory_event WHERE artifact_id = $artifact AND device = $device ORDER BY row",
        key,
    ).fetchnumpy()
    blocks = con.execute(
        "SELECT addr, size_bytes AS size, coalesce(stack_id, 0) AS stack, state = 'active_allocated' AS allocated"
        " FROM memory_block WHERE artifact_id = $artifact AND device = $device AND state <> 'inactive' ORDER BY row",
        key,
    ).fetchnumpy()
    held = con.execute(
        "SELECT coalesce(sum(total_bytes), 0) FROM memory_segment WHERE artifact_id = $artifact AND device = $device",
        key,
    ).fetchone()
    growth = np.cumsum(_plain(events["growth"]))
    reserved = growth + (int(held[0]) if held else 0) - (growth[-1] if len(growth) else 0)
    n = len(events["row"])
    known = np.concatenate(list(_paired(events, n)), axis=1)
    known = np.concatenate([known, _before(events, blocks, known, n)], axis=1)
    order = np.lexsort((known[3], known[0]))
    begin, end, gone, size, addr, stack = known[:, order]
    ids, index = np.unique(stack.view(np.uint64), return_inverse=True)
    stacks = [int(i) for i in ids]
    numbers = np.array([-1 if s == 0 else k for k, s in enumerate(stacks)], np.int64)[index] if stacks else stack
    return Lives(
        n,
        begin,
        end,
        gone,
        size,
        addr.view(np.uint64),
        numbers,
        _categories(con, key, events, begin),
        _plain(events["row"]),
        _plain(events["ts"]),
        _plain(events["step"]),
        reserved,
        np.flatnonzero(_plain(events["is_oom"])),
        stacks,
    )


def _plain(values: np.ma.MaskedArray | npt.NDArray[np.generic]) -> Array:
    return np.ma.getdata(values).astype(np.int64)


def _unsigned(values: np.ma.MaskedArray | npt.NDArray[np.generic]) -> npt.NDArray[np.uint64]:
    return np.ma.getdata(values).astype(np.uint64)


def _paired(events: dict[str, npt.NDArray[np.generic]], n: int) -> Iterator[Array]:
    """Columns begin, end, gone, size, address, stack: of what events begin, then of what they only end."""
    code = _plain(events["code"])
    addr, stack = _unsigned(events["addr"]), _unsigned(events["stack"])
    size = _plain(events["size"])
    chosen = np.flatnonzero(code)
    order = chosen[np.argsort(addr[chosen], kind="stable")]
    kind, place = code[order], addr[order]
    follows = np.append(place[1:] == place[:-1], False) if len(order) else np.zeros(0, np.bool_)
    after = np.append(order[1:], n) if len(order) else order
    then = np.where(follows, np.append(kind[1:], 0) if len(order) else kind, 0)
    # A request is followed by its completion; before PyTorch 2.0 there was only the latter.
    completed = np.where(then == _COMPLETED, after, n)
    second = np.append(completed[1:], n) if len(order) else completed
    gone = np.where(then == _REQUESTED, second, completed)
    begins = kind == _ALLOC
    end = np.where((then == _REQUESTED) | (then == _COMPLETED), after, n)
    # An address that is allocated again was free, whatever became of the event.
    end = np.where(then == _ALLOC, after, end)
    gone = np.where(then == _ALLOC, after, np.maximum(gone, end))
    own = order[begins]
    yield np.stack([own, end[begins], gone[begins], size[own], place[begins].view(np.int64), stack[own].view(np.int64)])
    is_first = np.append(True, place[1:] != place[:-1]) if len(order) else np.zeros(0, np.bool_)
    stray = is_first & ~begins
    old = order[stray]
    gone_old = np.where(kind[stray] == _COMPLETED, old, completed[stray])
    unknown = np.zeros(len(old), np.int64)
    yield np.stack([unknown - 1, old, gone_old, size[old], place[stray].view(np.int64), unknown])


def _before(
    events: dict[str, npt.NDArray[np.generic]], blocks: dict[str, npt.NDArray[np.generic]], known: Array, n: int
) -> Array:
    """The same columns of blocks at the end whose beginning the history does not hold."""
    addr = _unsigned(blocks["addr"])
    explained = np.isin(addr.view(np.int64), known[4][known[2] >= n])
    left = np.flatnonzero(~explained)
    end = np.where(_plain(blocks["allocated"])[left] == 1, n, n - 1)
    stack = _unsigned(blocks["stack"])[left].view(np.int64)
    ends = np.full(len(left), n, np.int64)
    return np.stack([ends * 0 - 1, end, ends, _plain(blocks["size"])[left], addr[left].view(np.int64), stack])


def _categories(
    con: duckdb.DuckDBPyConnection, key: dict[str, int], events: dict[str, npt.NDArray[np.generic]], begin: Array
) -> list[str | None]:
    """Category of each allocation where a profiler recorded it."""
    found = con.execute(
        "SELECT row, category FROM memory_event WHERE artifact_id = $artifact AND device = $device"
        " AND action = 'alloc' AND category IS NOT NULL",
        key,
    ).fetchall()
    if not found:
        return [None] * len(begin)
    by_row = dict(found)
    rows = _plain(events["row"])
    return [by_row.get(int(rows[at])) if at >= 0 else None for at in begin.tolist()]
