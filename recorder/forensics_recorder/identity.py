"""Which process this is: rank, world size, host, attempt, as the launchers' variables and torch say."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_ATTEMPT = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


@dataclass(frozen=True)
class Identity:
    """`rank` 0 of 1 where nothing says otherwise; `attempt` counts restarts from 0."""

    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    attempt: int

    def header(self, kind: str) -> dict[str, Any]:
        """First line of each file: its format and whose it is."""
        known = {"format": kind, "rank": self.rank, "world_size": self.world_size, "local_rank": self.local_rank}
        known |= {"host": self.host, "pid": self.pid, "attempt": self.attempt}
        torch = sys.modules.get("torch")
        return known | ({"torch": str(torch.__version__)} if torch is not None else {})

    def folder(self, out: Path) -> Path:
        """`OUT/attempt_A/rank_R`: the layout in which `forensics analyze` finds attempts and ranks by themselves."""
        return out / f"attempt_{self.attempt}" / f"rank_{self.rank}"


def identify() -> Identity:
    rank, world = _first(_RANK, None), _first(_WORLD, None)
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    rank = rank or 0
    return Identity(
        rank, _first(_LOCAL, rank) or 0, world or 1, socket.gethostname(), os.getpid(), _first(_ATTEMPT, 0) or 0
    )


def _first(names: tuple[str, ...], default: int | None) -> int | None:
    for name in names:
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default
