"""Runs a recorded history through the allocator model: once to check the model, then to predict.

The check grants and takes back memory where the record did, and compares the address of each allocation. A prediction
knows the device's limit only and decides itself what to obtain and to give back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from forensics.models.allocator import Allocator
from forensics.models.allocator_blocks import Block, Pool
from forensics.models.allocator_device import LimitedDevice, RecordedDevice
from forensics.models.allocator_history import DEFAULT_POOL, History, Op
from forensics.models.allocator_rewind import Run, lay_out, learn_age
from forensics.models.allocator_settings import SMALL_REQUEST, AllocatorSettings

_ALLOC, _FREE, _WAIT, _DONE, _OBTAIN, _RELEASE, _MAP, _UNMAP, _OOM, _FLUSH = map(int, Op)


@dataclass(frozen=True)
class Check:
    """How well the model places the recorded allocations, out of `n_allocs`, and the bytes held at each end."""

    n_allocs: int
    n_at_address: int
    reserved: int
    peak_reserved: int
    recorded_reserved: int
    recorded_peak: int
    first_row: int | None  # of the first allocation at another address

    @property
    def share_at_address(self) -> float:
        return self.n_at_address / self.n_allocs if self.n_allocs else 0.0


@dataclass(frozen=True)
class Limits:
    """`device`: bytes this process can get of the device; `allowed`: bytes that its memory fraction allows.

    `at_failure`: what it could get when each recorded failure came; None as before it. `device_bytes`: all memory of
    the device; None unknown. `by_age`: see Allocator.
    """

    device: int | None = None
    allowed: int | None = None
    at_failure: tuple[int | None, ...] = ()
    device_bytes: int | None = None
    by_age: bool = True


@dataclass(frozen=True)
class Prediction:
    """What the allocator would have done. `failed_row`: the first request that it could not serve; None: it served all.

    `complete`: it got to the end, since only requests failed that also failed in the record. `spare`: bytes left, once
    the failed requests were served and the cache was given back; negative: bytes that lacked; None: limit not known.
    `obtained`: bytes got from the device in all.
    """

    peak_reserved: int
    reserved: int
    obtained: int
    failed_row: int | None
    complete: bool
    spare: int | None
    n_retries: int

    @property
    def fits(self) -> bool:
        return self.failed_row is None


def check(history: History, settings: AllocatorSettings, limits: Limits, runs: Sequence[Run]) -> Check:
    """Only `device_bytes` and `by_age` of the limits matter, since the record says what was granted."""
    device = RecordedDevice()
    allocator = Allocator(settings, device, by_age=limits.by_age, device_bytes=limits.device_bytes)
    blocks = _start(allocator, history, runs)
    pools, sizes = _requests(allocator, history)
    addrs, malloc, free = history.addrs, allocator.malloc, allocator.free
    reserved = peak = allocator.reserved
    n_right, first = 0, None
    for kind, number in zip(history.kinds, history.numbers, strict=True):
        if kind == _ALLOC:
            pool, addr = pools[number], addrs[number]
            block = malloc(pool, sizes[number])
            if block is not None and block.addr == addr:
                n_right += 1
            else:
                first = history.rows[number] if first is None else first
                if limits.by_age and runs and block is not None:
                    block = _taken_instead(allocator, block, pool, sizes[number], addr, runs)
            blocks[number] = block
            device.forget()
        elif kind == _FREE:
            if (block := blocks[number]) is not None:
                free(block)
        elif kind in (_OBTAIN, _MAP):
            segment = history.segments[number]
            device.offer(segment.addr, segment.size)
            reserved += segment.size
            peak = max(peak, reserved)
        elif kind in (_RELEASE, _UNMAP):
            segment = history.segments[number]
            _take_back(allocator, segment.addr, segment.size, mapped=kind == _UNMAP)
            reserved -= segment.size
        elif kind in (_WAIT, _DONE):
            _hand_on(allocator, blocks[number], done=kind == _DONE)
        elif kind == _OOM:
            device.forget()
    n = history.n_allocs
    return Check(n, n_right, allocator.reserved, allocator.peak_reserved, reserved, peak, first)


def predict(
    history: History, settings: AllocatorSettings, limits: Limits, runs: Sequence[Run], *, laid_out: bool
) -> Prediction:
    """`laid_out`: blocks older than the history lie where they lay; else they are allocated anew, by address."""
    return _Forecast(history, settings, limits, runs if laid_out else ()).run(older=not laid_out)


class _Forecast:
    def __init__(self, history: History, settings: AllocatorSettings, limits: Limits, runs: Sequence[Run]) -> None:
        self.history = history
        self.limits = limits
        self.device = LimitedDevice(limits.device)
        self.allocator = Allocator(
            settings,
            self.device,
            allowed=limits.allowed,
            by_age=limits.by_age,
            device_bytes=limits.device_bytes,
        )
        self.blocks = _start(self.allocator, history, runs)
        self.pools, self.sizes = _requests(self.allocator, history)
        self.failed_row: int | None = None
        self.spare: int | None = None

    def run(self, *, older: bool) -> Prediction:
        if older and (missing := self._allocate_older()):
            return self._stopped(-1, missing)
        history, blocks, pools, sizes = self.history, self.blocks, self.pools, self.sizes
        malloc, free = self.allocator.malloc, self.allocator.free
        for kind, number in zip(history.kinds, history.numbers, strict=True):
            if kind == _ALLOC:
                block = blocks[number] = malloc(pools[number], sizes[number])
                if block is None:
                    return self._stopped(history.rows[number], sizes[number])
            elif kind == _FREE:
                if (block := blocks[number]) is not None:
                    free(block)
            elif kind not in (_OBTAIN, _MAP):
                self._follow(kind, number)
        if not history.failures:
            self.spare = self._left()
        return self._prediction(complete=True)

    def _follow(self, kind: int, number: int) -> None:
        allocator = self.allocator
        if kind in (_WAIT, _DONE):
            _hand_on(allocator, self.blocks[number], done=kind == _DONE)
        elif kind == _OOM:
            self._serve_failed(number)
        elif kind == _FLUSH:
            allocator.empty_cache()
        elif kind in (_RELEASE, _UNMAP) and (pool_id := self.history.segments[number].pool_id) != DEFAULT_POOL:
            for small in (False, True):  # the job gave up a private pool
                allocator.release_pool(pool_id, small=small)

    def _allocate_older(self) -> int:
        """Allocates what is older than the history; the size of the request that failed, 0 when none did."""
        older = range(self.history.n_allocs, len(self.sizes))
        for number in sorted(older, key=self.history.addrs.__getitem__):
            self.blocks[number] = self.allocator.malloc(self.pools[number], self.sizes[number])
            if self.blocks[number] is None:
                return self.sizes[number]
        return 0

    def _serve_failed(self, number: int) -> None:
        """Asks for once for what failed in the record, and gives it back."""
        failure, allocator = self.history.failures[number], self.allocator
        if number < len(self.limits.at_failure) and self.limits.at_failure[number] is not None:
            self.device.limit = self.limits.at_failure[number]
        # The record has the size rounded already, if need be by other divisions.
        size = max(failure.size, allocator.settings.rounded_one(failure.size))
        pool = allocator.pool(failure.pool_id, failure.stream, small=size <= SMALL_REQUEST)
        block = allocator.malloc(pool, size)
        if block is None and self.failed_row is None:
            self.failed_row = failure.row
            self.spare = self._missing(size)
        elif block is not None:
            left = self._left()
            if self.failed_row is None:
                self.spare = left if self.spare is None or left is None else min(self.spare, left)
            allocator.free(block)

    def _left(self) -> int | None:
        """Bytes that the process could still get, once the cache was given back."""
        known = [n for n in (self.device.limit, self.allocator.allowed) if n is not None]
        return min(known) - self.allocator.reserved + self.allocator.releasable_bytes() if known else None

    def _missing(self, size: int) -> int | None:
        left = self._left()
        return None if left is None else min(left - self.allocator.settings.segment_bytes(size), -1)

    def _stopped(self, row: int, size: int) -> Prediction:
        if self.failed_row is None:
            self.failed_row, self.spare = row, self._missing(size)
        return self._prediction(complete=False)

    def _prediction(self, *, complete: bool) -> Prediction:
        a = self.allocator
        return Prediction(a.peak_reserved, a.reserved, a.obtained, self.failed_row, complete, self.spare, a.n_retries)


def _start(allocator: Allocator, history: History, runs: Sequence[Run]) -> list[Block | None]:
    blocks: list[Block | None] = [None] * len(history.sizes)
    for number, block in lay_out(allocator, history, runs).items():
        blocks[number] = block
    return blocks


def _requests(allocator: Allocator, history: History) -> tuple[list[Pool], list[int]]:
    """Pool and rounded size of each allocation."""
    rounded = allocator.settings.rounded(history.requested())
    by_class = [allocator.pool(*group, small=small) for group in history.groups for small in (False, True)]
    small = (rounded <= SMALL_REQUEST).tolist()
    pools = [by_class[2 * group + is_small] for group, is_small in zip(history.group_of, small, strict=True)]
    return pools, rounded.tolist()


def _hand_on(allocator: Allocator, block: Block | None, *, done: bool) -> None:
    if block is not None:
        (allocator.complete if done else allocator.wait)(block)


def _taken_instead(
    allocator: Allocator, block: Block, pool: Pool, size: int, addr: int, runs: Sequence[Run]
) -> Block | None:
    """The block that the record took, where only the unknown ages of two runs spoke for the other one."""
    allocator.free(block)  # joined again with what was split off, in the same object
    learn_age(pool, block, addr, runs)
    return allocator.malloc(pool, size)


def _take_back(allocator: Allocator, addr: int, size: int, *, mapped: bool) -> None:
    """Gives back what the record gave back, where the model has it free."""
    for pool in allocator.pools.values():
        if not mapped:
            if (block := pool.at(addr, size)) is not None and not block.is_split:
                allocator.release(block)
                return
            continue
        for block in pool.blocks:
            if block.expandable is not None and block.addr <= addr and addr + size <= block.addr + block.size:
                allocator.reserved -= allocator.ranges.unmap_part(block, addr, size)
                return
