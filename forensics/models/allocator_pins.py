"""Live blocks that keep the free memory of segments apart: what freeing them would unlock for a request.

Only memory that the request could use counts: segments of its pool, stream and size class. Free bytes are usable where
their run holds the request, or where they could be given back to the device: a segment without a live block, and whole
pages of an expandable one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from forensics.models.allocator_held import HeldBlock, HeldSegment
from forensics.models.allocator_settings import LARGE_SEGMENT, SMALL_SEGMENT

Frame = tuple[str, str | None, int | None]  # function, file, line
# Functions that have no name of their own: the one around them is named.
_UNNAMED = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>"})
_EQUAL = 0.01  # of the score: below that the frame is named that allocated least, a helper of many others least of all
_MAX_SITES = 8
# Sets of blocks that are compared for a site; more distinct frames than that are compared by the bytes they touch.
_MAX_CANDIDATES = 400


@dataclass(frozen=True)
class Site:
    """Blocks that a line of code allocated; `frame` None where no stack was recorded.

    `unlocked`: free bytes that become usable when all of them are freed. `held`: their own bytes. `rank`: from 1, by
    how much of what is locked they unlock against what they hold.
    """

    rank: int
    frame: Frame | None
    unlocked: int
    held: int
    blocks: tuple[tuple[HeldSegment, HeldBlock], ...]


@dataclass(frozen=True)
class Pin:
    """`joined`: free bytes that touch the block, which freeing it alone makes one run with its own.

    `empties`: it is the only live block of its segment.
    """

    site: Site
    segment: HeldSegment
    block: HeldBlock
    joined: int
    empties: bool


@dataclass(frozen=True)
class Code:
    """`frames`: the job's own frames of each stack, innermost first. `allocated`: bytes that ever came through each."""

    frames: Mapping[int, tuple[Frame, ...]]
    allocated: Mapping[Frame, int]


def find_pins(segments: Sequence[HeldSegment], requested: int, code: Code, *, most: int) -> list[Pin]:
    """Blocks that touch free ones, by what freeing all blocks of their site unlocks; at most `most`.

    `segments`: those that the request could use.
    """
    pins = [pin for site in _sites(segments, requested, code) for pin in _pins(site)]
    return pins[:most]


class _Locked:
    """Segments whose free bytes are locked, and what freeing some of their blocks unlocks."""

    def __init__(self, segments: Sequence[HeldSegment], requested: int) -> None:
        self.requested = requested
        self.segments = {s.addr: s for s in segments if any(b.is_free for b in s.blocks)}
        self.usable = {addr: _usable(s, requested, ()) for addr, s in self.segments.items()}
        free = sum(b.size for s in self.segments.values() for b in s.blocks if b.is_free)
        self.bytes = free - sum(self.usable.values())

    def unlocked(self, blocks: Sequence[tuple[HeldSegment, HeldBlock]]) -> int:
        freed: dict[int, set[int]] = defaultdict(set)
        for segment, block in blocks:
            freed[segment.addr].add(block.addr)
        gains = (_usable(self.segments[a], self.requested, addrs) - self.usable[a] for a, addrs in freed.items())
        return sum(gains)

    def score(self, blocks: Sequence[tuple[HeldSegment, HeldBlock]]) -> float:
        """Harmonic mean of the share of locked bytes that they unlock and of what is unlocked in all that is freed."""
        return 2 * self.unlocked(blocks) / (self.bytes + self.unlocked(blocks) + _held(blocks))


def _sites(segments: Sequence[HeldSegment], requested: int, code: Code) -> list[Site]:
    locked = _Locked(segments, requested)
    left = [(s, b) for s in locked.segments.values() for b in s.blocks if not b.is_free]
    found: list[Site] = []
    while left and len(found) < _MAX_SITES:
        chosen, frame = _best(locked, left, code)
        unlocked = locked.unlocked(chosen)
        if not unlocked:
            break
        found.append(Site(len(found) + 1, frame, unlocked, _held(chosen), tuple(chosen)))
        taken = {block.addr for _, block in chosen}
        left = [(s, b) for s, b in left if b.addr not in taken]
    return found


def _best(
    locked: _Locked, left: Sequence[tuple[HeldSegment, HeldBlock]], code: Code
) -> tuple[list[tuple[HeldSegment, HeldBlock]], Frame | None]:
    """The blocks that one frame has in common and that unlock most for what they hold."""
    through: dict[Frame | None, list[tuple[HeldSegment, HeldBlock]]] = defaultdict(list)
    depths: dict[Frame | None, int] = {None: 0}
    for segment, block in left:
        own = code.frames.get(block.stack_id or -1, ())
        for depth, frame in enumerate(own):
            if frame not in own[:depth]:
                through[frame].append((segment, block))
            depths[frame] = min(depth, depths.get(frame, depth))
        if not own:
            through[None].append((segment, block))
    named = {frame: blocks for frame, blocks in through.items() if frame is None or frame[0] not in _UNNAMED}
    candidates = sorted(named or through, key=lambda f: (-_held(through[f]), depths[f], str(f)))[:_MAX_CANDIDATES]
    scores = {frame: locked.score(through[frame]) for frame in candidates}
    good = [frame for frame, score in scores.items() if score >= max(scores.values()) - _EQUAL]
    best = min(good, key=lambda f: (0 if f is None else code.allocated.get(f, 0), depths[f], str(f)))
    return through[best], best


def _held(blocks: Sequence[tuple[HeldSegment, HeldBlock]]) -> int:
    return sum(block.size for _, block in blocks)


def _pins(site: Site) -> list[Pin]:
    found = []
    for segment, block in site.blocks:
        at = bisect_left(segment.blocks, block.addr, key=lambda b: b.addr)
        joined = sum(b.size for b in segment.blocks[max(0, at - 1) : at + 2] if b.is_free)
        if joined:
            empties = sum(not b.is_free for b in segment.blocks) == 1
            found.append(Pin(site, segment, block, joined, empties))
    return sorted(found, key=lambda pin: (-pin.joined, pin.block.size, pin.block.row))


def _usable(segment: HeldSegment, requested: int, freed: Collection[int]) -> int:
    """Free bytes of the segment that the request or the device could have, were blocks at `freed` free as well."""
    page = SMALL_SEGMENT if segment.small else LARGE_SEGMENT
    usable = 0
    for is_open, group in groupby(segment.blocks, key=lambda b: b.is_free or b.addr in freed):
        if not is_open:
            continue
        run = list(group)
        size, free = sum(b.size for b in run), sum(b.size for b in run if b.is_free)
        if size >= requested or size == segment.size:
            usable += free
        elif segment.expandable:
            start = -(-(run[0].addr - segment.addr) // page) * page
            end = (run[0].addr + size - segment.addr) // page * page
            usable += min(free, max(0, end - start))
    return usable
