"""The recorder that a training script uses: one object, or one `with` block, for all that can be recorded.

    with forensics_recorder.record("forensics-out", model=model, optimizer=optimizer) as rec:
        for step, batch in enumerate(loader):
            with rec.step(step):
                loss = rec.run(compute_loss, model, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

Files go to OUT/attempt_A/rank_R/. Whatever goes wrong inside the recorder is written to `events.jsonl` and never
reaches the training code; the one exception is `Halted`, which is raised when a halt was asked for.
"""

from __future__ import annotations

import functools
import math
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from forensics_recorder.beginnings import Beginning
from forensics_recorder.endings import Endings
from forensics_recorder.environment import device_map, environment
from forensics_recorder.host import HostWatch
from forensics_recorder.identity import Identity, identify
from forensics_recorder.journal import Journal, encode, write_whole
from forensics_recorder.steps import FORMAT as STEPS_FORMAT
from forensics_recorder.steps import StallWatch, Steps
from forensics_recorder.values import is_tensor, loss_of

EVENTS_FORMAT = "forensics.events/1"
_SKIPS_BEFORE_SUSPICION = 3  # a scaler skips a step now and then by design


class Halted(RuntimeError):
    """Raised out of the step at which a condition given as `halt_at` or `halt_when` held."""


@dataclass
class Options:
    """What to record, and how much of the run's time it may take."""

    gradients_every: int = 10  # steps between samples of gradients, at least; 0: none
    gradients_budget: float = 0.03  # share of the run's time
    parameters: bool = True  # sample parameters with the gradients, for comparison across ranks
    watch_nonfinite: bool = True
    record_steps: int = 1  # steps recorded while they run, where the suspicious one cannot be run again
    memory_history: bool = True
    stall_seconds: float = 600.0  # standstill after which stacks of all threads are written; 0: never
    max_bytes: int = 64 << 20  # of each file, before its older half is dropped
    halt_at: int | None = None
    halt_when: Callable[[dict[str, Any]], bool] | None = None


class Recorder:
    """Records one process. `model` and `optimizer` may be left out; then only metrics, ends and stalls are recorded."""

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        model: Any = None,
        optimizer: Any = None,
        scaler: Any = None,
        declared_devices: dict[str, Any] | None = None,
        options: Options | None = None,
    ) -> None:
        self.options = options or Options()
        self.identity: Identity = identify()
        self.folder = self.identity.folder(Path(out))
        self._model = model
        self._scaler = scaler
        self._scale: float | None = None
        self._n_skipped = 0
        self._looked = False  # at this step, by the optimizer's hook
        self._metrics: dict[str, Any] = {}
        self._handles: list[Any] = []
        self._owner = os.getpid()
        self._events = self._journal("events", EVENTS_FORMAT)
        self._steps = Steps(self._journal("steps", STEPS_FORMAT))
        self._endings = Endings(self.folder, self.identity.header("end"), self.flush)
        self._stall: StallWatch | None = None
        self._gradients: Any = None
        self._watch: Any = None
        self._memory: Any = None
        self._buckets: Any = None
        self._graphs: Any = None
        self._beginning: Any = None
        self._host: Any = self._guard("host", HostWatch)
        self._closed = False
        self._guard("endings", self._endings.watch)
        self._guard("environment", lambda: self._write_environment(declared_devices))
        if self.options.stall_seconds > 0:
            self._stall = StallWatch(self._steps, self.options.stall_seconds, self._on_stall)
            self._stall.start()
        if model is not None:
            self._guard("model", lambda: self._attach(model, optimizer))

    @contextmanager
    def step(self, number: int) -> Iterator[Recorder]:
        """One step of the loop; what was logged and sampled inside belongs to it."""
        self.begin_step(number)
        yield self
        self.end_step()

    def begin_step(self, number: int) -> None:
        self._looked = False
        self._metrics = {}
        self._steps.begin(number)
        if self._buckets is not None:
            self._buckets.step = number
        if self._graphs is not None:
            self._graphs.step = number
        if self._watch is not None:
            self._guard("watch", lambda: self._watch.begin_step(number))

    def end_step(self, **metrics: Any) -> None:
        """Ends the step begun last; halts when asked to."""
        self.log(**metrics)
        self._guard("scaler", self._read_scaler)
        if not self._looked:  # the optimizer did not step: accumulation, or a scaler that skipped
            self._look(self._n_skipped >= _SKIPS_BEFORE_SUSPICION)
            if self._beginning is not None:
                self._steps.add({"optimizer_waited": 1})  # gradients of this step are not what an update uses
        if self._watch is not None:
            self._guard("watch", self._watch.end_step)
        if self._memory is not None:
            self._guard("memory", lambda: self._steps.add(self._memory.counters()))
        if self._graphs is not None:
            self._steps.add(self._graphs.counters())
        if self._host is not None:
            self._guard("host", lambda: self._steps.add(self._host.since_last()))
        self._guard("steps", self._steps.finish)
        self._halt_if_asked()

    def log(self, **metrics: Any) -> None:
        """Adds metrics (numbers, scalars of tensors) to the step; `loss` is also watched."""
        plain = {key: value.detach() if is_tensor(value) else value for key, value in metrics.items()}
        self._metrics.update(plain)  # without the graph of the step
        self._steps.add(plain)

    def run(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls `fn(*args)`, which returns the loss or something that has one, and logs that loss.

        When the step turns out not to be finite, the call is what is run again to find the operator at fault.
        """
        call = fn if self._watch is None else functools.partial(self._watch.run, fn)
        result = call(*args, **kwargs)
        loss = loss_of(result)
        if loss is not None:
            self.log(loss=loss)
        return result

    def watch_buckets(
        self, ddp: Any, group: Any = None, *, hook: Callable[[Any, Any], Any] | None = None, hook_state: Any = None
    ) -> None:
        """Registers a communication hook that names the rank whose gradients were bad before they were reduced.

        `hook` and `hook_state` are the job's own communication hook, which DDP cannot have beside it: it is called
        inside, and what it makes of finite gradients is looked at as well.
        """

        def register() -> None:
            from forensics_recorder.buckets import FORMAT, Buckets

            journal = self._journal("buckets", FORMAT, **({"communication_hook": _name_of(hook)} if hook else {}))
            self._buckets = Buckets(ddp, journal, group, hook=hook, hook_state=hook_state)

        self._guard("buckets", register)

    def event(self, kind: str, facts: dict[str, Any] | None = None) -> None:
        self._events.write({"ts_ns": time.time_ns(), "step": self._steps.step, "event": kind} | (facts or {}))

    def snapshot(self, why: str = "asked") -> Path | None:
        """Writes a snapshot of the device's memory and the reference chains of the largest tensors."""
        if self._memory is None:
            return None
        self._guard("references", lambda: self._memory.references(why))
        return self._guard("snapshot", lambda: self._memory.snapshot(why))  # type: ignore[no-any-return]

    def flush(self) -> None:
        self._guard("steps", self._steps.flush)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the recording; `error` is what ended the block, if anything did."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        if self._stall is not None:
            self._stall.stop()
        if self._buckets is not None:
            self._guard("buckets", self._buckets.settle)
        if error is not None and "OutOfMemory" in type(error).__name__ and self._memory is not None:
            self._guard("references", lambda: self._memory.references("oom"))
        for part in (self._watch, self._memory, self._graphs, self._host):
            if part is not None:
                self._guard("close", getattr(part, "remove", None) or part.close)
        for handle in self._handles:
            handle.remove()
        if error is None:
            self._endings.tell("completed", step=self._steps.step)
        else:
            self._endings.exception(error)
        self._guard("endings", self._endings.leave)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close(error)

    def _journal(self, stem: str, kind: str, **facts: str) -> Journal:
        return Journal(self.folder, stem, self.identity.header(kind) | facts, self.options.max_bytes)

    def _attach(self, model: Any, optimizer: Any) -> None:
        from forensics_recorder.gradients import FORMAT, Gradients
        from forensics_recorder.memory import Memory
        from forensics_recorder.watch import NanWatch

        chosen = self.options
        if chosen.gradients_every > 0:
            journal = self._journal("gradients", FORMAT)
            share, every = chosen.gradients_budget, chosen.gradients_every
            self._gradients = Gradients(model, journal, every=every, budget=share, parameters=chosen.parameters)
            self._guard("graphs", lambda: self._watch_graphs(model, journal))
        if chosen.watch_nonfinite:
            rows = self._journal("operators", FORMAT)
            self._watch = NanWatch(model, rows, self._on_watch, record_steps=chosen.record_steps)
        if chosen.memory_history:
            self._memory = Memory(self.folder, self.identity.header("memory"))
        if optimizer is not None:
            self._beginning = Beginning(optimizer, self._scaler, model)
            self._handles.append(optimizer.register_step_pre_hook(lambda *_: self._before_optimizer()))

    def _watch_graphs(self, model: Any, journal: Journal) -> None:
        import torch

        if torch.cuda.is_available():
            from forensics_recorder.graphs import Graphs

            self._graphs = Graphs(model, journal, torch.cuda.CUDAGraph, self._guard)

    def _before_optimizer(self) -> None:
        if not self._beginning.is_told:
            facts = self._guard("beginning", lambda: self._beginning.look(self._steps.step))
            if facts:
                self.event("optimizer_began", facts)
        self._look(False)

    def _look(self, force: bool) -> None:
        """Before weights change: is everything finite? and a sample of the gradients, when it is time for one."""
        self._looked = True
        if self._buckets is not None:
            self._guard("buckets", self._buckets.settle)
        step, bad = self._steps.step, None
        # Gradients that overflow now and then are how a scaler finds its scale.
        scaled = self._scaler is not None and self._scaler.is_enabled() and not force
        if self._watch is not None and (not scaled or not _finite(self._metrics.get("loss"))):
            bad = self._guard("watch", lambda: self._watch.look(step, self._metrics.get("loss")))
            if bad is None and force:  # the loop has dropped its gradients by now
                why = f"{self._n_skipped} steps were skipped in a row; their gradients were gone before they were seen"
                self._guard("watch", lambda: self._watch.record_next(step, why))
        if self._gradients is not None:
            totals = self._guard("gradients", lambda: self._gradients.sample(step, force=bad is not None))
            if totals:
                new = {key: value for key, value in totals.items() if key not in self._metrics}
                self._metrics.update(new)
                self._steps.add(new)

    def _read_scaler(self) -> None:
        if self._scaler is None or not self._scaler.is_enabled():
            return
        scale = float(self._scaler.get_scale())
        fell = self._scale is not None and scale < self._scale
        self._n_skipped = self._n_skipped + 1 if fell else 0
        self._scale = scale
        self._steps.add({"loss_scale": scale, "optimizer_skipped": int(fell)})

    def _halt_if_asked(self) -> None:
        step, condition = self._steps.step, self.options.halt_when
        reached = self.options.halt_at is not None and step >= self.options.halt_at
        if reached or (condition is not None and condition({"step": step, **self._metrics})):
            why = "halt_at" if reached else "halt_when"
            self.event("halted", {"why": why})
            raise Halted(f"step {step}: {why} holds; recorded in {self.folder}")

    def _write_environment(self, declared: dict[str, Any] | None) -> None:
        facts = environment(self.identity.header("environment"))
        write_whole(self.folder / "environment.json", encode(facts))
        if self._model is not None:
            rows = {"format": "forensics.device_map/1", "tensors": device_map(self._model, declared)}
            write_whole(self.folder / "device_map.json", encode(self.identity.header("device_map") | rows))

    def _on_watch(self, kind: str, facts: dict[str, Any]) -> None:
        self.event(kind, facts)

    def _on_stall(self, seconds: float) -> None:
        self.event("stall", {"seconds": round(seconds, 3)})
        self._endings.stacks_now(f"no new step for {seconds:.0f} s; the last one begun was {self._steps.step}")

    def _guard(self, where: str, work: Callable[[], Any]) -> Any:
        """The result of `work`; what goes wrong in it is an event, never the training code's problem."""
        try:
            return work()
        except Exception as error:
            self.event("recorder_fault", {"where": where, "what": f"{type(error).__name__}: {error}"[:2000]})
            return None


def _name_of(hook: Any) -> str:
    return f"{getattr(hook, '__module__', '?')}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"


def _finite(value: Any) -> bool:
    try:
        return value is None or math.isfinite(float(value))
    except (TypeError, ValueError):
        return True
