"""How much memory the analysis may use: what the user allows, else a share of what machine and cgroup have."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

_SIZE = re.compile(r"([1-9][0-9]*(?:\.[0-9]+)?)\s?([KMGT])(i?)B", re.IGNORECASE)
_SHARE = 0.8  # of the memory there is; the rest is for the system and the page cache
_DATABASE_BYTES = 70 << 20  # DuckDB's threads reserve this much as they start and touch 5 MiB of it
_CGROUPS = ("memory.max", "memory.limit_in_bytes")  # version 2 and 1


def parse_size(text: str) -> int | None:
    """Bytes of a size such as 500MB, 4GB or 4GiB; None when it is no such size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    unit = (1024 if match[3] else 1000) ** (" KMGT".index(match[2].upper()))
    return int(float(match[1]) * unit)


def bound_growth(n_bytes: int, *, final: bool = True) -> None:
    """Lets this process take `n_bytes` of memory in all; beyond, allocations fail.

    What it has been given addresses for but never touched, such as the stacks of threads, does not count. Where it is
    not `final`, children may set bounds of their own.
    """
    untouched = max(0, _status("VmData") - _status("RssAnon"))
    # Data, not address space: libraries reserve far more addresses than they use.
    limit = n_bytes + untouched + _DATABASE_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit if final else most))


def spare_bytes() -> int | None:
    """How much more memory this process may take; None without a bound of its own."""
    bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return None if bound == resource.RLIM_INFINITY else max(0, bound - _status("VmData"))


def _status(name: str) -> int:
    """Bytes of one line of Linux's account of this process; 0 elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:")), 0)


def usable_bytes() -> int:
    """Four fifths of the smaller of physical memory and the limit of the cgroup that this process runs in."""
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_cgroup_limits()]
    return int(min(bounds) * _SHARE)


def _cgroup_limits(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    limits = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers not in {"", "memory"}:
            continue
        base = root / controllers
        folder = base / path.lstrip("/")
        # A limit of a parent holds as well; inside a container the path may be that of the host and not exist.
        for place in (folder, *folder.parents):
            if not place.is_relative_to(base):
                break
            limits += [limit for name in _CGROUPS if (limit := _read_limit(place / name)) is not None]
    return limits


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit
