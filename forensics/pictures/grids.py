"""Rows by steps: how values become the cells of a heat map of bounded size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

MAX_COLUMNS = 120


def columns(steps: Sequence[int]) -> tuple[list[int], int]:
    """The first step of each column, and how many recorded steps share one."""
    every = max(1, -(-len(steps) // MAX_COLUMNS))
    return list(steps[::every]), every


def cells(
    values: Iterable[tuple[object, int, float]], rows: Sequence[object], steps: Sequence[int], every: int
) -> tuple[tuple[float | None, ...], ...]:
    """The largest value of each cell; one that is not finite stands before all others."""
    place = {step: i // every for i, step in enumerate(steps)}
    row_of = {name: i for i, name in enumerate(rows)}
    width = -(-len(steps) // every) if steps else 0
    grid: list[list[float | None]] = [[None] * width for _ in rows]
    for name, step, value in values:
        if name not in row_of or step not in place:
            continue
        row, column = grid[row_of[name]], place[step]
        row[column] = _worse(row[column], value)
    return tuple(map(tuple, grid))


def _worse(known: float | None, value: float) -> float:
    if known is None or not math.isfinite(value):
        return value
    return known if not math.isfinite(known) else max(known, value)
