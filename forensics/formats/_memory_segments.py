"""Segments and blocks out of a CUDA memory snapshot, joined with what its history tells about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from forensics.formats._columns import MAX_UINT64, Columns
from forensics.formats._memory_events import Words, category
from forensics.formats._memory_history import History, StackIds

SEGMENT_KEYS = {"device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream"}
SEGMENT_KEYS |= {"segment_type", "segment_pool_id", "is_expandable", "registration_counter", "blocks"}
SEGMENT_KEYS |= {"frames", "forward_frames"}
BLOCK_KEYS = {"address", "size", "requested_size", "state", "frames", "forward_frames", "history", "category"}
BLOCK_KEYS |= {"compile_context", "user_metadata", "version"}
_STATES = {
    "active_allocated": "active_allocated",
    "active_pending_free": "active_pending_free",
    "active_awaiting_free": "active_pending_free",  # as the documentation spells it
    "inactive": "inactive",
}
_SMALL_SEGMENT_BYTES = 2 << 20  # segments of the small pool, whose requests are up to 1 MiB

_KINDS = {
    pa.int32(): ("device",),
    pa.uint64(): ("addr", "segment_addr", "stream", "stack_id"),
    pa.string(): ("pool_id", "size_class", "state", "category"),
    pa.bool_(): ("expandable",),
}  # all other columns are 64-bit integers
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_SEGMENT_BYTES = ("total_bytes", "allocated_bytes", "active_bytes", "requested_bytes")
_SEGMENT_COLUMNS = ("row", "device", "addr", *_SEGMENT_BYTES, "stream", "pool_id", "size_class", "expandable")
_BLOCK_PLACE = ("row", "device", "segment_addr", "addr", "size_bytes", "requested_bytes")
_BLOCK_COLUMNS = (*_BLOCK_PLACE, "state", "allocated_ns", "category", "stack_id")


@dataclass
class DeviceHeld:
    """What one device held, and how much of it its history does not explain."""

    n_segments: int = 0
    n_live: int = 0
    n_segments_unexplained: int = 0
    n_live_unexplained: int = 0


@dataclass
class Held:
    """All segments and blocks of a snapshot."""

    segments: list[tuple[Any, ...]] = field(default_factory=list)
    blocks: list[tuple[Any, ...]] = field(default_factory=list)
    devices: dict[int, DeviceHeld] = field(default_factory=dict)
    n_read: int = 0
    n_mismatched: int = 0  # segments whose blocks do not add up to their size
    n_repeated: int = 0  # segments that were listed before: left out
    n_misplaced: int = 0  # blocks that begin inside another one or outside of their segment
    n_overfull: int = 0  # allocated blocks that are smaller than what was requested
    segment_keys: set[str] = field(default_factory=set)
    block_keys: set[str] = field(default_factory=set)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """Rows of memory_segment and memory_block."""
        return _table(self.segments, _SEGMENT_COLUMNS), _table(self.blocks, _BLOCK_COLUMNS)


def _table(rows: list[tuple[Any, ...]], names: tuple[str, ...]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return pa.table({n: pa.array(c, _KIND_OF.get(n, pa.int64())) for n, c in zip(names, columns, strict=True)})


class SegmentReader:
    """Reads segments; `finish` joins them with the history, which stands behind them in the file."""

    def __init__(self, ids: StackIds, columns: Columns) -> None:
        self.ids = ids
        self.columns = columns
        self.held = Held()
        self._listed: set[tuple[int, int, int | None]] = set()

    def read(self, segments: list[Any], device: int | None = None) -> None:
        """Adds segments; `device` overrides what they say."""
        held, whole = self.held, self.columns.whole
        for segment in segments:
            row = held.n_read
            held.n_read += 1
            if type(segment) is not dict:
                self.columns.bad["segment"] += 1
                continue
            held.segment_keys |= segment.keys()
            on = whole("segment.device", segment.get("device", 0), -1, 1 << 20) if device is None else device
            addr = whole("segment.address", segment.get("address"), high=MAX_UINT64)
            blocks = segment.get("blocks")
            if on is None or addr is None:
                self.columns.bad["segment"] += 1
                continue
            size = segment.get("total_size")
            place = on, addr, size if type(size) is int else None
            if place in self._listed:
                held.n_repeated += 1
                continue
            self._listed.add(place)
            sums = self.read_blocks(on, addr, blocks if type(blocks) is list else [])
            self.add_segment(row, on, addr, segment, sums)

    def add_segment(self, row: int, device: int, addr: int, segment: dict[str, Any], sums: dict[str, int]) -> None:
        held, whole = self.held, self.columns.whole
        by_blocks = sum(sums.values())
        total = whole("segment.total_size", segment.get("total_size"))
        if total is None:
            total = by_blocks
        elif total != by_blocks:
            held.n_mismatched += 1
        allocated = whole("segment.allocated_size", segment.get("allocated_size"))
        active = whole("segment.active_size", segment.get("active_size"))
        if allocated is None:
            allocated = sums["active_allocated"]
        if active is None:
            active = allocated + sums["active_pending_free"]
        kind = segment.get("segment_type")
        if kind not in ("small", "large"):
            kind = "small" if total <= _SMALL_SEGMENT_BYTES else "large"
        pool = self.columns.pair("segment.segment_pool_id", segment.get("segment_pool_id"))
        stream = whole("segment.stream", segment.get("stream"), high=MAX_UINT64)
        requested = whole("segment.requested_size", segment.get("requested_size"))
        expandable = segment.get("is_expandable") is True
        held.segments.append(
            (row, device, addr, total, allocated, active, requested, stream or 0, pool or "0.0", kind, expandable)
        )
        here = held.devices.setdefault(device, DeviceHeld())
        here.n_segments += 1

    def read_blocks(self, device: int, segment_addr: int, blocks: list[Any]) -> dict[str, int]:
        """Adds the blocks of a segment; gives their bytes by state."""
        held, whole = self.held, self.columns.whole
        sums = dict.fromkeys(("active_allocated", "active_pending_free", "inactive"), 0)
        here = held.devices.setdefault(device, DeviceHeld())
        next_addr = segment_addr
        for block in blocks:
            if type(block) is not dict:
                self.columns.bad["block"] += 1
                continue
            held.block_keys |= block.keys()
            size = whole("block.size", block.get("size"))
            spelt = block.get("state")
            state = _STATES.get(spelt) if type(spelt) is str else None
            addr = whole("block.address", block.get("address"), high=MAX_UINT64)  # absent before PyTorch 2.1
            if addr is None:
                addr = next_addr
            if size is None or state is None or addr + size > MAX_UINT64:
                self.columns.bad["block"] += 1
                continue
            held.n_misplaced += addr < next_addr
            next_addr = addr + size
            sums[state] += size
            requested, kind, stack = self.owner(block)
            held.n_overfull += state == "active_allocated" and requested is not None and requested > size
            here.n_live += state != "inactive"
            place = (len(held.blocks), device, segment_addr, addr, size)
            held.blocks.append((*place, requested, state, None, kind, stack))
        return sums

    def owner(self, block: dict[str, Any]) -> tuple[int | None, str | None, int | None]:
        """Requested bytes, category and stack of the allocation that lives, or last lived, in a block."""
        requested = self.columns.whole("block.requested_size", block.get("requested_size"))
        frames, kind = block.get("frames"), block.get("category")
        past = block.get("history")
        if type(past) is list and past and type(past[0]) is dict:  # until PyTorch 2.0: the latest owner first
            frames = frames or past[0].get("frames")
            if requested is None:
                requested = self.columns.whole("block.history.real_size", past[0].get("real_size"))
        return requested, category(kind if type(kind) is str else None), self.ids.of(frames)

    def finish(self, histories: dict[int, History], words: Words) -> None:
        """Adds what the history knows of the allocations that live in blocks, and counts what it does not know."""
        for segment in self.held.segments:
            history = histories.get(segment[1])
            unexplained = history is None or not history.holds_start_of(segment[2])
            self.held.devices[segment[1]].n_segments_unexplained += unexplained
        blocks = self.held.blocks
        for number, (*place, requested, state, _, kind, stack) in enumerate(blocks):
            if state == "inactive":
                continue
            device, addr = place[1], place[3]
            origin = histories[device].alive.get(addr) if device in histories else None
            if origin is None:
                self.held.devices[device].n_live_unexplained += 1
                continue
            blocks[number] = (
                *place,
                origin.size if requested is None else requested,
                state,
                origin.ts_ns or None,
                words.text(origin.category) if kind is None else kind,
                origin.stack if stack is None else stack,
            )
