"""A communication hook for DistributedDataParallel that looks at each bucket of gradients before it is reduced.

After the all-reduce every rank has the NaN; before it only the rank where it was born has. So the rank with the first
line is the one to look at.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.distributed as dist

from forensics_recorder.journal import Journal

FORMAT = "forensics.tensor_stats/1"


class Buckets:
    """Writes a line for each bucket that is not finite, and counts those looked at (`n_buckets`)."""

    def __init__(self, model: Any, journal: Journal, group: Any = None) -> None:
        self._journal = journal
        self._group = group
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        self.step = -1
        self.n_buckets = 0
        model.register_comm_hook(state=self, hook=_look_then_reduce)

    def look(self, bucket: Any) -> None:
        self.n_buckets += 1
        total = float(bucket.buffer().float().abs().sum())
        if math.isfinite(total):
            return
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            n_nan = int(torch.isnan(gradient).sum())
            n_inf = int(torch.isinf(gradient).sum())
            if n_nan or n_inf:
                self._journal.write(
                    {"step": self.step, "phase": "gradient", "role": "bucket", "n": gradient.numel(),
                     "name": self._names.get(id(parameter), "?"), "n_nan": n_nan, "n_inf": n_inf,
                     "bucket": bucket.index(), "shape": list(gradient.shape), "ts_ns": time.time_ns()}
                )  # fmt: skip


def _look_then_reduce(state: Buckets, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    try:
        state.look(bucket)
    except Exception as error:  # the reduction must go on, whatever is wrong with our looking
        state._journal.write({"step": state.step, "recorder": f"{type(error).__name__}: {error}"})
    group = state._group if state._group is not None else dist.group.WORLD
    buffer = bucket.buffer().div_(group.size())
    reduced = dist.all_reduce(buffer, group=group, async_op=True).get_future()
    return reduced.then(lambda done: done.value()[0])


# DDP compares the annotation with the class itself, which a postponed one is not.
_look_then_reduce.__annotations__["bucket"] = dist.GradBucket
_look_then_reduce.__annotations__["return"] = torch.futures.Future[torch.Tensor]
