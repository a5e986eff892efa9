"""Settings of PyTorch's CUDA caching allocator, as far as they decide which block a request gets.

Sizes in bytes. The constants and the rounding are those of c10/cuda/CUDACachingAllocator.cpp and
c10/core/AllocatorConfig.h of PyTorch 2.6 to 2.14.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

MIB = 1 << 20
UNLIMITED = 1 << 62
MIN_BLOCK = 512
SMALL_REQUEST = MIB  # the largest request that goes to the small pool
SMALL_SEGMENT = 2 * MIB
MIN_LARGE_SEGMENT_REQUEST = 10 * MIB  # from here on a request gets a segment of its own size
SEGMENT_STEP = 2 * MIB
LARGE_SEGMENT = 20 * MIB
_INTERVALS = 16  # of roundup_power2_divisions: up to 2 MiB, 4 MiB, ... , 64 GiB
_NO_DIVISIONS = (0,) * _INTERVALS

Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AllocatorSettings:
    """What PYTORCH_CUDA_ALLOC_CONF and the memory fraction say.

    `divisions`: roundup_power2_divisions by interval. `gc_ratio`: garbage_collection_threshold, which does nothing
    unless `has_fraction`: the allocator collects only where a memory fraction has been set.
    """

    max_split_bytes: int = UNLIMITED
    max_round_bytes: int = LARGE_SEGMENT
    large_segment_bytes: int = LARGE_SEGMENT
    gc_ratio: float = 0.0
    expandable: bool = False
    divisions: tuple[int, ...] = _NO_DIVISIONS
    has_fraction: bool = False

    @property
    def collects(self) -> bool:
        return self.has_fraction and self.gc_ratio > 0

    def segment_bytes(self, size: int) -> int:
        """What is asked of the device for a rounded request that no cached block serves."""
        if size <= SMALL_REQUEST:
            return SMALL_SEGMENT
        if size < MIN_LARGE_SEGMENT_REQUEST:
            return self.large_segment_bytes
        return -(-size // SEGMENT_STEP) * SEGMENT_STEP

    def page_bytes(self, *, small: bool) -> int:
        """Granularity in which expandable segments are mapped."""
        return SMALL_SEGMENT if small else self.large_segment_bytes

    def rounded(self, sizes: Sizes) -> Sizes:
        """Sizes of the blocks that requests of these sizes get."""
        plain = np.maximum(-(-sizes // MIN_BLOCK) * MIN_BLOCK, MIN_BLOCK)
        if not any(d > 1 for d in self.divisions) or not len(sizes):
            return plain
        floors = np.left_shift(np.int64(1), _exponents(sizes))
        interval = np.clip(_exponents(sizes) - 20, 0, _INTERVALS - 1)
        divisions = np.array(self.divisions, dtype=np.int64)[interval]
        step = np.right_shift(floors, _exponents(np.maximum(divisions, 1)))
        up = np.where(step > 0, -(-sizes // np.maximum(step, 1)) * np.maximum(step, 1), floors * 2)
        stepped = np.where(floors == sizes, sizes, up)
        return np.where((divisions > 1) & (sizes > MIN_BLOCK * divisions), stepped, plain)

    def rounded_one(self, size: int) -> int:
        return int(self.rounded(np.array([size], dtype=np.int64))[0])


def _exponents(sizes: Sizes) -> Sizes:
    """Exponent of the greatest power of two that is not greater; 0 for sizes below 1."""
    _, exponents = np.frexp(np.maximum(sizes, 1).astype(np.float64))
    floors = exponents.astype(np.int64) - 1
    # Beyond 2^53 the conversion may have rounded up to the next power.
    too_high = np.left_shift(np.int64(1), floors) > np.maximum(sizes, 1)
    return np.asarray(floors - too_high, dtype=np.int64)


def read_settings(facts: Mapping[str, str]) -> AllocatorSettings:
    """Settings of a snapshot: `allocator_settings` by key, values as text. Unknown keys and values count as defaults.

    The text of the variable is read first; what the allocator says of its own state goes before it, since settings
    can be changed while the job runs.
    """
    settings = parse_settings(facts.get("PYTORCH_CUDA_ALLOC_CONF", ""))
    changed: dict[str, Any] = {}
    if (split := _integer(facts.get("max_split_size"))) is not None:
        changed["max_split_bytes"] = split if 0 < split < UNLIMITED else UNLIMITED
    if (ratio := _ratio(facts.get("garbage_collection_threshold"))) is not None:
        changed["gc_ratio"] = ratio
    if (word := facts.get("expandable_segments")) is not None:
        changed["expandable"] = word.strip().lower() == "true"
    told = {int(k): int(v) for k, v in re.findall(r'"(\d+)": (\d+)', facts.get("roundup_power2_divisions", ""))}
    if told and not any(settings.divisions):
        changed["divisions"] = _filled({_interval_of(mib): d for mib, d in told.items()}, max(told.items())[1])
    return replace(settings, **changed)


def parse_settings(text: str) -> AllocatorSettings:
    """Settings that a value of PYTORCH_CUDA_ALLOC_CONF asks for; words that it does not know are passed over."""
    changed: dict[str, Any] = {}
    for name, value in re.findall(r"([A-Za-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,\s]+)", text):
        number = _integer(value)
        if name == "max_split_size_mb" and number is not None:
            changed["max_split_bytes"] = number * MIB
        elif name == "max_non_split_rounding_mb" and number is not None:
            changed["max_round_bytes"] = number * MIB
        elif name == "large_segment_size_mb" and number is not None:
            changed["large_segment_bytes"] = number * MIB
        elif name == "garbage_collection_threshold" and (ratio := _ratio(value)) is not None:
            changed["gc_ratio"] = ratio
        elif name == "per_process_memory_fraction" and _ratio(value) is not None:
            changed["has_fraction"] = True
        elif name == "expandable_segments":
            changed["expandable"] = value.lower() == "true"
        elif name == "roundup_power2_divisions":
            changed["divisions"] = _parse_divisions(value)
    return AllocatorSettings(**changed)


def _parse_divisions(value: str) -> tuple[int, ...]:
    """`4`, or `[256:1,512:2,>:8]`: from each size in MiB on, and beyond the last."""
    if (single := _integer(value)) is not None:
        return (single,) * _INTERVALS
    told = {_interval_of(int(mib)): int(d) for mib, d in re.findall(r"(\d+)\s*:\s*(\d+)", value)}
    beyond = re.search(r">\s*:\s*(\d+)", value)
    return _filled(told, int(beyond[1]) if beyond else 0)


def _filled(told: Mapping[int, int], rest: int) -> tuple[int, ...]:
    """An interval that is not named is divided as the next one that is, and beyond the last as `rest` says."""
    named = sorted(told)
    nexts = (bisect_left(named, i) for i in range(_INTERVALS))
    return tuple(told[named[n]] if n < len(named) else rest for n in nexts)


def _interval_of(mib: int) -> int:
    return min(max(mib, 1).bit_length() - 1, _INTERVALS - 1)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\s*-?\d{1,18}\s*", text) else None


def _ratio(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\s*(0|1|0?\.\d+|[01]\.\d*)\s*", text) else None
