"""How long work may go on, and the stopping of a query that goes on longer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

_AGAIN_SECONDS = 0.05


class Interruptible(Protocol):
    """A DuckDB connection, as far as this module needs it."""

    def interrupt(self) -> None: ...


class Deadline:
    """A point in time, or none. `seconds` from now; None: never."""

    def __init__(self, seconds: float | None = None) -> None:
        self._start = time.monotonic()
        self._end = None if seconds is None else self._start + seconds

    def expired(self) -> bool:
        return self._end is not None and time.monotonic() > self._end

    def left(self) -> float | None:
        """Seconds that are left, at least 0; None without an end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def share(self, ratio: float) -> Deadline:
        """The deadline after this share of the whole time, counted from the same start."""
        part = Deadline(None)
        part._start, part._end = self._start, self._end
        if self._end is not None:
            part._end = self._start + (self._end - self._start) * ratio
        return part

    def within(self, seconds: float) -> Deadline:
        """The sooner of this deadline and `seconds` from now."""
        left = self.left()
        return Deadline(seconds if left is None else min(seconds, left))

    @contextmanager
    def interrupting(self, con: Interruptible) -> Iterator[None]:
        """Interrupts what `con` runs inside the block once the time is over, statement after statement."""
        if self._end is None:
            yield
            return
        with Watch(con) as watch, watch.until(self):
            yield


class Watch:
    """Interrupts what `con` runs once its time is over: one thread for many stretches of work, each with its end."""

    def __init__(self, con: Interruptible) -> None:
        self._con = con
        self._deadline = Deadline()
        self._giving = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look, name="forensics-deadline", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    @contextmanager
    def until(self, deadline: Deadline) -> Iterator[None]:
        self._deadline = deadline
        try:
            yield
        finally:
            with self._giving:  # an interrupt must not meet what runs next
                self._deadline = Deadline()

    def _look(self) -> None:
        # An interrupt between two statements stops neither, so it is given again until the block ends.
        while not self._closed.wait(_AGAIN_SECONDS):
            with self._giving:
                if self._deadline.expired():
                    self._con.interrupt()
