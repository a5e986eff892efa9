"""The CUDA caching allocator of one device, as PyTorch implements it in c10/cuda/CUDACachingAllocator.cpp.

Requests are given as rounded sizes in a pool; what is held of the device is `reserved` bytes. Events of other streams
are not modelled: a block whose free was requested while another stream used it waits until it is told to be completed,
or until the allocator waits for all streams before it gives back what it caches.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.models.allocator_blocks import Block, Pool, order_of
from forensics.models.allocator_device import Device
from forensics.models.allocator_expandable import ExpandableSegments
from forensics.models.allocator_settings import MIN_BLOCK, SMALL_REQUEST, UNLIMITED, AllocatorSettings

DEFAULT_POOL = "0.0"


class Allocator:
    """`allowed`: limit that a memory fraction sets, bytes; None when none is set or known.

    `by_age`: among free blocks of one size the one of the oldest segment is taken, as since PyTorch 2.13
    (pytorch/pytorch#183591), else the one at the lowest address. `device_bytes`: see ExpandableSegments.
    """

    def __init__(
        self,
        settings: AllocatorSettings,
        device: Device,
        *,
        allowed: int | None = None,
        by_age: bool = True,
        device_bytes: int | None = None,
    ) -> None:
        self.settings = settings
        self.device = device
        self.allowed = allowed
        self.by_age = by_age
        self._n_obtained = 0
        self.pools: dict[tuple[str, bool, int], Pool] = {}
        self.searches: dict[tuple[str, bool], list[int]] = {}
        self.waiting: dict[Block, None] = {}  # freed, but in use on other streams
        self.reserved = 0
        self.peak_reserved = 0
        self.obtained = 0  # bytes in all
        self.n_retries = 0
        self.ranges = ExpandableSegments(settings, device, device_bytes, self.next_order)
        self._collects = settings.collects and allowed is not None
        self._plain = not settings.expandable and settings.max_split_bytes >= UNLIMITED and not self._collects

    def pool(self, pool_id: str, stream: int, *, small: bool) -> Pool:
        key = (pool_id, small, stream)
        found = self.pools.get(key)
        if found is None:
            counter = self.searches.setdefault((pool_id, small), [0])
            split_from = MIN_BLOCK if small or self.settings.expandable else SMALL_REQUEST + 1
            found = Pool(pool_id, stream, small=small, split_from=split_from, searches=counter)
            self.pools[key] = found
        return found

    def malloc(self, pool: Pool, size: int) -> Block | None:
        """A block of at least `size` bytes; None when neither the cache nor the device has it."""
        index = pool.find(size) if self._plain else self._search(pool, size)
        if index < len(pool.keys):
            block: Block | None = pool.take(index)
        else:
            block = self._obtain(pool, size)
        if block is None:
            return None
        if block.size - size >= pool.split_from and (
            pool.small or self.settings.expandable or size < self.settings.max_split_bytes
        ):
            return pool.split(block, size)
        return block

    def next_order(self) -> int:
        self._n_obtained += 1
        return order_of(self._n_obtained) if self.by_age else 0

    def free(self, block: Block) -> None:
        block.pool.give_back(block)

    def wait(self, block: Block) -> None:
        """The block is freed, but another stream may still use it."""
        self.waiting[block] = None

    def complete(self, block: Block) -> None:
        if block in self.waiting:
            del self.waiting[block]
            block.pool.give_back(block)

    def empty_cache(self) -> None:
        """Waits for all streams, then gives back all segments of the default pool that are free as a whole."""
        for block in list(self.waiting):
            self.complete(block)
        for small in (False, True):
            self.release_pool(DEFAULT_POOL, small=small)

    def release_pool(self, pool_id: str, *, small: bool) -> None:
        """Gives back the segments of one pool that are free as a whole, and the free pages of expandable ones."""
        for pool in self._streams(pool_id, small=small):
            for block in list(pool.blocks):
                if block.expandable is not None:
                    self._changed(-self.ranges.unmap(block))
                elif not block.is_split:
                    self.release(block)

    def release(self, block: Block) -> None:
        block.pool.remove(block)
        self.device.release(block.addr, block.size)
        self._changed(-block.size)

    def releasable_bytes(self) -> int:
        """What `empty_cache` would give back of the default pool, waiting blocks aside."""
        total = 0
        for small in (False, True):
            for pool in self._streams(DEFAULT_POOL, small=small):
                for block in pool.blocks:
                    if block.expandable is not None:
                        total += self.ranges.whole_pages(block)[1]
                    elif not block.is_split:
                        total += block.size
        return total

    def _streams(self, pool_id: str, *, small: bool) -> Iterator[Pool]:
        keys = sorted(k for k in self.pools if k[:2] == (pool_id, small))
        return (self.pools[k] for k in keys)

    def _changed(self, by: int) -> None:
        self.reserved += by
        self.obtained += max(by, 0)
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _search(self, pool: Pool, size: int) -> int:
        """Index of the block that serves the request; the number of blocks when none may."""
        if self._collects:
            pool.searches[0] += 1
        blocks, none = pool.blocks, len(pool.blocks)
        index = pool.find(size)
        if index == none:
            return none
        if blocks[index].expandable is not None:
            index = self.ranges.best(blocks, index)
            if index == none:
                return none
        limit, found = self.settings.max_split_bytes, blocks[index].size
        if size < limit:
            return index if found < limit else none
        return index if found < size + self.settings.max_round_bytes else none

    def _obtain(self, pool: Pool, size: int) -> Block | None:
        """A block out of new memory, if need be after giving back what is cached."""
        if self._collects:
            self._collect()
        block = self._grow(pool, size)
        if block is None and self._release_oversize(pool, size):
            block = self._grow(pool, size)
        if block is None:
            self.empty_cache()
            self.n_retries += 1
            block = self._grow(pool, size)
        return block

    def _grow(self, pool: Pool, size: int) -> Block | None:
        n_bytes = self.settings.segment_bytes(size)
        if self.allowed is not None and self.reserved + n_bytes > self.allowed:
            return None
        if self.settings.expandable:
            before = self.ranges.n_mapped
            block = self.ranges.grow(pool, size, self.reserved)
            self._changed(self.ranges.n_mapped - before)
            return block
        addr = self.device.obtain(n_bytes, self.reserved)
        if not addr:
            return None
        self._changed(n_bytes)
        return Block(pool, addr, n_bytes, self.next_order())

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """Gives back blocks too large to be split: one that holds the request, else the largest until they would."""
        limit = self.settings.max_split_bytes
        if limit >= UNLIMITED:
            return False
        wanted = max(size, limit)
        index = pool.find(wanted)
        if index < len(pool.blocks):
            return self._release_whole(pool.blocks[index]) > 0
        released = 0
        for block in reversed(list(pool.blocks)):
            if released >= wanted or block.size < limit:
                break
            released += self._release_whole(block)
        return released >= wanted

    def _release_whole(self, block: Block) -> int:
        if block.expandable is not None:
            return 0
        size = block.size
        self.release(block)
        return size

    def _collect(self) -> None:
        """The garbage collector: gives back whole cached segments of the default large pool, longest unused first."""
        threshold = int(self.settings.gc_ratio * (self.allowed or 0))
        wanted = self.reserved - threshold
        if wanted <= 0:
            return
        whole = [
            (p.searches[0] - b.age_from, b)
            for p in self._streams(DEFAULT_POOL, small=False)
            for b in p.blocks
            if not b.is_split and b.expandable is None
        ]
        ages, reclaimed = sum(age for age, _ in whole), 0
        while whole and reclaimed < wanted:
            mean = ages / len(whole)
            due = [(age, b) for age, b in whole if age >= mean]
            whole = [(age, b) for age, b in whole if age < mean]
            for age, block in due:
                ages -= age
                reclaimed += block.size
                self.release(block)
