"""How far one clock is from a timeline, as events or spans of both tell it.

The estimate is the median of what the events say; events that do not agree with it are left out, and when they are the
majority there is no estimate. Its error covers every event that agrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from forensics.models.landmarks import Shared
from forensics.models.years import Span

QUARTER_NS = 15 * 60 * 1_000_000_000  # zones differ from UTC by quarters of an hour
WALL_ERROR_NS = 1_000_000_000  # loggers that print whole seconds
_ZONES = range(-14 * 4, 12 * 4 + 1)  # what to add to wall times of UTC+14 to UTC-12
_SKEW_NS = 10_000_000_000  # how far a host's clock may be off its zone before its wall times are doubted


@dataclass(frozen=True)
class Vote:
    """What one event says must be added, give or take `slack_ns`."""

    difference_ns: int
    slack_ns: int
    shared: Shared


@dataclass(frozen=True)
class Estimate:
    """`is_zone`: the offset is a whole number of quarters of an hour, and the events fit that."""

    offset_ns: int
    error_ns: int
    agreeing: tuple[Vote, ...]
    is_zone: bool = False


@dataclass(frozen=True)
class Zone:
    offset_ns: int
    error_ns: int
    how: str


def estimate(votes: Sequence[Vote], *, is_wall: bool) -> Estimate | None:
    """None without events, or when most of them disagree. A single event counts, with twice its error."""
    if not votes:
        return None
    middle = median_low(v.difference_ns for v in votes)
    agreeing = tuple(v for v in votes if abs(v.difference_ns - middle) <= v.slack_ns)
    if len(agreeing) * 2 <= len(votes):
        return None
    centre = median_low(v.difference_ns for v in agreeing)
    spread = max(abs(v.difference_ns - centre) for v in agreeing)
    error = max(spread, min(v.slack_ns for v in agreeing)) * (2 if len(agreeing) == 1 else 1)
    if is_wall:
        zone = round(centre / QUARTER_NS) * QUARTER_NS
        if abs(centre - zone) <= _SKEW_NS:
            # The zone itself is exact; what is left is delay in writing, or the clock's own error.
            return Estimate(zone, max(WALL_ERROR_NS, abs(centre - zone)), agreeing, is_zone=True)
    return Estimate(centre, error, agreeing)


def zone_of_spans(local: Sequence[Span], absolute: Sequence[Span]) -> Zone | None:
    """The zone under which wall times overlap absolute ones; None when there is none, or several without UTC.

    Where UTC is one of several, it is taken, since most clusters log in it; the error then reaches to the others.
    """
    if not local or not absolute:
        return None
    low, high = min(s.low for s in local), max(s.high for s in local)
    first, last = min(s.low for s in absolute), max(s.high for s in absolute)
    fits = [
        quarter * QUARTER_NS
        for quarter in _ZONES
        if low + quarter * QUARTER_NS <= last + WALL_ERROR_NS and high + quarter * QUARTER_NS >= first - WALL_ERROR_NS
    ]
    if len(fits) == 1:
        return Zone(fits[0], WALL_ERROR_NS, "the only one in which its times overlap those of the others")
    if 0 not in fits:
        return None
    furthest = max(abs(fit) for fit in fits)
    return Zone(0, furthest + WALL_ERROR_NS, f"UTC, one of {len(fits)} in which its times overlap those of the others")
