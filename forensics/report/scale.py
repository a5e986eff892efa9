"""Axes: from values to px, with round ticks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from forensics.report.text import number

# A range of three decades cannot be read on a linear axis.
_LOG_FROM = 1_000.0


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    start: float  # px of `low`
    end: float  # px of `high`
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        ratio = min(max((value - low) / (high - low), -0.05), 1.05)
        return self.start + ratio * (self.end - self.start)

    def ticks(self, n: int) -> list[tuple[float, str]]:
        values = _decades(self.low, self.high, n) if self.log else _round_steps(self.low, self.high, n)
        return [(value, number(float(f"{value:.6g}"))) for value in values if self.low <= value <= self.high]


def fit(low: float, high: float, start: float, end: float, *, may_be_log: bool = False, pad: float = 0.0) -> Scale:
    """A scale that holds both values, widened by `pad` of its range; equal or missing values get room around them."""
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = 0.0, 1.0
    low, high = max(float(low), -1e300), min(float(high), 1e300)  # differences beyond overflow
    if may_be_log and low > 0 and high / max(low, 1e-300) >= _LOG_FROM:
        low = max(low, 1e-300)
        room = min((math.log10(high) - math.log10(low)) * pad, 7.0)  # stays within what a double holds
        return Scale(low / 10**room, high * 10**room, start, end, log=True)
    if high <= low:
        room = abs(low) * 0.05 or 1.0
        return Scale(low - room, high + room, start, end)
    room = (high - low) * pad
    return Scale(low - room, high + room, start, end)


def _round_steps(low: float, high: float, n: int) -> list[float]:
    raw = (high - low) / max(1, n)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, first + 2 * n + 2)]


def _decades(low: float, high: float, n: int) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / n))
    return [10.0**power for power in range(first, last + 1, step) if -308 < power < 308]
