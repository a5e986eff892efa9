"""Axes of bytes: ticks at round binary sizes."""

from __future__ import annotations

from forensics.report.text import size


def byte_ticks(high: float, n: int = 5) -> list[tuple[float, str]]:
    """About `n` positions from 0 to `high` bytes, a power of two (or one and a half) apart, with their labels."""
    raw = max(high, 1) / n
    step = 1
    while step * 2 <= raw:
        step *= 2
    choices = [step, step + step // 2, step * 2]
    step = max(1, next((choice for choice in choices if choice >= raw), step * 2))
    return [(float(value), size(value) if value else "0") for value in range(0, int(high) + 1, step)]
