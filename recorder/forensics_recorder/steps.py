"""The last steps of a run: metrics a line a step, times of its parts, and a watch over standstill."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable

from forensics_recorder.journal import Journal
from forensics_recorder.values import must_wait, number

FORMAT = "forensics.steps/1"


class Steps:
    """One line a step. Numbers that lie on a device are read one step later, when they are long there.

    So nothing waits for the device, and `kill -9` costs the step that runs and, for such numbers, the one before.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._waiting: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._current: dict[str, Any] = {}
        self._began = 0.0
        self._ended = 0.0
        self._outside = 0.0
        self.step = -1
        self.last_ns = time.monotonic_ns()

    def begin(self, step: int) -> None:
        self.finish()
        self.step = step
        self._began = time.perf_counter()
        self._outside = self._began - self._ended if self._ended else 0.0
        self.last_ns = time.monotonic_ns()

    def add(self, metrics: dict[str, Any]) -> None:
        self._current.update(metrics)

    def finish(self) -> None:
        """Ends the current step, if one is open, and writes what is known by now."""
        lines = []
        if self._waiting is not None:
            line, late = self._waiting
            lines.append(line | _numbers(late))
            self._waiting = None
        if self._current or self._began:
            line = {"step": self.step, "time": round(time.time(), 6)}
            if self._began:
                self._ended = time.perf_counter()
                line["step_seconds"] = round(self._ended - self._began, 6)
                if self._outside:
                    line["outside_seconds"] = round(self._outside, 6)
            late = {key: value for key, value in self._current.items() if must_wait(value)}
            line |= _numbers({key: value for key, value in self._current.items() if key not in late})
            if late:
                self._waiting = (line, late)
            else:
                lines.append(line)
        self._current = {}
        self._began = 0.0
        self._journal.write(*lines)

    def flush(self, *, wait: bool = True) -> None:
        """Writes all there is. `wait` False leaves out what lies on a device: a broken one would never answer."""
        self.finish()
        if self._waiting is not None:
            line, late = self._waiting
            self._waiting = None
            self._journal.write(line | (_numbers(late) if wait else {}))


def _numbers(metrics: dict[str, Any]) -> dict[str, Any]:
    known = ((key, number(value)) for key, value in metrics.items())
    return {key: value for key, value in known if value is not None}


class StallWatch:
    """A thread that calls `on_stall(seconds)` once for each standstill longer than `after_seconds`."""

    def __init__(self, steps: Steps, after_seconds: float, on_stall: Callable[[float], None]) -> None:
        self._steps = steps
        self._after = after_seconds
        self._on_stall = on_stall
        self._done = threading.Event()
        self._owner = os.getpid()
        self._thread = threading.Thread(target=self._run, name="forensics-stall-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        if os.getpid() == self._owner and self._thread.is_alive():
            self._thread.join(timeout=1)

    def _run(self) -> None:
        told = 0
        while not self._done.wait(min(self._after / 4, 10)):
            last = self._steps.last_ns
            still = (time.monotonic_ns() - last) / 1e9
            if still > self._after and told != last:
                told = last
                self._on_stall(still)
