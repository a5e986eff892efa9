"""Steps of a job out of the marks that record_function left in a CUDA memory snapshot.

Times are microseconds since the Unix epoch in the file, nanoseconds here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forensics.formats._columns import MAX_INT64

_STEP_NAMES = (
    ("profiler", re.compile(r"ProfilerStep#(\d{1,18})")),
    ("annotation", re.compile(r"(?:train(?:ing)?|global)?[ _]?(?:step|iter|iteration)[ _#:]{0,2}(\d{1,18})", re.I)),
)


@dataclass(frozen=True)
class Step:
    number: int
    start_ns: int
    end_ns: int | None
    origin: str


class Marks:
    """Marks of steps, in any order; those of the profiler win over those named like a step."""

    def __init__(self) -> None:
        self._by_origin: dict[str, list[tuple[int, int, bool]]] = {}

    def add(self, annotations: Iterable[Any]) -> None:
        for mark in annotations:
            if type(mark) is not dict:
                continue
            name, stage, time_us = mark.get("name"), mark.get("stage"), mark.get("time_us")
            # END marks at time 0 have been seen.
            if type(name) is not str or type(time_us) is not int or not 0 < time_us <= MAX_INT64 // 1000:
                continue
            for origin, pattern in _STEP_NAMES:
                if (match := pattern.fullmatch(name)) and stage in ("START", "END"):
                    self._by_origin.setdefault(origin, []).append((time_us * 1000, int(match[1]), stage == "END"))
                    break

    def steps(self) -> list[Step]:
        """Steps by their start."""
        for origin, _ in _STEP_NAMES:
            if origin in self._by_origin:
                return _joined_steps(sorted(self._by_origin[origin]), origin)
        return []


def _joined_steps(marks: list[tuple[int, int, bool]], origin: str) -> list[Step]:
    open_since: dict[int, list[int]] = {}
    steps: list[Step] = []
    for ts_ns, number, is_end in marks:
        starts = open_since.setdefault(number, [])
        if not is_end:
            starts.append(ts_ns)
        elif len(starts) == 1:
            steps.append(Step(number, starts.pop(), ts_ns, origin))
        elif starts:  # marked once per device or thread: the outermost pair counts
            starts.pop()
    steps += [Step(number, starts[0], None, origin) for number, starts in open_since.items() if starts]
    return sorted(steps, key=lambda s: (s.start_ns, s.number))


def step_table(steps: list[Step]) -> pa.Table:
    """Rows of step."""
    return pa.table(
        {
            "step": pa.array([s.number for s in steps], pa.int64()),
            "start_ns": pa.array([s.start_ns for s in steps], pa.int64()),
            "end_ns": pa.array([s.end_ns for s in steps], pa.int64()),
            "origin": pa.array([s.origin for s in steps], pa.string()),
        }
    )


def steps_at(steps: list[Step], times: npt.NDArray[np.int64]) -> pa.Array:
    """Number of the step in which each time lies; a step without an end lasts until the next. Time 0 is unknown."""
    starts = np.array([s.start_ns for s in steps], np.int64)
    ends = np.array([MAX_INT64 if s.end_ns is None else s.end_ns for s in steps], np.int64)
    numbers = np.array([s.number for s in steps], np.int64)
    at = np.searchsorted(starts, times, side="right") - 1
    outside = (at < 0) | (times > ends[at]) | (times == 0)
    return pa.array(numbers[at], pa.int64(), mask=outside)
