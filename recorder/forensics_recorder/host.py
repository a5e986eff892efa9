"""What the host did to the training thread since the last step: waits for a processor, switches, garbage collections.

`/proc/thread-self/schedstat` holds three numbers: ns that the thread ran, ns that it was ready and waited for a
processor, and how often it was given one (Documentation/scheduler/sched-stats.rst). Absent outside of Linux.
"""

from __future__ import annotations

import gc
import os
import time
from typing import Any

_MAX_BYTES = 128


class HostWatch:
    """Numbers between one call of `since_last` and the next, of the thread that made it."""

    def __init__(self) -> None:
        self._file = _open("/proc/thread-self/schedstat")
        self._last = self._read()
        self._gc_seconds = self._gc_began = 0.0
        gc.callbacks.append(self._on_collection)

    def since_last(self) -> dict[str, float]:
        found: dict[str, float] = {}
        now = self._read()
        if now is not None and self._last is not None:
            found["run_delay_seconds"] = round((now[1] - self._last[1]) / 1e9, 6)
            found["n_switches"] = now[2] - self._last[2]
        self._last = now
        if self._gc_seconds:
            found["gc_seconds"] = round(self._gc_seconds, 6)
            self._gc_seconds = 0.0
        return found

    def close(self) -> None:
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> tuple[int, ...] | None:
        try:
            numbers = tuple(int(word) for word in os.pread(self._file, _MAX_BYTES, 0).split())
        except (OSError, ValueError):
            return None
        return numbers if len(numbers) == 3 else None

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began = time.perf_counter()
        elif self._gc_began:
            self._gc_seconds += time.perf_counter() - self._gc_began


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
