"""Flight recorder dumps: one rank's buffer of 20 000 real gloo calls with stacks, ten times the default."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.ingest import Bound, Comparison, Peer, build_case

_CALLS = 20_000
_RECORD = """
import os, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
tensor = torch.ones(16)
for call in range(int(sys.argv[2])):
    if call % 3:
        dist.all_reduce(tensor[: call % 16 + 1])
    else:
        dist.all_gather([torch.empty(16)], tensor)
with open(sys.argv[1], "wb") as file:
    file.write(_dump_fr_trace())
os._exit(0)
"""


def recorded(folder: Path) -> Path:
    path = folder / "nccl_trace_rank_0"
    if not path.exists():
        variables = {**os.environ, "TORCH_FR_BUFFER_SIZE": str(_CALLS)}
        command = [sys.executable, "-c", _RECORD, str(path), str(_CALLS)]
        subprocess.run(command, check=True, capture_output=True, env=variables)
    return path


def _unpickle(path: Path) -> int:
    with path.open("rb") as file:  # written by the line above, so nothing foreign is unpickled
        return len(pickle.load(file)["entries"])


JOBS: dict[str, Callable[[Path], int] | Peer] = {"case": build_case, "pickle.load": _unpickle}
# The tuples in these dumps keep them from the C unpickler; a bare load makes neither rows nor stacks of them.
COMPARISONS = (Comparison("20000 calls", recorded, ["case", "pickle.load"], [Bound("case", "pickle.load", 40)]),)
