"""A communication hook for DistributedDataParallel that looks at buckets of gradients before and after their reduction.

After the all-reduce every rank has the NaN; before it only the rank where it was born has. So the rank with the first
line is the one to look at. Where what every rank brought was finite and what came back is not, the reduction gave it:
then each rank writes both, so that it can be told whether a sum of such values can leave its type.

Nothing waits for a device after the reduction: what was found there is read when the step ends (`settle`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.distributed as dist

from forensics_recorder.journal import Journal
from forensics_recorder.values import dtype_name, short

FORMAT = "forensics.tensor_stats/1"


@dataclass
class _Brought:
    """Gradients of one bucket that were finite before the reduction; `largest`: absolute values, on their device."""

    step: int
    lines: list[dict[str, Any]]
    largest: Any
    counted: Any = None  # of each gradient: NaN and infinite elements after it, and `largest`


class Buckets:
    """Writes lines for buckets that are not finite, and counts those looked at (`n_buckets`).

    `hook`, `hook_state`: the communication hook that the job would have registered; without one, gradients are divided
    by the number of ranks and then summed.
    """

    def __init__(
        self,
        model: Any,
        journal: Journal,
        group: Any = None,
        *,
        hook: Callable[[Any, Any], Any] | None = None,
        hook_state: Any = None,
    ) -> None:
        self._journal = journal
        self._hook: Callable[[Any, Any], Any] = hook or _sum_over_ranks
        self._hook_state = hook_state if hook else group
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self._waiting: list[_Brought] = []
        self.step = -1
        self.n_buckets = 0
        model.register_comm_hook(state=self, hook=_look_around_reduction)

    def reduce(self, bucket: Any) -> Any:
        """Reduces the bucket; a future of the reduced tensor."""
        if self._hook is _sum_over_ranks:
            # Before the look, so that it sees what is summed; finite values cannot sum up to an infinity then.
            bucket.buffer().div_(_group(self._hook_state).size())
        brought = self._guarded(lambda: self._before(bucket))
        future = self._hook(self._hook_state, bucket)
        return future if brought is None else future.then(lambda done: self._after(brought, done.value()))

    def settle(self) -> None:
        """Writes what the reductions since the last call gave that is not finite; waits for the devices."""
        waiting, self._waiting = self._waiting, []
        for brought in waiting:
            now = time.time_ns()
            for (n_nan, n_inf, largest), line in zip(brought.counted.tolist(), brought.lines, strict=True):
                if n_nan + n_inf == 0:
                    continue
                place = {"step": brought.step, "phase": "gradient"}
                before = {"role": "bucket", "n_nan": 0, "n_inf": 0, "absmax": short(largest)}
                after = {"role": "reduced-bucket", "n_nan": int(n_nan), "n_inf": int(n_inf)}
                self._journal.write(place | before | line, place | after | line | {"ts_ns": now})

    def _before(self, bucket: Any) -> _Brought | None:
        self.n_buckets += 1
        gradients = bucket.gradients()
        largest = torch.stack([_largest(gradient) for gradient in gradients])
        now = time.time_ns()
        lines = [
            {"name": self._names.get(id(parameter), "?"), "n": gradient.numel(), "bucket": bucket.index(),
             "shape": list(gradient.shape), "dtype": dtype_name(gradient), "ts_ns": now}
            for parameter, gradient in zip(bucket.parameters(), gradients, strict=True)
        ]  # fmt: skip
        if bool(torch.isfinite(largest).all()):
            return _Brought(self.step, lines, largest)
        for gradient, line in zip(gradients, lines, strict=True):
            n_nan, n_inf = int(torch.isnan(gradient).sum()), int(torch.isinf(gradient).sum())
            if n_nan or n_inf:
                place = {"step": self.step, "phase": "gradient", "role": "bucket"}
                self._journal.write(place | line | {"n_nan": n_nan, "n_inf": n_inf})
        return None

    def _after(self, brought: _Brought, reduced: Any) -> Any:
        """Called when the reduction is done, maybe by a thread of the backend; what it gives is the gradients."""
        self._guarded(lambda: self._note(brought, reduced[0] if isinstance(reduced, (list, tuple)) else reduced))
        return reduced

    def _note(self, brought: _Brought, reduced: Any) -> None:
        if reduced.device.type == "cpu" and bool(torch.isfinite(_largest(reduced))):
            return
        parts = reduced.reshape(-1).split([line["n"] for line in brought.lines])
        counts = [torch.stack((torch.isnan(part).sum(), torch.isinf(part).sum())) for part in parts]
        brought.counted = torch.cat((torch.stack(counts).double(), brought.largest.double()[:, None]), dim=1)
        self._waiting.append(brought)

    def _guarded(self, look: Callable[[], Any]) -> Any:
        """The reduction must go on, whatever is wrong with our looking."""
        try:
            return look()
        except Exception as error:
            self._journal.write({"step": self.step, "recorder": f"{type(error).__name__}: {error}"})
            return None


def _largest(values: Any) -> Any:
    """Largest absolute value, on its device; NaN where one element is."""
    if values.numel() == 0:
        return values.new_zeros(()).float()
    low, high = torch.aminmax(values)
    return torch.maximum(low.abs(), high.abs()).float()


def _group(given: Any) -> Any:
    return given if given is not None else dist.group.WORLD


def _sum_over_ranks(group: Any, bucket: Any) -> Any:
    reduced = dist.all_reduce(bucket.buffer(), group=_group(group), async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0])


def _look_around_reduction(state: Buckets, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    reduced: torch.futures.Future[torch.Tensor] = state.reduce(bucket)
    return reduced


# DDP compares the annotation with the class itself, which a postponed one is not.
_look_around_reduction.__annotations__["bucket"] = dist.GradBucket
_look_around_reduction.__annotations__["return"] = torch.futures.Future[torch.Tensor]
