"""What the allocator held before the first recorded event, rewound from what it held at the end.

A history that began late, or whose ring was full, tells of frees, live blocks and segments without their beginning:
those were there at its start. The size of a block that was freed since is not recorded; it is its request, rounded,
and the rest of its range where that is too small to be split off.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forensics.models.allocator import Allocator
from forensics.models.allocator_blocks import Block, Pool
from forensics.models.allocator_expandable import ENDLESS, Range
from forensics.models.allocator_held import HeldSegment
from forensics.models.allocator_history import DEFAULT_POOL, History, Op
from forensics.models.allocator_settings import SMALL_REQUEST, SMALL_SEGMENT, AllocatorSettings


@dataclass
class Run:
    """Memory that was there at the start: a segment, or a run of mapped pages. `live`: address → allocation."""

    addr: int
    size: int
    stream: int
    pool_id: str
    small: bool
    expandable: bool
    live: dict[int, int] = field(default_factory=dict)
    exact: dict[int, int] = field(default_factory=dict)  # sizes of blocks that lived to the end
    age: int = 0  # rank among the runs, the oldest first; not recorded, so by address until ties tell

    @property
    def end(self) -> int:
        return self.addr + self.size


def rewind(history: History, held: Sequence[HeldSegment]) -> list[Run]:
    """What was there at the start, by address; empty when the history reaches back to the first allocation.

    Adds to `history` the blocks that were alive from before its start to its end.
    """
    runs = sorted([*_segments(history, held), *_mapped(history, held)], key=lambda run: run.addr)
    for age, run in enumerate(runs):
        run.age = age
    starts = [run.addr for run in runs]
    older = {history.addrs[n]: n for n in range(history.n_allocs, len(history.sizes))}
    sizes: dict[int, int] = {}
    groups = {key: n for n, key in enumerate(history.groups)}
    for segment in held:
        for block in segment.blocks:
            if block.is_free or block.addr in history.alive or block.addr in history.waiting:
                continue
            older[block.addr] = len(history.sizes)
            sizes[block.addr] = block.size
            history.sizes.append(block.requested or block.size)
            history.addrs.append(block.addr)
            history.rows.append(-1)
            key = (segment.pool_id, segment.stream)
            if key not in groups:
                groups[key] = len(history.groups)
                history.groups.append(key)
            history.group_of.append(groups[key])
    for addr, number in older.items():
        at = bisect_right(starts, addr) - 1
        if at >= 0 and addr < runs[at].end:
            runs[at].live[addr] = number
            if addr in sizes:
                runs[at].exact[addr] = sizes[addr]
    return runs


def lay_out(allocator: Allocator, history: History, runs: Sequence[Run]) -> dict[int, Block]:
    """Puts what was there at the start into an empty allocator; its blocks by allocation."""
    blocks: dict[int, Block] = {}
    last: Block | None = None  # the unmapped block behind the last expandable run
    settings = allocator.settings
    orders = [allocator.next_order() for _ in runs]
    for index, run in enumerate(runs):
        pool = allocator.pool(run.pool_id, run.stream, small=run.small)
        if not run.expandable:
            chain = _chain(pool, run, history, settings, None, orders[run.age])
            blocks.update(_named(chain))
            allocator.reserved += run.size
            continue
        page = settings.page_bytes(small=run.small)
        if last is None or last.pool is not pool or (run.addr - _range_of(last).start) % page:
            last = allocator.ranges.adopt(pool, run.addr, page, orders[run.age])
        spans = _range_of(last)
        pool.unmapped.remove(last)
        chain = _chain(pool, run, history, settings, spans, spans.order)
        blocks.update(_named(chain))
        following = runs[index + 1].addr if index + 1 < len(runs) else run.end + ENDLESS
        reach = min(following, spans.start + allocator.ranges.range_bytes(page))
        last = _surround(pool, spans, last, [block for _, block in chain], reach)
        allocator.reserved += run.size
    allocator.peak_reserved = max(allocator.peak_reserved, allocator.reserved)
    return blocks


def _named(chain: Sequence[tuple[int | None, Block]]) -> dict[int, Block]:
    return {number: block for number, block in chain if number is not None}


def _range_of(block: Block) -> Range:
    assert isinstance(block.expandable, Range)
    return block.expandable


def _surround(pool: Pool, spans: Range, before: Block, chain: Sequence[Block], reach: int) -> Block:
    """Links the blocks of a run into the unmapped addresses around it, up to `reach`; the block behind them."""
    first, end = chain[0], chain[-1].addr + chain[-1].size
    if first.addr > before.addr:
        before.size = first.addr - before.addr
        first.prev, before.next = before, first
        pool.unmapped.append(before)
    elif before.prev is not None:
        first.prev, before.prev.next = before.prev, first
    rest = Block(pool, end, max(0, reach - end), spans.order)
    rest.expandable, rest.mapped = spans, False
    if rest.size:
        rest.prev, chain[-1].next = chain[-1], rest
    else:
        rest.prev = chain[-1]
    pool.unmapped.append(rest)
    pool.unmapped.sort(key=lambda block: block.addr)
    return rest


def _chain(
    pool: Pool, run: Run, history: History, settings: AllocatorSettings, spans: Range | None, order: int
) -> list[tuple[int | None, Block]]:
    """Live and free blocks that fill a run, linked."""
    chain: list[tuple[int | None, Block]] = []
    at = run.addr
    live = sorted(run.live.items())
    for index, (addr, number) in enumerate(live):
        if addr > at:
            chain.append((None, Block(pool, at, addr - at, order)))
        limit = live[index + 1][0] if index + 1 < len(live) else run.end
        size = run.exact.get(addr) or _block_bytes(pool, settings, history.sizes[number], limit - addr)
        chain.append((number, Block(pool, addr, size, order)))
        at = addr + size
    if at < run.end:
        chain.append((None, Block(pool, at, run.end - at, order)))
    for (_, one), (_, two) in pairwise(chain):
        one.next, two.prev = two, one
    for owner, block in chain:
        block.expandable = spans
        if owner is None:
            pool.insert(block)
    return chain


def _block_bytes(pool: Pool, settings: AllocatorSettings, requested: int, room: int) -> int:
    rounded = settings.rounded_one(requested)
    return rounded if room - rounded >= pool.split_from else room


def _segments(history: History, held: Sequence[HeldSegment]) -> list[Run]:
    """Segments that the history does not tell the beginning of."""
    known: set[int] = set()
    runs = []
    for kind, number in zip(history.kinds, history.numbers, strict=True):
        if kind == Op.OBTAIN:
            known.add(history.segments[number].addr)
        elif kind == Op.RELEASE:
            segment = history.segments[number]
            if segment.addr not in known:
                small = segment.size == SMALL_SEGMENT
                runs.append(Run(segment.addr, segment.size, segment.stream, segment.pool_id, small, False))
            known.discard(segment.addr)
    runs += [
        Run(s.addr, s.size, s.stream, s.pool_id, s.small, False)
        for s in held
        if not s.expandable and s.addr not in known
    ]
    return runs


def _mapped(history: History, held: Sequence[HeldSegment]) -> list[Run]:
    """Runs of pages that were mapped at the start: those of the end, with all maps and unmaps undone."""
    runs = [Run(s.addr, s.size, s.stream, s.pool_id, s.small, True) for s in held if s.expandable]
    for kind, number in zip(reversed(history.kinds), reversed(history.numbers), strict=True):
        segment = history.segments[number] if kind in (Op.MAP, Op.UNMAP) else None
        if segment is None:
            continue
        if kind == Op.MAP:
            runs = [part for run in runs for part in _without(run, segment.addr, segment.addr + segment.size)]
        else:
            small = _is_small(history, segment.addr, segment.size)
            runs.append(Run(segment.addr, segment.size, segment.stream, segment.pool_id, small, True))
    joined: list[Run] = []
    for run in sorted(runs, key=lambda run: run.addr):
        before = joined[-1] if joined else None
        if before is not None and before.end == run.addr and (before.stream, before.small) == (run.stream, run.small):
            before.size += run.size
        else:
            joined.append(run)
    return joined


def _is_small(history: History, addr: int, size: int) -> bool:
    """Whether pages that are gone at the end belonged to the small pool: by what was allocated in them."""
    inside = [s for a, s in zip(history.addrs, history.sizes, strict=True) if addr <= a < addr + size]
    return bool(inside) and max(inside) <= SMALL_REQUEST


def _without(run: Run, start: int, end: int) -> list[Run]:
    if end <= run.addr or start >= run.end:
        return [run]
    parts = [(run.addr, start), (end, run.end)]
    return [Run(a, b - a, run.stream, run.pool_id, run.small, True) for a, b in parts if b > a]


def learn_pools(history: History, held: Sequence[HeldSegment]) -> None:
    """Tells allocations of private pools where old versions record no pool: by the segments still held at the end."""
    private = sorted((s.addr, s.end, s.pool_id) for s in held if s.pool_id != DEFAULT_POOL)
    if not private or any(pool_id != DEFAULT_POOL for pool_id, _ in history.groups):
        return
    starts = [addr for addr, _, _ in private]
    obtained = {
        history.segments[n].addr: position
        for position, (kind, n) in enumerate(zip(history.kinds, history.numbers, strict=True))
        if kind == Op.OBTAIN
    }
    groups = {key: n for n, key in enumerate(history.groups)}
    for position, (kind, number) in enumerate(zip(history.kinds, history.numbers, strict=True)):
        if kind != Op.ALLOC:
            continue
        at = bisect_right(starts, history.addrs[number]) - 1
        if at < 0 or history.addrs[number] >= private[at][1] or position < obtained.get(starts[at], -1):
            continue
        key = (private[at][2], history.groups[history.group_of[number]][1])
        if key not in groups:
            groups[key] = len(history.groups)
            history.groups.append(key)
        history.group_of[number] = groups[key]


def learn_age(pool: Pool, chosen: Block, addr: int, runs: Sequence[Run]) -> bool:
    """Where the record took another free block of the size of the `chosen` one, exchanges the ages of their runs.

    Both have to lie in runs that were there at the start, whose ages are not recorded.
    """
    equals = pool.blocks[pool.find(chosen.size) : pool.find(chosen.size + 1)]
    taken = next((block for block in equals if block.addr == addr), None)
    if taken is None or taken.order == chosen.order or chosen.expandable is not None:
        return False
    by_addr = {run.addr: run for run in runs if not run.expandable}
    heads = [block_chain(block) for block in (chosen, taken)]
    one, two = (by_addr.get(chain[0].addr) for chain in heads)
    if one is None or two is None:
        return False
    one.age, two.age = two.age, one.age
    for chain, order in zip(heads, (taken.order, chosen.order), strict=True):
        for block in chain:
            if block.free:
                block.pool.remove(block)
                block.order = order
                block.pool.insert(block)
            else:
                block.order = order
    return True


def block_chain(block: Block) -> list[Block]:
    """All blocks of the segment of this one, by address."""
    while block.prev is not None:
        block = block.prev
    chain = [block]
    while (following := chain[-1].next) is not None:
        chain.append(following)
    return chain
