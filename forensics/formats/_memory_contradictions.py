"""What an allocator's own record says that cannot be: such figures are kept, but nothing can rest on them.

A snapshot or a list of counters that was edited, merged, or written over while it was taken, still parses.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from forensics.formats._memory_losses import Loss
from forensics.formats._memory_segments import Held

_HIDES = "what the allocator really held: sums over segments and blocks, fragmentation, and what would have fitted"
_ROUNDING = 0.02  # tables print three digits


def find_contradictions(held: Held, n_too_free: int) -> list[Loss]:
    """`n_too_free`: failed allocations beside which more was free than any device has."""
    found = []
    if held.n_repeated:
        found.append(f"{held.n_repeated} segments are listed again, and were left out")
    places = sorted((device, addr, addr + total) for _, device, addr, total, *_ in held.segments)
    n_overlapping = sum(a[0] == b[0] and b[1] < a[2] for a, b in pairwise(places))
    if n_overlapping:
        found.append(f"{n_overlapping} segments begin inside another one")
    n_full = sum(max(allocated, active) > total for _, _, _, total, allocated, active, *_ in held.segments)
    if n_full:
        found.append(f"{n_full} segments have more allocated than they reserve")
    if held.n_misplaced:
        found.append(f"{held.n_misplaced} blocks begin inside another one, or outside of their segment")
    if held.n_overfull:
        found.append(f"{held.n_overfull} allocated blocks are smaller than what was requested of them")
    losses = [Loss("impossible-state", f"impossible: {'; '.join(found)}", _HIDES)] if found else []
    if n_too_free:
        text = f"impossible: more free memory than any device has is recorded beside {n_too_free} failed allocations"
        losses.append(Loss("impossible-state", text, "how much was free on the device when they failed"))
    return losses


def contradictory(counters: Mapping[str, float]) -> list[str]:
    """Which figures of one set of the allocator's counters cannot be together, by their names in `memory_stats()`."""
    found = []
    for pool in ("all", "small_pool", "large_pool"):
        for when in ("current", "peak"):
            reserved = counters.get(f"reserved_bytes.{pool}.{when}")
            for kind in ("allocated_bytes", "active_bytes"):
                held = counters.get(f"{kind}.{pool}.{when}")
                if held is not None and reserved is not None and held > reserved * (1 + _ROUNDING):
                    found.append(f"{kind}.{pool}.{when} {held:.0f} above reserved_bytes.{pool}.{when} {reserved:.0f}")
        for kind in ("allocated_bytes", "reserved_bytes"):
            now, peak = counters.get(f"{kind}.{pool}.current"), counters.get(f"{kind}.{pool}.peak")
            if now is not None and peak is not None and now > peak * (1 + _ROUNDING):
                found.append(f"{kind}.{pool}.current {now:.0f} above its peak {peak:.0f}")
    return found


def contradictions_of_counters(found: list[str]) -> Loss:
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    text = f"impossible: {'; '.join(found[:3])}{more}"
    return Loss("impossible-state", text, "how much memory was really allocated and reserved")
