"""What the allocator's history in a CUDA memory snapshot tells about the blocks that were held at its end."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from forensics.artifact import Frame, Stacks
from forensics.formats._columns import MAX_UINT64, clean_text

ACTIONS: tuple[str, ...] = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")
ACTIONS += ("segment_map", "segment_unmap", "snapshot", "oom", "annotate")
_ALLOC, _, _FREED, _SEGMENT_ALLOC, _SEGMENT_FREE, _SEGMENT_MAP, _, _, _OOM, _ = range(len(ACTIONS))
_MAX_FRAMES = 4096
MAX_DEVICE_BYTES = 1 << 44  # 16 TiB, sixty times the largest device of 2026
_MAX_SIMILAR = 64
_MAX_KNOWN = 1 << 20  # lists or frames that are known again
Array = npt.NDArray[Any]


class StackIds:
    """Ids of frame lists. Lists and frames are shared within a snapshot, so both are known again by identity; what is
    known is kept alive, so that no other can have its identity."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._lists: dict[int, tuple[list[Any], int | None]] = {}
        self._similar: dict[tuple[int, ...], list[list[Any]]] = {}
        self._frames: dict[int, tuple[Any, Frame]] = {}

    def of(self, frames: Any) -> int | None:
        if type(frames) is not list or not frames:
            return None
        return self._known(frames)[1]

    def canonical(self, frames: list[Any]) -> list[Any]:
        """A known list of the same frames."""
        return self._known(frames)[0]

    def _known(self, frames: list[Any]) -> tuple[list[Any], int | None]:
        if found := self._lists.get(id(frames)):
            return found
        # Each event may have a list of its own of the same frames. Comparing identities takes a third of the time of
        # hashing them, and never looks into them.
        n = len(frames)
        similar = self._similar.setdefault((n, id(frames[0]), id(frames[n // 2]), id(frames[-1])), [])
        for known in similar:
            if all(map(is_, known, frames)):
                return self._lists[id(known)]
        # Snapshots have the innermost frame first.
        found = (frames, self._stacks.add([self._frame(f) for f in reversed(frames[:_MAX_FRAMES])]))
        if len(self._lists) >= _MAX_KNOWN:
            self._lists.clear()
            self._similar.clear()
        elif len(similar) < _MAX_SIMILAR:
            similar.append(frames)
            self._lists[id(frames)] = found
        return found

    def _frame(self, raw: Any) -> Frame:
        found = self._frames.get(id(raw))
        if found is None:
            if len(self._frames) >= _MAX_KNOWN:
                self._frames.clear()
            found = self._frames[id(raw)] = (raw, _frame(raw))
        return found[1]


def _frame(raw: Any) -> Frame:
    if type(raw) is str:
        return Frame(clean_text(raw))
    if type(raw) is not dict:
        return Frame("??")
    name, file, line = raw.get("name"), raw.get("filename"), raw.get("line")
    return Frame(
        clean_text(name) if type(name) is str and name else "??",
        clean_text(file) if type(file) is str and file not in ("", "??") else None,  # C++ frames have neither
        line if type(line) is int and 0 < line < 1 << 31 else None,
    )


class Optional(NamedTuple):
    """Values of a column, and which of them are there."""

    values: Array
    there: Array

    def get(self, index: int) -> int | None:
        return int(self.values[index]) if self.there[index] else None

    def at(self, indices: Array) -> list[int | None]:
        values, there = self.values[indices].tolist(), self.there[indices]
        return values if there.all() else [v if t else None for v, t in zip(values, there.tolist(), strict=True)]


@dataclass
class Batch:
    """Some events of one device in recorded order. Actions are indices of ACTIONS; texts are numbers, -1 for none."""

    rows: Array
    actions: Array
    ts_ns: Array  # 0 unknown
    addr: Optional
    size: Optional
    stream: Optional
    device_free: Optional
    stack: Optional
    texts: dict[str, Array]


class Origin(NamedTuple):
    """What is known of the allocation that lives at an address."""

    ts_ns: int  # 0 unknown
    size: int | None
    stack: int | None
    category: int  # number of the text, -1 for none


@dataclass
class History:
    """What the events of one device tell about its blocks."""

    device: int
    n_events: int = 0
    n_kept: int = 0
    keys: set[str] = field(default_factory=set)
    first_ns: int | None = None
    last_ns: int | None = None
    alive: dict[int, Origin] = field(default_factory=dict)
    n_stray: int = 0  # events that end something whose beginning is not in the history
    n_too_free: int = 0  # failed allocations beside which more was free than any device has
    ooms: list[int | None] = field(default_factory=list)  # their times
    _mapped: dict[int, int] = field(default_factory=dict)  # start → end of what was obtained from the driver
    _ranges: list[tuple[int, int]] | None = None

    def follow(self, batch: Batch) -> None:
        """Follows blocks and segments through events."""
        self.n_kept += len(batch.actions)
        times = batch.ts_ns[batch.ts_ns > 0]
        if len(times):
            low, high = int(times.min()), int(times.max())
            self.first_ns = low if self.first_ns is None else min(low, self.first_ns)
            self.last_ns = high if self.last_ns is None else max(high, self.last_ns)
        for index in np.flatnonzero(batch.actions >= _SEGMENT_ALLOC).tolist():
            self._follow_segment(int(batch.actions[index]), batch, index)
        self._follow_blocks(batch)

    def _follow_segment(self, action: int, batch: Batch, index: int) -> None:
        addr = batch.addr.get(index)
        if action == _OOM:
            self.ooms.append(int(batch.ts_ns[index]) or None)
            self.n_too_free += (batch.device_free.get(index) or 0) > MAX_DEVICE_BYTES
        elif addr is None:
            return
        elif action in (_SEGMENT_ALLOC, _SEGMENT_MAP):
            self._ranges = None
            self._mapped[addr] = max(self._mapped.get(addr, 0), addr + (batch.size.get(index) or 0))
        elif action == _SEGMENT_FREE and addr not in self._mapped:
            self.n_stray += 1

    def _follow_blocks(self, batch: Batch) -> None:
        """Only the last event at each address counts for what is alive, and only neighbours there for strays."""
        is_alloc = batch.actions == _ALLOC
        chosen = np.flatnonzero((is_alloc | (batch.actions == _FREED)) & batch.addr.there)
        if not len(chosen):
            return
        order = chosen[np.argsort(batch.addr.values[chosen], kind="stable")]
        addr, begins = batch.addr.values[order], is_alloc[order]
        is_first = np.append(True, addr[1:] != addr[:-1])
        is_last = np.append(is_first[1:], True)
        alive = self.alive
        self.n_stray += int(np.count_nonzero(~begins[1:] & ~is_first[1:] & ~begins[:-1]))
        self.n_stray += sum(a not in alive for a in addr[is_first & ~begins].tolist())
        for freed in addr[is_last & ~begins].tolist():
            alive.pop(freed, None)
        last = order[is_last & begins]
        category = batch.texts["category"][last].tolist() if "category" in batch.texts else [-1] * len(last)
        origins = map(Origin, batch.ts_ns[last].tolist(), batch.size.at(last), batch.stack.at(last), category)
        alive.update(zip(batch.addr.values[last].tolist(), origins, strict=True))

    def holds_start_of(self, addr: int) -> bool:
        """Whether the address lies in a range that the history saw being obtained."""
        if self._ranges is None:
            self._ranges = _joined(self._mapped)
        at = bisect_right(self._ranges, (addr, MAX_UINT64 + 1)) - 1
        return at >= 0 and self._ranges[at][0] <= addr < self._ranges[at][1]


def _joined(mapped: dict[int, int]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for addr, end in sorted(mapped.items()):
        if joined and addr <= joined[-1][1]:
            start, known_end = joined[-1]
            joined[-1] = (start, max(end, known_end))
        else:
            joined.append((addr, end))
    return joined
