"""What an optimizer brought to its first step: state out of a checkpoint, or none.

Told at the second step, since only then is known whether this kind of optimizer keeps any state at all.
"""

from __future__ import annotations

from typing import Any


class Beginning:
    """Asked before each step of the optimizer; `facts` are there once, at the second."""

    def __init__(self, optimizer: Any, scaler: Any = None) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        self._first: dict[str, Any] | None = None
        self.is_told = False

    def look(self, step: int) -> dict[str, Any] | None:
        if self._first is None:
            self._first = {"first_step": step, "optimizer": type(self._optimizer).__name__} | _state(self._optimizer)
            self._first["learning_rate"] = _number(self._optimizer.param_groups[0].get("lr"))
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


def _number(value: Any) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError):
        return None
