"""What an optimizer brought to its first step: state out of a checkpoint, or none; and what it shortens by decay.

Told at the second step, since only then is known whether this kind of optimizer keeps any state at all.
"""

from __future__ import annotations

from typing import Any


class Beginning:
    """Asked before each step of the optimizer; `facts` are there once, at the second."""

    def __init__(self, optimizer: Any, scaler: Any = None, model: Any = None) -> None:
        self._optimizer = optimizer
        self._names = {id(p): name for name, p in model.named_parameters()} if model is not None else {}
        self._scaler = scaler
        self._first: dict[str, Any] | None = None
        self.is_told = False

    def look(self, step: int) -> dict[str, Any] | None:
        if self._first is None:
            self._first = {"first_step": step, "optimizer": type(self._optimizer).__name__} | _state(self._optimizer)
            self._first["learning_rate"] = _number(self._optimizer.param_groups[0].get("lr"))
            self._first |= _decay(self._optimizer, self._names)
            if self._scaler is not None and self._scaler.is_enabled():
                self._first["loss_scale"] = float(self._scaler.get_scale())
            return None
        self.is_told = True
        later = _state(self._optimizer)
        return self._first | {"keeps_state": later["n_states"] > 0}


def _state(optimizer: Any) -> dict[str, Any]:
    """Number of parameters that have any state, and how many steps the first of them has seen."""
    states = [state for state in optimizer.state.values() if state]
    counts = [_number(state.get("step")) for state in states[:1] if isinstance(state, dict)]
    return {"n_states": len(states)} | ({"steps_before": int(counts[0])} if counts and counts[0] is not None else {})


def _decay(optimizer: Any, names: dict[int, str]) -> dict[str, Any]:
    """What weight decay acts on: parameters in all, those decayed, and those of them that are vectors."""
    groups = [(_number(group.get("weight_decay")) or 0.0, group) for group in optimizer.param_groups]
    decayed = [p for decay, group in groups if decay > 0 for p in group["params"]]
    facts: dict[str, Any] = {
        "n_parameters": sum(len(group["params"]) for _, group in groups),
        "n_decayed": len(decayed),
    }
    if decayed:
        vectors = [p for p in decayed if p.ndim <= 1]
        coupled = [
            g for decay, g in groups if decay > 0 and not g.get("decoupled_weight_decay", _is_decoupled(optimizer))
        ]
        facts |= {"weight_decay": max(decay for decay, _ in groups), "decoupled": not coupled}
        facts["n_decayed_vectors"] = len(vectors)
        if vectors and id(vectors[0]) in names:
            facts["decayed_vector"] = names[id(vectors[0])]
    return facts


def _is_decoupled(optimizer: Any) -> bool:
    return type(optimizer).__name__.endswith("W")  # AdamW and its kin


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
