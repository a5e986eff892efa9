"""Temporary folders that tell whose they are, so that what a killed run left is told from what a living one uses."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path

_OLD_SECONDS = 24 * 3600  # of another machine, whose processes cannot be asked for


def temporary_folder(prefix: str, where: Path | None = None) -> Path:
    """A new folder PREFIX-MACHINE-PID-RANDOM below `where`, or below the system's place for temporary files."""
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{_machine()}-{os.getpid()}-", dir=where))


def remove_leftovers(prefix: str, where: Path | None = None) -> None:
    """Removes folders of `temporary_folder` whose process has ended, and any under such a name that is a day old."""
    for path in (where or Path(tempfile.gettempdir())).glob(f"{prefix}*"):
        words = path.name.removeprefix(prefix).split("-")
        try:
            here = words[0] == _machine() and len(words) > 2 and words[1].isdecimal()
            age = time.time() - path.stat().st_mtime
            if not _is_alive(int(words[1])) if here else age > _OLD_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:  # somebody else's, or gone
            continue


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


@lru_cache(maxsize=1)
def _machine() -> str:
    """Names the machine and, in a container, its own numbering of processes."""
    try:
        numbering = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        numbering = 0
    said = f"{platform.node()}\0{numbering}"
    return hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
