"""The device under the caching allocator: what it grants, and at which addresses.

Bytes are those this process can get: the device's memory less what the context and other processes hold.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import Protocol

_BASE = 1 << 45
_RANGES = 1 << 52  # ranges of addresses for expandable segments, apart from those of segments
_RANGE_STEP = 1 << 42
_UNKNOWN = 1 << 55


class Device(Protocol):
    def obtain(self, size: int, reserved: int) -> int:
        """Address of a new segment; 0 when it is refused. `reserved`: what the allocator holds already."""
        ...

    def grants(self, size: int, reserved: int) -> bool:
        """Whether `size` more bytes can be mapped."""
        ...

    def range_start(self) -> int:
        """Address of a new range for an expandable segment."""
        ...

    def release(self, addr: int, size: int) -> None: ...


class LimitedDevice:
    """A device with room for `limit` bytes (None: any number) that hands out the lowest addresses that are free."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._end = _BASE
        self._holes: list[tuple[int, int]] = []  # address, size
        self._ranges = _RANGES

    def grants(self, size: int, reserved: int) -> bool:
        return self.limit is None or reserved + size <= self.limit

    def obtain(self, size: int, reserved: int) -> int:
        if not self.grants(size, reserved):
            return 0
        for index, (addr, room) in enumerate(self._holes):
            if room >= size:
                del self._holes[index]
                if room > size:
                    insort(self._holes, (addr + size, room - size))
                return addr
        addr = self._end
        self._end += size
        return addr

    def range_start(self) -> int:
        self._ranges += _RANGE_STEP
        return self._ranges

    def release(self, addr: int, size: int) -> None:
        index = bisect_left(self._holes, (addr, 0))
        if index < len(self._holes) and self._holes[index][0] == addr + size:
            size += self._holes.pop(index)[1]
        if index > 0 and sum(self._holes[index - 1]) == addr:
            addr, before = self._holes.pop(index - 1)
            size += before
            index -= 1
        self._holes.insert(index, (addr, size))


class RecordedDevice:
    """Grants at the recorded addresses: `offer` puts a segment or mapping where the next request will find it.

    What was not offered is granted at an address that no record has, so that the allocation counts as displaced.
    """

    def __init__(self) -> None:
        self._offers: deque[tuple[int, int]] = deque()  # address, size
        self._unknown = _UNKNOWN
        self.n_unexpected = 0

    def offer(self, addr: int, size: int) -> None:
        self._offers.append((addr, size))

    def forget(self) -> None:
        self._offers.clear()

    def grants(self, size: int, reserved: int) -> bool:
        if self._offers:
            self._offers.popleft()
        return True

    def obtain(self, size: int, reserved: int) -> int:
        if self._offers and self._offers[0][1] == size:
            return self._offers.popleft()[0]
        self.n_unexpected += 1
        self._unknown += size
        return self._unknown - size

    def range_start(self) -> int:
        if self._offers:
            return self._offers[0][0]
        self.n_unexpected += 1
        self._unknown += _RANGE_STEP
        return self._unknown - _RANGE_STEP

    def release(self, addr: int, size: int) -> None:
        """The recorded addresses say themselves what is used again."""
