"""Watches for the first value that is not finite, and records every operator of the step that made it.

Idle, it looks at the loss and at the norms of the gradients before each optimizer step. When one is not finite, the
weights are still good: the step's computation is run again, on the same inputs, with the same random numbers, in the
same weights, under `OperatorRecorder`. Parameters' gradients, buffers and the random state are put back afterwards.

What can be run again, best first:
* the function given to `run(fn, ...)`: forward and loss, as the loop computes them;
* the model's last forward call; backward too when its output is the loss or has one (`.loss`, `["loss"]`).

Never run again: models whose forward talks to other ranks (FSDP, SyncBatchNorm), since the others would not answer.
Then, and for `record_steps` steps after the first suspicious one, steps are recorded while they run.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Callable, Iterator

import torch

from forensics_recorder.journal import Journal
from forensics_recorder.operators import OperatorRecorder
from forensics_recorder.values import loss_of

FORMAT = "forensics.tensor_stats/1"
_TALKATIVE = ("FullyShardedDataParallel", "FSDPModule", "SyncBatchNorm", "DistributedTensor")


class NanWatch:
    """One model's watch. `journal` takes the rows; `on_event(kind, facts)` is told of what happens."""

    def __init__(
        self,
        model: Any,
        journal: Journal,
        on_event: Callable[[str, dict[str, Any]], None],
        *,
        record_steps: int = 1,
        max_recordings: int = 3,
    ) -> None:
        self._model = model
        self._journal = journal
        self._tell = on_event
        self._left_steps = 0
        self._record_steps = record_steps
        self._left = max_recordings
        self._call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any] | None = None
        self._given = False  # _call came from `run`
        self._live: OperatorRecorder | None = None
        self._stack = ExitStack()
        self._replaying = False
        self._wrapped = _inner(model)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._handle = model.register_forward_pre_hook(self._on_forward, with_kwargs=True)

    def remove(self) -> None:
        self.end_step()
        self._handle.remove()
        self._call = None

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `fn`, whose result is the loss or begins with it, and remembers how to call it again."""
        self._call, self._given = (fn, args, kwargs, _random_state()), True
        return fn(*args, **kwargs)

    def begin_step(self, step: int) -> None:
        """Starts recording while the step runs, where that was called for."""
        self.end_step()
        self._call, self._given = None, False
        if self._left_steps > 0:
            self._left_steps -= 1
            self._live = OperatorRecorder(self._wrapped, step)
            self._stack.enter_context(_eager())
            self._stack.enter_context(self._live)

    def record_next(self, step: int, why: str) -> None:
        """Has the next steps recorded while they run, where what was not finite can no longer be seen."""
        if self._left > 0 and self._left_steps == 0 and self._live is None:
            self._left -= 1
            self._left_steps = self._record_steps
            self._tell("nonfinite", {"step": step, "what": "gradient", "recorded": "no", "why": why})

    def end_step(self) -> None:
        if self._live is not None:
            self._stack.close()
            self._write(self._live)
            self._live = None

    def look(self, step: int, loss: Any) -> str | None:
        """Says what is not finite (`loss`, `gradient`), having recorded how it came about; None when all is."""
        what = self._suspect(loss)
        if what is None or self._left <= 0:
            return what
        self._left -= 1
        facts: dict[str, Any] = {"step": step, "what": what}
        if self._live is not None:
            self._tell("nonfinite", facts | {"recorded": "live"})
            return what
        reason = self._why_not_again()
        if reason is None:
            reason = self._again(step)
        self._left_steps = self._record_steps if reason else 0
        self._tell("nonfinite", facts | ({"recorded": "no", "why": reason} if reason else {"recorded": "replayed"}))
        return what

    def _suspect(self, loss: Any) -> str | None:
        if loss is not None and not math.isfinite(float(loss.detach() if isinstance(loss, torch.Tensor) else loss)):
            return "loss"
        grads = [p.grad for p in self._parameters if p.grad is not None and p.grad.layout == torch.strided]
        doubtful = [grad for grad, total in zip(grads, _totals(grads), strict=True) if not math.isfinite(total)]
        # A total may overflow by itself, where every element is finite.
        return "gradient" if any(not bool(torch.isfinite(grad).all()) for grad in doubtful) else None

    def _on_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._given and not self._replaying and torch.is_grad_enabled():
            self._call = (module, args, kwargs, _random_state())

    def _why_not_again(self) -> str | None:
        if self._call is None:
            return "no forward call of the model was seen in this step"
        for module in self._model.modules():
            if any(name in _TALKATIVE for name in (base.__name__ for base in type(module).__mro__)):
                return f"{type(module).__name__} talks to other ranks in forward; the next step is recorded as it runs"
        return None

    def _again(self, step: int) -> str | None:
        """Runs the remembered call under a recorder; returns why nothing was recorded, or None."""
        assert self._call is not None
        fn, args, kwargs, random_state = self._call
        recorder = OperatorRecorder(self._wrapped, step)
        self._replaying = True
        problem = None
        try:
            with _unchanged(self._model, random_state), _eager(), recorder:
                loss = loss_of(fn(*args, **kwargs))
                if loss is not None and loss.requires_grad:
                    loss.backward()
        except Exception as error:
            # What was recorded before the fault is still worth having: an assertion of the job may be the fault.
            problem = f"{type(error).__name__}: {error}"
        finally:
            self._replaying = False
        self._write(recorder, problem)
        return None if recorder.rows else problem or "the step ran no operator again"

    def _write(self, recorder: OperatorRecorder, problem: str | None = None) -> None:
        self._journal.write(*recorder.rows)
        for what in (problem, recorder.fault):
            if what:
                self._tell("recorder_fault", {"where": "provenance", "what": what})


def _totals(grads: list[Any]) -> list[float]:
    """A number for each gradient, which is finite only where all its elements are; one wait for each device."""
    totals: list[float] = [0.0] * len(grads)
    by_device: dict[Any, list[int]] = {}
    for index, grad in enumerate(grads):
        by_device.setdefault(grad.device, []).append(index)
    for device, places in by_device.items():
        here = [torch.view_as_real(g) if g.is_complex() else g for g in map(grads.__getitem__, places)]
        # NaN and infinity survive into a sum. One fused kernel on accelerators; on CPUs plain sums run 16 times faster.
        parts = [grad.sum() for grad in here] if device.type == "cpu" else torch._foreach_norm(here, 1)
        known = torch.stack([part.to(torch.float32) for part in parts]).tolist()
        for index, total in zip(places, known, strict=True):
            totals[index] = total
    return totals


def _inner(model: Any) -> Any:
    """The user's module inside DistributedDataParallel, DataParallel and compiled wrappers."""
    while True:
        inside = getattr(model, "_orig_mod", None) or (
            model.module if type(model).__name__ in {"DistributedDataParallel", "DataParallel"} else None
        )
        if inside is None:
            return model
        model = inside


def _eager() -> AbstractContextManager[Any]:
    """Compiled code runs operator by operator, since fused kernels tell nothing; from PyTorch 2.6 on."""
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None else nullcontext()


def _random_state() -> Any:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda


@contextmanager
def _unchanged(model: Any, random_state: Any) -> Iterator[None]:
    """Gradients, buffers and random numbers are afterwards what they were; DDP says nothing to other ranks."""
    torch_now = _random_state()
    grads = [(p, p.grad) for p in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    wrappers = [m for m in model.modules() if type(m).__name__ == "DistributedDataParallel"]
    flags = [(m, m.require_forward_param_sync, m.require_backward_grad_sync) for m in wrappers]
    try:
        _set_random_state(random_state)
        for parameter, _ in grads:
            parameter.grad = None
        for wrapper, _, _ in flags:
            wrapper.require_forward_param_sync = wrapper.require_backward_grad_sync = False
        with torch.enable_grad():
            yield
    finally:
        for wrapper, forward, backward in flags:
            wrapper.require_forward_param_sync, wrapper.require_backward_grad_sync = forward, backward
        for parameter, grad in grads:
            parameter.grad = grad
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        _set_random_state(torch_now)


def _set_random_state(state: Any) -> None:
    cpu, cuda = state
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda)
