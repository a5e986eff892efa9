"""Low-rank adapters among the tensors of a checkpoint: which module each adapts, and how far it moves it.

An adapter adds `scale * B @ A` to a weight: A (down) is r x inputs, B (up) outputs x r. Names as PEFT, diffusers and
kohya's scripts write them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from math import prod, sqrt
from typing import Any, BinaryIO

import numpy as np

from forensics.formats._checkpoint_layout import Layout, StoredTensor
from forensics.formats._tensor_values import chunks

_MAX_MODULES = 100_000
_BUDGET_BYTES = 512 << 20
_MAX_RANK = 4096
_FACTOR = re.compile(
    r"(?:(?P<module>.{1,900}?)[._])??"
    r"(?P<factor>lora_embedding_A|lora_embedding_B|lora_A|lora_B|lora_down|lora_up|lora\.down|lora\.up)"
    r"(?:\.(?P<adapter>(?!weight$)[\w\-]{1,100}))?(?:\.weight)?"
)
_A = {"lora_A", "lora_embedding_A", "lora_down", "lora.down"}
# Wrappers put these before or between the names of modules.
_WRAPPED = re.compile(r"^(?:(?:base_model\.model|_orig_mod|module|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.)+")
_INNER = re.compile(
    r"\.(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer|modules_to_save\.[\w\-]+)(?=\.|$)"
)


def plain_name(name: str) -> str:
    """The name of a module or parameter without what wrappers added to it."""
    return _INNER.sub("", _WRAPPED.sub("", name))


def factor_of(name: str) -> tuple[str, str, str | None] | None:
    """Module, "A" or "B", and the adapter's name where it is told, of a tensor that is a factor of an adapter."""
    found = _FACTOR.fullmatch(name)
    if found is None:
        return None
    return plain_name(found["module"] or ""), "A" if found["factor"] in _A else "B", found["adapter"]


def adapter_modules(layout: Layout, file: BinaryIO, places: Mapping[str, int]) -> list[dict[str, Any]]:
    """A row for each module that an adapter of this file adapts. `places`: row of each tensor by name."""
    pairs: dict[tuple[str, str | None], dict[str, StoredTensor]] = defaultdict(dict)
    alphas = {
        t.name.removesuffix(".alpha"): t for t in layout.tensors if t.name.endswith(".alpha") and t.n_elements == 1
    }
    for tensor in layout.tensors:
        factor = factor_of(tensor.name)
        if factor is not None and len(pairs) < _MAX_MODULES:
            module, which, adapter = factor
            pairs[module, adapter].setdefault(which, tensor)
    rows: list[dict[str, Any]] = []
    left = _BUDGET_BYTES
    for (module, adapter), pair in pairs.items():
        a, b = pair.get("A"), pair.get("B")
        row: dict[str, Any] = {"row": len(rows), "name": module, "adapter": adapter}
        row |= {"a_row": places[a.name] if a else None, "b_row": places[b.name] if b else None}
        if a is not None and b is not None and a.shape and len(b.shape) > 1:
            row |= {"lora_rank": a.shape[0], "n_inputs": prod(a.shape[1:]), "n_outputs": b.shape[0]}
            left -= a.n_bytes + b.n_bytes
            if left > 0 and a.shape[0] == b.shape[1] and a.shape[0] <= _MAX_RANK:
                row["delta_norm"] = _product_norm(file, a, b, layout.byteorder)
        alpha = alphas.get(module)
        if alpha is not None:
            row["alpha"] = next((float(part[0]) for part in chunks(file, alpha, layout.byteorder)), None)
        rows.append(row)
    return [{name: row.get(name) for name in _COLUMNS} for row in rows]


_COLUMNS = ("row", "name", "adapter", "lora_rank", "n_inputs", "n_outputs", "alpha", "a_row", "b_row", "delta_norm")


def _product_norm(file: BinaryIO, a: StoredTensor, b: StoredTensor, byteorder: str) -> float | None:
    """Frobenius norm of B @ A, which is sqrt(trace(B'B AA')): only r x r matrices are multiplied."""
    down, up = _matrix(file, a, byteorder, (a.shape[0], -1)), _matrix(file, b, byteorder, (b.shape[0], -1))
    if down is None or up is None or up.shape[1] != down.shape[0]:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        square = float(((up.T @ up) * (down @ down.T)).sum())
    return sqrt(max(square, 0.0)) if np.isfinite(square) else None


def _matrix(
    file: BinaryIO, tensor: StoredTensor, byteorder: str, shape: tuple[int, int]
) -> np.ndarray[Any, Any] | None:
    parts = [] if tensor.fault else list(chunks(file, tensor, byteorder))
    if sum(part.size for part in parts) != tensor.n_elements or not tensor.n_elements:
        return None
    return np.concatenate(parts).astype(np.float64).reshape(shape)
