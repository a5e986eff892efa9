"""The recorder as a callback of the Hugging Face Trainer: `Trainer(..., callbacks=[ForensicsCallback("out")])`.

The Trainer hands the model over when training begins; its forward call, which returns the loss when the batch has
labels, is what is run again when a step is not finite.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from forensics_recorder.recorder import Options, Recorder
from forensics_recorder.values import loss_of


class ForensicsCallback(TrainerCallback):  # type: ignore[misc]
    """Records steps, logged metrics, gradients and ends of one training run."""

    def __init__(self, out: str | Path, *, options: Options | None = None) -> None:
        self._out = out
        self._options = options
        self.recorder: Recorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        optimizer = kwargs.get("optimizer")
        # Accelerate wraps the optimizer; hooks belong to the one inside.
        inner = getattr(optimizer, "optimizer", optimizer)
        hooked = inner if hasattr(inner, "register_step_pre_hook") else None
        self.recorder = Recorder(self._out, model=model, optimizer=hooked, options=self._options)
        self.recorder.event("train_begin", {"max_steps": state.max_steps, "first_step": state.global_step})
        if model is not None:
            model.register_forward_hook(self._on_forward)

    def _on_forward(self, model: Any, args: Any, output: Any) -> None:
        """The loss as the model gave it: what the Trainer logs is averaged, and NaN is left out of the average."""
        loss = loss_of(output)
        if self.recorder is not None and model.training and loss is not None:
            self.recorder.log(loss=loss)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.begin_step(state.global_step + 1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        # Logged after the step has ended and, by default, with NaN losses replaced: told apart from what was recorded.
        if self.recorder is not None and logs:
            self.recorder.event("log", {"global_step": state.global_step, "logs": dict(logs)})

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.end_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.recorder is not None:
            self.recorder.close()
