"""Expandable segments: ranges of addresses that the caching allocator maps and unmaps page by page.

A range belongs to one pool and stream. It is a list of blocks of which some are unmapped; free blocks end where a page
without memory begins.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

from forensics.models.allocator_blocks import Block, Pool
from forensics.models.allocator_device import Device
from forensics.models.allocator_settings import AllocatorSettings

# More than any device has, for ranges of devices of unknown size.
ENDLESS = 1 << 41


class Range:
    """Addresses reserved for one expandable segment."""

    __slots__ = ("order", "page", "start")

    def __init__(self, start: int, page: int, order: int) -> None:
        self.start = start
        self.page = page
        self.order = order


class ExpandableSegments:
    """Maps and unmaps ranges of one device.

    `device_bytes`: all memory of the device, of which PyTorch reserves 9/8 in addresses for each range; None unknown.
    `next_order`: tells the age of a new range. `n_mapped`: bytes mapped in all by `grow`.
    """

    def __init__(
        self, settings: AllocatorSettings, device: Device, device_bytes: int | None, next_order: Callable[[], int]
    ) -> None:
        self.settings = settings
        self.device = device
        self.device_bytes = device_bytes
        self.next_order = next_order
        self.n_mapped = 0

    def best(self, blocks: Sequence[Block], index: int) -> int:
        """Index of the block to take when the smallest that holds the request lies in an expandable segment."""
        if not self.settings.expandable:  # switched off meanwhile: such blocks are passed over
            while index < len(blocks) and blocks[index].expandable is not None:
                index += 1
            return index
        # A block that can still grow counts with the bytes that it could grow to.
        while (
            index + 1 < len(blocks)
            and blocks[index].expandable is not None
            and _room(blocks[index + 1]) < _room(blocks[index])
        ):
            index += 1
        return index

    def grow(self, pool: Pool, size: int, reserved: int) -> Block | None:
        """A block of at least `size` bytes that new mappings complete; None when the device refuses one."""
        before = self.n_mapped
        block = self._candidate(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size), reserved):
            return None
        while block.size < size:
            following = block.next
            if following is None:
                return None
            wanted = min(size - block.size, following.size)
            if not self._map(following, wanted, reserved + self.n_mapped - before):
                return None
            block = following  # joined with the free block before it
        pool.remove(block)
        return block

    def whole_pages(self, block: Block) -> tuple[int, int]:
        """First address and bytes of the pages that lie in the block entirely."""
        spans = block.expandable
        assert isinstance(spans, Range)
        start = spans.start + -(-(block.addr - spans.start) // spans.page) * spans.page
        end = spans.start + (block.addr + block.size - spans.start) // spans.page * spans.page
        return start, max(0, end - start)

    def unmap(self, block: Block) -> int:
        """Gives back the whole pages of a free block; bytes."""
        start, size = self.whole_pages(block)
        return self.unmap_part(block, start, size) if size else 0

    def unmap_part(self, block: Block, start: int, size: int) -> int:
        """Gives back `size` bytes of whole pages from `start` on, inside a free block; bytes."""
        pool = block.pool
        pool.remove(block)
        before, after = start - block.addr, block.addr + block.size - start - size
        if before:
            _insert(pool, _cut(block, block.addr, before), block.prev, block)
        if after:
            _insert(pool, _cut(block, start + size, after), block, block.next)
        block.addr, block.size, block.mapped = start, size, False
        _join_unmapped(block)
        if block.is_split:  # else nothing of the range is left, and it is given up
            insort(pool.unmapped, block, key=_address)
        return size

    def _candidate(self, pool: Pool, size: int) -> Block:
        """The lowest place with enough addresses that are free or unmapped; else a new range."""
        for unmapped in pool.unmapped:
            start = unmapped
            if start.prev is not None and start.prev.free:
                start = start.prev
            if _has_addresses(start, size):
                return start
        page = self.settings.page_bytes(small=pool.small)
        return self.adopt(pool, self.device.range_start(), page, self.next_order())

    def adopt(self, pool: Pool, start: int, page: int, order: int) -> Block:
        """A new range, nothing of which is mapped."""
        fresh = Range(start, page, order)
        block = Block(pool, start, self.range_bytes(page), fresh.order)
        block.expandable, block.mapped = fresh, False
        insort(pool.unmapped, block, key=_address)
        return block

    def range_bytes(self, page: int) -> int:
        return ENDLESS if self.device_bytes is None else -(-self.device_bytes * 9 // 8 // page) * page

    def _map(self, block: Block, size: int, reserved: int) -> bool:
        """Maps the pages that hold the first `size` bytes of an unmapped block, and joins it with free neighbours."""
        spans, pool = block.expandable, block.pool
        assert isinstance(spans, Range)
        n_bytes = -(-size // spans.page) * spans.page
        if not self.device.grants(n_bytes, reserved):
            return False
        self.n_mapped += n_bytes
        pool.unmapped.remove(block)
        block.mapped = True
        if n_bytes < block.size:
            rest = _cut(block, block.addr + n_bytes, block.size - n_bytes)
            rest.mapped = False
            _link(rest, block, block.next)
            block.size = n_bytes
            insort(pool.unmapped, rest, key=_address)
        pool.give_back(block)
        return True


def _address(block: Block) -> int:
    return block.addr


def _room(block: Block) -> int:
    following = block.next
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _has_addresses(block: Block | None, size: int) -> bool:
    room = 0
    while room < size and block is not None and (block.free or not block.mapped):
        room += block.size
        block = block.next
    return room >= size


def _cut(block: Block, addr: int, size: int) -> Block:
    part = Block(block.pool, addr, size, block.order)
    part.expandable = block.expandable
    return part


def _link(block: Block, before: Block | None, after: Block | None) -> None:
    block.prev, block.next = before, after
    if before is not None:
        before.next = block
    if after is not None:
        after.prev = block


def _insert(pool: Pool, part: Block, before: Block | None, after: Block | None) -> None:
    _link(part, before, after)
    pool.insert(part)


def _join_unmapped(block: Block) -> None:
    """Joins a block that was just unmapped with unmapped neighbours; it is in no list yet."""
    for other in (block.prev, block.next):
        if other is None or other.mapped:
            continue
        block.pool.unmapped.remove(other)
        if other is block.prev:
            block.addr = other.addr
            _link(block, other.prev, block.next)
        else:
            _link(block, block.prev, other.next)
        block.size += other.size
