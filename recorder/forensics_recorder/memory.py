"""Device memory: allocator history with a snapshot when it runs out or on demand, counters, who keeps tensors alive.

Snapshots are the pickles of `torch.cuda.memory._snapshot()`; `forensics` reads them without executing anything in them.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import torch

from forensics_recorder.journal import encode, write_whole

FORMAT = "forensics.references/1"
_MAX_CHAIN = 12
_MAX_REFERRERS = 40


class Memory:
    """Records the allocator's history of this process, where there is a CUDA device; else only reference chains."""

    def __init__(
        self, folder: Path, header: dict[str, Any], *, max_entries: int = 100_000, stacks: str = "all"
    ) -> None:
        self._folder = folder
        self._header = header
        self._n = 0
        self._owner = os.getpid()
        self.active = False
        if torch.cuda.is_available():
            torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks=stacks)
            torch._C._cuda_attach_out_of_memory_observer(self._on_oom)
            self.active = True

    def close(self) -> None:
        if self.active:
            torch.cuda.memory._record_memory_history(enabled=None)
            self.active = False

    def snapshot(self, why: str) -> Path | None:
        """Writes a snapshot now; returns its path, or None where there is no device or no place to write."""
        if not self.active or os.getpid() != self._owner:
            return None
        self._n += 1
        path = self._folder / f"memory_snapshot_{why}_{self._n}.pickle"
        return path if write_whole(path, pickle.dumps(torch.cuda.memory._snapshot(), protocol=4)) else None

    def _on_oom(self, device: int, requested: int, limit: int, free: int) -> None:
        # Called inside the failing allocation: nothing here may allocate on the device.
        self.snapshot("oom")
        facts = {"device": device, "requested_bytes": requested, "total_bytes": limit, "free_bytes": free}
        write_whole(self._folder / "memory_oom.json", encode(self._header | facts))

    def counters(self) -> dict[str, Any]:
        """Allocated, reserved and inactive bytes, retries and failures of the current device, as metrics of a step."""
        if not self.active:
            return {}
        stats = torch.cuda.memory_stats()
        names = {
            "allocated_bytes": "allocated_bytes.all.current",
            "allocated_peak_bytes": "allocated_bytes.all.peak",
            "reserved_bytes": "reserved_bytes.all.current",
            "inactive_split_bytes": "inactive_split_bytes.all.current",
            "num_alloc_retries": "num_alloc_retries",
            "num_ooms": "num_ooms",
        }
        return {name: stats[key] for name, key in names.items() if key in stats}

    def references(self, why: str, *, largest: int = 20) -> Path | None:
        """Writes, for the largest living tensors, the chain of objects that keeps each alive."""
        path = self._folder / f"references_{why}.json"
        found = self._header | {"format": FORMAT, "tensors": reference_chains(largest=largest)}
        return path if write_whole(path, encode(found)) else None


def host_counters() -> dict[str, Any]:
    """Resident bytes of this process and open files, from /proc; nothing where that does not exist."""
    try:
        pages = int(Path("/proc/self/statm").read_bytes().split()[1])
        return {
            "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
            "open_files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        }
    except (OSError, ValueError, IndexError):
        return {}


def reference_chains(*, largest: int = 20) -> list[dict[str, Any]]:
    """The largest tensors that the collector knows, each with the shortest chain from it to a module, frame or class.

    A chain names objects and the way between them (attribute, key, index, variable), from the tensor outwards.
    """
    tensors: dict[int, Any] = {}
    for candidate in gc.get_objects():
        if isinstance(candidate, torch.Tensor) and candidate.layout == torch.strided:
            storage = candidate.untyped_storage()
            tensors.setdefault(storage.data_ptr(), candidate)
    ordered = sorted(tensors.values(), key=lambda t: -t.untyped_storage().nbytes())[:largest]
    del tensors
    rows: list[dict[str, Any]] = []
    variables = _variables()
    for tensor in ordered:
        row = {"bytes": tensor.untyped_storage().nbytes(), "shape": list(tensor.shape), "device": str(tensor.device)}
        row |= {"dtype": str(tensor.dtype).rpartition(".")[2], "requires_grad": tensor.requires_grad}
        row |= {"addr": tensor.data_ptr(), "chain": _chain(tensor, [ordered, rows], variables)}
        rows.append(row)
    return rows


def _variables() -> dict[int, str]:
    """Variables of functions that run, by the identity of what they hold: the collector does not see those."""
    found: dict[int, str] = {}
    for start in sys._current_frames().values():
        frame: types.FrameType | None = start
        while frame is not None:
            code = frame.f_code
            if Path(code.co_filename).parent != Path(__file__).parent:
                for name, value in list(frame.f_locals.items()):
                    found.setdefault(
                        id(value), f"variable {name} of {code.co_name} ({code.co_filename}:{frame.f_lineno})"
                    )
            frame = frame.f_back
    return found


def _chain(start: Any, ours: list[Any], variables: dict[int, str]) -> list[str]:
    """Breadth first over referrers, until something that lives by itself is met."""
    ignored = {id(one) for one in ours} | {id(ours)}
    seen = {id(start)}
    waiting: list[tuple[Any, list[str]]] = [(start, [])]
    ignored.add(id(waiting))
    best: list[str] = []
    while waiting and len(seen) < 2000:
        target, chain = waiting.pop(0)
        best = chain if len(chain) > len(best) else best
        if id(target) in variables:
            return [*chain, variables[id(target)]]
        if len(chain) >= _MAX_CHAIN:
            continue
        for holder in gc.get_referrers(target)[:_MAX_REFERRERS]:
            if id(holder) in seen or id(holder) in ignored or _is_ours(holder):
                continue
            seen.add(id(holder))
            link, way = _link(holder, target), chain
            if chain and chain[-1].startswith("dict['") and getattr(holder, "__dict__", None) is target:
                # An object and its dict are one place.
                link, way = f"attribute {chain[-1][6:-2]} of {_type_name(holder)}", chain[:-1]
            if isinstance(holder, (types.ModuleType, type, types.FrameType)):
                return [*way, link]
            waiting.append((holder, [*way, link]))
    return best


def _is_ours(holder: Any) -> bool:
    own = __name__.partition(".")[0] + "."
    of_recorder = str(getattr(type(holder), "__module__", "")).startswith(own)  # keeps nothing that lives by it alone
    return of_recorder or (isinstance(holder, types.FrameType) and holder.f_code.co_filename == __file__)


def _link(holder: Any, target: Any) -> str:
    """What `holder` is and where in it `target` sits."""
    if isinstance(holder, dict):
        key = next((k for k, v in list(holder.items()) if v is target), "?")
        return f"dict[{key!r}]" if isinstance(key, (str, int)) else f"dict[{type(key).__name__}]"
    if isinstance(holder, (list, tuple)):
        index = next((i for i, v in enumerate(holder) if v is target), -1)
        return f"{type(holder).__name__}[{index}] of {len(holder)}"
    if isinstance(holder, types.FrameType):
        name = next((k for k, v in holder.f_locals.items() if v is target), "?")
        return f"variable {name} of {holder.f_code.co_name} ({holder.f_code.co_filename}:{holder.f_lineno})"
    if isinstance(holder, types.ModuleType):
        return f"module {holder.__name__}"
    if isinstance(holder, type):
        return f"class {holder.__module__}.{holder.__qualname__}"
    if isinstance(holder, types.FunctionType):
        return f"function {holder.__qualname__}"
    attributes = list(getattr(holder, "__dict__", None) or {}) if not isinstance(holder, types.MethodType) else []
    name = next((k for k in attributes if isinstance(k, str) and holder.__dict__.get(k) is target), "")
    return f"attribute {name} of {_type_name(holder)}" if name else f"object of {_type_name(holder)}"


def _type_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
