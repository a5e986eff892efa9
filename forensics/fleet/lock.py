"""One batch at a time on a fleet: a lock that the system releases however its holder ends."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forensics.errors import ForensicsError

_AGAIN_SECONDS = 0.5


class Busy(ForensicsError):
    """Another batch is at work."""


@contextmanager
def locked(path: Path, *, wait_seconds: float = 0.0) -> Iterator[None]:
    """Holds the lock inside the block. Raises Busy, which names the holder, where it is not to be had in time.

    Children do not inherit it (files are closed on exec), so a killed parent never leaves it behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + wait_seconds
    with path.open("a+b") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    file.seek(0)
                    holder = file.read(200).decode("utf-8", "replace").strip() or "somebody"
                    raise Busy(
                        f"{path.parent}: another batch is at work ({holder}); wait for it, or give --wait SECONDS"
                    ) from None
                time.sleep(_AGAIN_SECONDS)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M:%S')}".encode())
        file.flush()
        yield
