"""Numbers out of whatever training code has: floats, tensors on any device, numpy scalars; statistics of tensors."""

from __future__ import annotations

import math
import sys
from typing import Any

SIGNIFICANT = 7


def short(value: float) -> float:
    """The value with the digits that a float32 holds, so that lines stay short."""
    return float(f"{value:.{SIGNIFICANT}g}") if math.isfinite(value) else value


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def must_wait(value: Any) -> bool:
    """Whether reading the number makes this process wait for a device."""
    return is_tensor(value) and value.device.type not in {"cpu", "meta"}


def number(value: Any) -> float | int | str | None:
    """A plain number (or text) for JSON; None for what is neither."""
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if isinstance(value, float):
        return short(value)
    if is_tensor(value):
        if value.numel() != 1 or value.device.type == "meta":
            return None
        return number(value.detach().item())
    try:
        return short(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def loss_of(result: Any) -> Any:
    """The loss in what a step function or model returned: a scalar, `.loss`, ["loss"] or the first element; or None."""
    if isinstance(result, dict):
        result = result.get("loss")
    elif hasattr(result, "loss"):
        result = result.loss
    elif isinstance(result, (tuple, list)) and result:
        result = result[0]
    return result if is_tensor(result) and result.numel() == 1 else None


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def statistics(tensor: Any) -> dict[str, Any]:
    """What one pass tells of a floating tensor, and a second one where something is not finite.

    n, n_nan, n_inf (elements); absmax (largest finite absolute value; None for none); of float16 also zero_ratio and
    subnormal_ratio (shares of all elements).
    """
    torch = sys.modules["torch"]
    values = tensor.detach()
    known: dict[str, Any] = {"shape": list(values.shape), "dtype": dtype_name(values), "n": values.numel()}
    if values.numel() == 0 or values.device.type == "meta":
        return known | {"n_nan": 0, "n_inf": 0, "absmax": None}
    if values.layout != torch.strided:
        values = values.coalesce().values() if values.is_sparse else values.to_dense()
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.dtype == torch.float16:
        known["zero_ratio"] = short(1 - int(torch.count_nonzero(values)) / values.numel())
        known["subnormal_ratio"] = short(int(n_subnormal(values)) / values.numel())
    if values.element_size() == 1:  # float8 kinds have no reductions of their own
        values = values.float()
    low, high = (float(bound) for bound in torch.aminmax(values))  # either is NaN where one element is
    if math.isfinite(low) and math.isfinite(high):
        return known | {"n_nan": 0, "n_inf": 0, "absmax": short(max(abs(low), abs(high)))}
    n_nan = int(torch.isnan(values).sum())
    finite = values[torch.isfinite(values)]
    largest = short(float(finite.abs().max())) if finite.numel() else None
    return known | {"n_nan": n_nan, "n_inf": values.numel() - n_nan - finite.numel(), "absmax": largest}


def n_subnormal(values: Any) -> Any:
    """A scalar tensor: how many are not zero and below 2**-14, float16's smallest normal number; 0 of other types."""
    torch = sys.modules["torch"]
    if values.dtype != torch.float16:
        return values.new_zeros(())
    return ((values.abs() < 2.0**-14) & (values != 0)).sum()


CHECKED_ELEMENTS = 65_536


def sampled_checksum(tensor: Any) -> int | None:
    """64-bit sum of the bits of up to 65 536 evenly spread elements, each weighted by its place.

    Tensors with equal elements give equal sums on every rank; it is a sample, so equal sums do not prove equality.
    """
    torch = sys.modules["torch"]
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = tensor.detach()
    kind = kinds.get(values.element_size())
    if kind is None or values.is_complex() or values.layout != torch.strided or values.device.type == "meta":
        return None
    flat = values.reshape(-1) if values.is_contiguous() else values.contiguous().reshape(-1)
    stride = -(-flat.numel() // CHECKED_ELEMENTS) if flat.numel() else 1
    bits = flat[::stride].contiguous().view(kind).to(torch.int64)
    # Odd weights that differ from place to place; wraps around modulo 2**64 as int64 does.
    weights = torch.arange(bits.numel(), dtype=torch.int64, device=bits.device) * 5308871522 + 1
    return int((bits * weights).sum()) & (2**64 - 1)
