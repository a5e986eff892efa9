"""Blocks of the caching allocator, and the free ones of one pool in the order in which it searches them.

A segment is a list of blocks linked by address. Free neighbours never stay apart, so a free run is one block.
"""

from __future__ import annotations

from bisect import bisect_left

# A key orders free blocks by size, then age of their segment, then address: 57 bits hold any CUDA address.
_ADDR_BITS = 57
_SIZE_AT = _ADDR_BITS + 24


class Block:
    """A range of a segment. `free`: it can be handed out; `mapped`: there is memory behind it.

    `order`: what the age of its segment adds to its key.
    """

    __slots__ = ("addr", "age_from", "expandable", "free", "mapped", "next", "order", "pool", "prev", "size")

    def __init__(self, pool: Pool, addr: int, size: int, order: int) -> None:
        self.pool = pool
        self.addr = addr
        self.size = size
        self.order = order
        self.prev: Block | None = None
        self.next: Block | None = None
        self.free = False
        self.mapped = True
        self.expandable: object | None = None  # the range of addresses that it is part of
        self.age_from = 0

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None


class Pool:
    """Free blocks of one stream in one of the allocator's pools, by size, then address.

    `id`: "0.0" for the default pool. `split_from`: a block is split when at least so many bytes would remain.
    `searches`: how often the pool (of all streams) was searched, by which the garbage collector counts ages.
    """

    __slots__ = ("blocks", "id", "keys", "searches", "small", "split_from", "stream", "unmapped")

    def __init__(self, pool_id: str, stream: int, *, small: bool, split_from: int, searches: list[int]) -> None:
        self.id = pool_id
        self.stream = stream
        self.small = small
        self.split_from = split_from
        self.searches = searches
        self.keys: list[int] = []
        self.blocks: list[Block] = []
        self.unmapped: list[Block] = []  # by address

    def find(self, size: int) -> int:
        """Index of the smallest free block that holds `size`; the number of blocks when there is none."""
        return bisect_left(self.keys, size << _SIZE_AT)

    def take(self, index: int) -> Block:
        block = self.blocks.pop(index)
        del self.keys[index]
        block.free = False
        return block

    def remove(self, block: Block) -> None:
        index = bisect_left(self.keys, (block.size << _SIZE_AT) + block.order + block.addr)
        del self.keys[index], self.blocks[index]
        block.free = False

    def insert(self, block: Block) -> None:
        key = (block.size << _SIZE_AT) + block.order + block.addr
        index = bisect_left(self.keys, key)
        self.keys.insert(index, key)
        self.blocks.insert(index, block)
        block.free = True
        block.age_from = self.searches[0]

    def at(self, addr: int, size: int) -> Block | None:
        """The free block of exactly this range."""
        for block in self.blocks[self.find(size) : self.find(size + 1)]:
            if block.addr == addr:
                return block
        return None

    def split(self, block: Block, size: int) -> Block:
        """Cuts `size` bytes off the front of a block that is in no list; the rest becomes a free block."""
        front = Block(self, block.addr, size, block.order)
        front.expandable = block.expandable
        front.prev = block.prev
        if front.prev is not None:
            front.prev.next = front
        front.next = block
        block.prev = front
        block.addr += size
        block.size -= size
        self.insert(block)
        return front

    def give_back(self, block: Block) -> None:
        """Makes a block free, joined with its free neighbours."""
        before, after = block.prev, block.next
        if before is not None and before.free:
            self.remove(before)
            block.addr = before.addr
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        if after is not None and after.free:
            self.remove(after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block
        self.insert(block)


def order_of(number: int) -> int:
    """What a segment that was the `number`th to be obtained adds to the keys of its blocks."""
    return min(number, (1 << 24) - 1) << _ADDR_BITS
