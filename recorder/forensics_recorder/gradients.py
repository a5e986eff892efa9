"""Gradients, parameters and other tensors of a model, sampled: norm, finite, zeros, checksum, address, version of each.

Rows are those of the format `forensics.tensor_stats/1`. A recorder measures what it costs and waits until its share of
the run's time (`budget`) allows the next sample, so a slow device makes it sample less often, not the run slower.
"""

from __future__ import annotations

import math
import sys
import time
from itertools import islice
from typing import Any, Iterable

from forensics_recorder.journal import Journal
from forensics_recorder.values import dtype_name, n_subnormal, sampled_checksum, short

FORMAT = "forensics.tensor_stats/1"
_ADAPTER = ("lora_", "adapter", "prompt_encoder", "ia3_")
_WRAPPERS = {"DistributedDataParallel", "DataParallel"}  # what they hold is the model's own
_SHARDING = ("FullyShardedDataParallel", "FSDPModule")  # puts views of its flat parameters into attributes
_REGISTRIES = {"_parameters", "_buffers", "_modules"}
_MAX_ATTRIBUTES = 256
_MAX_ITEMS = 64  # of a list or dictionary that is an attribute


class Budget:
    """Says when `share` of the time since the start allows for another sample of what the last ones cost."""

    def __init__(self, share: float) -> None:
        self.share = share
        self._start = time.perf_counter()
        self._spent = 0.0
        self._typical = 0.0
        self._n = 0

    def allows(self) -> bool:
        elapsed = time.perf_counter() - self._start
        return self._n == 0 or self._spent + self._typical <= self.share * elapsed

    def spend(self, seconds: float) -> None:
        self._spent += seconds
        self._typical = max(seconds, 0.8 * self._typical)
        self._n += 1


class Gradients:
    """Samples before the optimizer's step; `every` is the least number of steps between samples."""

    def __init__(self, model: Any, journal: Journal, *, every: int, budget: float, parameters: bool) -> None:
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._model = model
        self._journal = journal
        self._every = max(1, every)
        self._parameters = parameters
        self.budget = Budget(budget)
        self._last: int | None = None

    def sample(self, step: int, *, force: bool = False) -> dict[str, Any] | None:
        """Writes a row for each trainable parameter's gradient; returns the totals, or None when it was no turn."""
        due = self._last is None or step - self._last >= self._every
        if not force and not (due and self.budget.allows()):
            return None
        began = time.perf_counter()
        self._last = step
        present = [(name, p.grad, p) for name, p in self._named if p.grad is not None]
        rows = _rows([(name, grad) for name, grad, _ in present], step, "gradient")
        absent = [name for name, p in self._named if p.grad is None]
        rows += [{"step": step, "phase": "gradient", "role": "gradient", "name": n, "missing": True} for n in absent]
        if self._parameters:
            rows += _rows([(name, p) for name, p in self._named], step, "parameter")
            rows += _rows(self._model.named_buffers(), step, "buffer")
            rows += _rows(plain_attributes(self._model), step, "attribute")
        self._journal.write(*rows)
        self.budget.spend(time.perf_counter() - began)
        return self._totals(rows)

    def _totals(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        grads = [row for row in rows if row["role"] == "gradient"]
        squares = sum(row["norm"] ** 2 for row in grads if row.get("norm") is not None)
        totals: dict[str, Any] = {"grad_norm": short(math.sqrt(squares)) if squares >= 0 else math.nan}
        totals["gradients_missing"] = sum(row.get("missing", False) for row in grads)
        totals["gradients_nonfinite"] = sum(bool(row.get("n_nan", 0) + row.get("n_inf", 0)) for row in grads)
        adapters = [row for row in grads if any(mark in row["name"].lower() for mark in _ADAPTER)]
        if adapters:
            active = sum(bool(row.get("absmax")) for row in adapters)
            totals["adapters_active_ratio"] = short(active / len(adapters))
        return totals


def plain_attributes(model: Any) -> list[tuple[str, Any]]:
    """Tensors that modules hold as plain attributes, one list or dictionary deep: no state dict, move, wrapper or
    optimizer knows them. Results of operators that autograd follows are left out."""
    torch = sys.modules["torch"]
    modules = list(model.named_modules())
    if any(base.__name__ in _SHARDING for _, module in modules for base in type(module).__mro__):
        return []
    known = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    found: list[tuple[str, Any]] = []
    for prefix, module in modules:
        if type(module).__name__ in _WRAPPERS:
            continue
        for key, value in vars(module).items():
            if key in _REGISTRIES:
                continue
            for name, tensor in _items(key, value):
                if isinstance(tensor, torch.Tensor) and tensor.grad_fn is None and id(tensor) not in known:
                    known.add(id(tensor))
                    found.append((f"{prefix}.{name}" if prefix else name, tensor))
            if len(found) >= _MAX_ATTRIBUTES:
                return found
    return found


def _items(key: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f"{key}[{name!r}]", one) for name, one in islice(value.items(), _MAX_ITEMS) if isinstance(name, str)]
    if isinstance(value, (list, tuple)):
        return [(f"{key}[{number}]", one) for number, one in enumerate(value[:_MAX_ITEMS])]
    return [(key, value)]


def _rows(named: Iterable[tuple[str, Any]], step: int, role: str) -> list[dict[str, Any]]:
    """Rows of many tensors with one transfer from each device."""
    torch = sys.modules["torch"]
    dense = []
    for name, tensor in named:
        values = tensor.detach()
        values = values.to_local() if hasattr(values, "to_local") else values  # DTensor: this rank's own part
        values = values.coalesce().values() if values.is_sparse else values
        if values.device.type != "meta" and values.layout == torch.strided and values.is_floating_point():
            dense.append((name, tensor, values))
    sums: dict[Any, list[Any]] = {}
    for _, _, values in dense:
        wide = values.float() if values.element_size() < 4 else values
        if values.numel() == 0:
            numbers = wide.new_zeros(7)
        else:
            low, high = torch.aminmax(wide)
            finite = torch.isfinite(low) & torch.isfinite(high)
            nan, inf = (wide.new_zeros(()), wide.new_zeros(())) if values.device.type == "cpu" and bool(finite) else (
                torch.isnan(wide).sum().to(wide.dtype), torch.isinf(wide).sum().to(wide.dtype))  # fmt: skip
            norm = torch.linalg.vector_norm(wide)
            numbers = torch.stack([torch.maximum(low.abs(), high.abs()), norm, torch.count_nonzero(wide).to(wide.dtype),
                                   wide.sum(), nan, inf, n_subnormal(values).to(wide.dtype)])  # fmt: skip
        sums.setdefault(values.device, []).append(numbers.double())
    ready = {device: iter(torch.stack(parts).tolist()) for device, parts in sums.items()}
    now = time.time_ns()
    rows = []
    for name, tensor, values in dense:
        absmax, norm, n_nonzero, total, n_nan, n_inf, n_small = next(ready[values.device])
        n = max(values.numel(), 1)
        row: dict[str, Any] = {"step": step, "phase": role, "role": role, "name": name, "shape": list(values.shape)}
        row |= {"dtype": dtype_name(values), "n": values.numel(), "n_nan": int(n_nan), "n_inf": int(n_inf)}
        row |= {"norm": short(norm), "zero_ratio": short(1 - n_nonzero / n), "ts_ns": now}
        if values.dtype == torch.float16:
            row["subnormal_ratio"] = short(n_small / n)
        if math.isfinite(absmax):
            row |= {"absmax": short(absmax), "std": short(math.sqrt(max(norm * norm / n - (total / n) ** 2, 0.0)))}
        row |= {"addr": tensor.data_ptr() if not hasattr(tensor, "to_local") else values.data_ptr()}
        row |= {"version": tensor._version, "checksum": sampled_checksum(values)}
        rows.append(row)
    return rows
