"""Thins a series for drawing without losing what matters: extremes, gaps and non-finite values stay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
# A series that alternates between finite and not would otherwise become thousands of line pieces.
MAX_BREAKS = 100


@dataclass(frozen=True)
class NonFinite:
    """A run of values that no line can show."""

    first: float  # step or ns
    last: float
    n: int
    label: str  # NaN | Inf | -Inf | NaN or Inf


@dataclass(frozen=True)
class Thinned:
    pieces: list[list[Point]]  # finite, each one unbroken
    non_finite: list[NonFinite]
    n_points: int
    n_drawn: int
    low: float  # extremes of the finite values; NaN when there are none
    high: float


def thin(points: Sequence[Point], limit: int) -> Thinned:
    """At most about `limit` points: where there are more, the lowest and highest of each of `limit / 2` buckets."""
    usable = [point for point in points if math.isfinite(point[0])]
    finite = [point for point in usable if math.isfinite(point[1])]
    values = [value for _, value in finite]
    non_finite = _runs(usable)
    kept = finite if len(finite) <= limit else _extremes(finite, max(1, limit // 2))
    pieces = _cut(kept, [run.first for run in non_finite])
    low, high = (min(values), max(values)) if values else (math.nan, math.nan)
    return Thinned(pieces, non_finite, len(points), len(kept), low, high)


def _extremes(points: Sequence[Point], n_buckets: int) -> list[Point]:
    kept: list[Point] = []
    for bucket in range(n_buckets):
        part = range(bucket * len(points) // n_buckets, (bucket + 1) * len(points) // n_buckets)
        if not part:
            continue
        low = min(part, key=lambda i: points[i][1])
        high = max(part, key=lambda i: points[i][1])
        kept += [points[i] for i in sorted({low, high})]
    ends = [points[0]] if kept[0] != points[0] else []
    return [*ends, *kept, *([points[-1]] if kept[-1] != points[-1] else [])]


def _runs(points: Sequence[Point]) -> list[NonFinite]:
    runs: list[NonFinite] = []
    open_run = False
    for x, value in points:
        if math.isfinite(value):
            open_run = False
            continue
        label = "NaN" if math.isnan(value) else "Inf" if value > 0 else "-Inf"
        if open_run:
            run = runs[-1]
            runs[-1] = NonFinite(run.first, x, run.n + 1, label if label == run.label else "NaN or Inf")
        else:
            runs.append(NonFinite(x, x, 1, label))
            open_run = True
    return runs


def _cut(points: Sequence[Point], gaps: Sequence[float]) -> list[list[Point]]:
    """Breaks the line where non-finite values lie between two points."""
    if len(gaps) > MAX_BREAKS:
        gaps = []
    pieces: list[list[Point]] = []
    waiting = list(gaps)[::-1]
    current: list[Point] = []
    for point in points:
        while waiting and waiting[-1] < point[0]:
            waiting.pop()
            if current:
                pieces.append(current)
                current = []
        current.append(point)
    if current:
        pieces.append(current)
    return pieces
