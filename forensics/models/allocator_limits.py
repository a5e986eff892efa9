"""What a recorded history tells about the memory that its process could get.

A failed request tells it exactly: what was reserved then, and what the driver had free. A request that gave back cached
segments before it was served had been refused first, which bounds it from above; what was reserved at any time bounds
it from below. Bytes of the process, so without its context and other processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from forensics.models.allocator_history import History, Op
from forensics.models.allocator_rewind import Run
from forensics.models.allocator_settings import SMALL_REQUEST, AllocatorSettings

# CUDA's context with the kernels of PyTorch: 300 to 600 MiB on current drivers.
CONTEXT_BYTES = 400 << 20
# Beside the context the driver keeps some of a device's memory: up to about 600 MiB on those with 80 GB.
_MOST_WITHHELD = 1 << 30


@dataclass(frozen=True)
class Room:
    """`low` to `high`: what the process could get, bytes; `high` None: not known, since nothing was refused.

    `at_failure`: by failure what it could get then; None where the driver had enough free, so that a memory fraction or
    a limit of the pool refused it. `allowed`: most that such a limit can be. `gc_from`: least reserved bytes at which
    cached segments were given back although a garbage collector may have done it. `guess`: what is likely, where other
    evidence tells the size of the device.
    """

    low: int
    high: int | None
    at_failure: tuple[int | None, ...] = ()
    allowed: int | None = None
    gc_from: int | None = None
    reserved: int = 0  # at the end
    peak: int = 0
    obtained: int = 0  # from the device in all
    guess: int | None = None

    @property
    def is_exact(self) -> bool:
        return self.high == self.low

    @property
    def likely(self) -> int | None:
        """The guess, else the middle of what is possible; None when the most is not known."""
        if self.high is None:
            return None
        return (self.low + self.high) // 2 if self.guess is None else min(max(self.guess, self.low), self.high)


class _Reader:
    def __init__(self, history: History, settings: AllocatorSettings, runs: Sequence[Run]) -> None:
        self.history = history
        self.settings = settings
        self.rounded = settings.rounded(history.requested()).tolist()
        self.reserved = self.peak = sum(run.size for run in runs)
        self.obtained = 0
        self.high: int | None = None
        self.allowed: int | None = None
        self.gc_from: int | None = None
        self.at_failure: list[int | None] = []
        self.before: int | None = None  # reserved when the request began in which segments were given back
        self.obtains = False

    def read(self) -> Room:
        for kind, number in zip(self.history.kinds, self.history.numbers, strict=True):
            if kind in (Op.OBTAIN, Op.MAP):
                size = self.history.segments[number].size
                self.reserved += size
                self.obtained += size
                self.peak, self.obtains = max(self.peak, self.reserved), True
            elif kind in (Op.RELEASE, Op.UNMAP):
                if self.before is None:
                    self.before = self.reserved
                self.reserved -= self.history.segments[number].size
            elif kind == Op.OOM:
                self._fail(number)
                self._begin()
            elif kind == Op.FLUSH:
                self._begin()
            elif kind == Op.ALLOC:
                if self.before is not None and self.obtains:
                    self._refuse(self.before, self.rounded[number])
                self._begin()
        return self._room()

    def _begin(self) -> None:
        self.before, self.obtains = None, False

    def _refuse(self, before: int, size: int) -> None:
        if self.settings.gc_ratio > 0:
            self.gc_from = min(before, self.gc_from or before)
            return
        most = before + _wanted(self.settings, size) - 1
        self.high = most if self.high is None else min(self.high, most)

    def _fail(self, number: int) -> None:
        failure = self.history.failures[number]
        wanted = _wanted(self.settings, failure.size)
        free = failure.device_free
        self.at_failure.append(self.reserved + free if free is not None and free < wanted else None)
        if free is not None and free >= wanted:
            most = self.reserved + wanted - 1
            self.allowed = most if self.allowed is None else min(self.allowed, most)

    def _room(self) -> Room:
        low, high = self.peak, self.high
        exact = next((room for room in self.at_failure if room is not None), None)
        if exact is not None:
            low = high = max(exact, low)
        if self.allowed is not None:
            high = max(low, min(self.allowed, high or self.allowed))
        if high is not None and high < low:  # others gave memory back meanwhile
            high = low
        failures = tuple(self.at_failure)
        return Room(low, high, failures, self.allowed, self.gc_from, self.reserved, self.peak, self.obtained)


def find_room(history: History, settings: AllocatorSettings, runs: Sequence[Run], told: int | None = None) -> Room:
    """`told`: memory of the device as other evidence has it, bytes."""
    room = _Reader(history, settings, runs).read()
    if told is None or room.is_exact:
        return room
    low = max(room.low, told - _MOST_WITHHELD)
    high = told if room.high is None else min(room.high, told)
    if low > high:  # others held memory when it was refused
        return room
    return replace(room, low=low, high=high, guess=told - CONTEXT_BYTES)


def _wanted(settings: AllocatorSettings, size: int) -> int:
    """Most that a request for a block of this size can ask of the device."""
    if not settings.expandable:
        return settings.segment_bytes(size)
    page = settings.page_bytes(small=size <= SMALL_REQUEST)
    return -(-size // page) * page
