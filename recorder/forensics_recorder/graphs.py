"""CUDA graphs: counts captures and replays a step, and keeps where each gradient lay when a capture ended.

A replay writes to the addresses of its capture. Where the `.grad` that the optimizer reads lies elsewhere by then, or
is None, the step trains on nothing new. Rows are those of the format `forensics.tensor_stats/1`, with addresses alone:
nothing may be computed while a capture runs.
"""

from __future__ import annotations

import time
from typing import Any, Callable

from forensics_recorder.journal import Journal

_COUNTED = {"replay": "graph_replays", "capture_end": "graph_captures"}


class Graphs:
    """Counts for one process, by wrapping the methods of `graph_class` (`torch.cuda.CUDAGraph`) until `close`."""

    def __init__(self, model: Any, journal: Journal, graph_class: Any, guard: Callable[..., Any]) -> None:
        self.step = -1
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._journal = journal
        self._class = graph_class
        self._guard = guard
        self._counts: dict[str, int] = {}
        self._own: dict[str, tuple[Any, Any]] = {}  # method: what it was, and what counts it
        for method, metric in _COUNTED.items():
            self._wrap(method, metric)

    def counters(self) -> dict[str, int]:
        """What happened since the last call; nothing where no graph was used."""
        counts, self._counts = self._counts, {}
        return counts

    def close(self) -> None:
        for method, (before, counted) in self._own.items():
            if getattr(self._class, method) is counted:  # else someone has wrapped it since
                setattr(self._class, method, before)
        self._own.clear()

    def _wrap(self, method: str, metric: str) -> None:
        before = getattr(self._class, method)

        def counted(graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = before(graph, *args, **kwargs)
            self._counts[metric] = self._counts.get(metric, 0) + 1
            if method == "capture_end":
                self._guard("graphs", self._note_addresses)
            return result

        setattr(self._class, method, counted)
        self._own[method] = (before, counted)

    def _note_addresses(self) -> None:
        now = time.time_ns()
        place = {"step": max(self.step, 0), "phase": "gradient", "role": "captured-gradient", "ts_ns": now}
        rows = [place | {"name": name, "addr": p.grad.data_ptr()} for name, p in self._named if p.grad is not None]
        self._journal.write(*rows)
