"""`forensics collect PID... --out DIR`."""

from __future__ import annotations

from pathlib import Path


def collect(*pids: int, out: Path, children: bool = True, samples: int = 2, interval: float = 5.0) -> int:
    """Take evidence of a job that hangs now: stacks, waits, settings, device state. Nothing is killed.

    Parameters
    ----------
    pids
        Processes to look at: usually one rank, or torchrun itself.
    out
        Folder for what is found; `forensics analyze` reads it.
    children
        Look at the processes below them too: workers of loaders, ranks of a launcher.
    samples
        How many times stacks are taken.
    interval
        Seconds between them.
    """
    from forensics.collection import collect as take
    from forensics.errors import ForensicsError

    if not pids or any(pid < 1 for pid in pids):
        raise ForensicsError("collect: expected one or more process ids")
    taken = take(pids, out, children=children, samples=samples, interval_seconds=interval)
    for one in taken:
        if one.path is None:
            print(f"not taken: {one.what}: {one.note}")
    print(f"{sum(one.path is not None for one in taken)} files in {out}; next: forensics analyze {out}")
    return 0
