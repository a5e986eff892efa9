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
_OVERLAP_NS = 1_000_000_000  # spans that miss each other by less may overlap
# Minutes that clocks on walls are ahead of UTC somewhere, summer time included (IANA time zone database).
_ZONES = [
    *(hours * 60 for hours in range(-12, 15)),
    *(-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825),
]
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
            return Estimate(zone, abs(centre - zone), agreeing, is_zone=True)
    return Estimate(centre, error, agreeing)


def zones_of_spans(local: Sequence[Span], absolute: Sequence[Span]) -> list[int]:
    """What may be added to wall times so that they overlap absolute ones, for every zone in use."""
    if not local or not absolute:
        return []
    low, high = min(s.low for s in local), max(s.high for s in local)
    first, last = min(s.low for s in absolute), max(s.high for s in absolute)
    shifts = [-minutes * 60 * 1_000_000_000 for minutes in _ZONES]
    return [s for s in shifts if low + s <= last + _OVERLAP_NS and high + s >= first - _OVERLAP_NS]
