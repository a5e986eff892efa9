"""Steps of a trace: those that the profiler's schedule marks; else those between two calls of the optimizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._kineto_emit import Documents
from forensics.formats._kineto_shares import Mark

_MAX_STEPS = 1_000_000


def find_steps(marks: Sequence[Mark], first_ns: dict[int, int | None]) -> tuple[pa.Table, dict[int, str]]:
    """document, step, start_ns, end_ns; and for each document where its steps come from (`step.origin`).

    `first_ns`: the first time of each document, at which its first step is taken to start where an optimizer marks it.
    """
    rows: list[tuple[int, int, int, int]] = []
    origins = {}
    for document in sorted({mark.document for mark in marks}):
        own = [mark for mark in marks if mark.document == document]
        spans: dict[int, tuple[int, int]] = {}
        for mark in own:
            if mark.step is not None:
                start, end = spans.get(mark.step, (mark.start_ns, mark.end_ns))
                spans[mark.step] = min(start, mark.start_ns), max(end, mark.end_ns)
        origins[document] = "profiler" if spans else "annotation"
        spans = spans or _between_optimizer_calls(own, first_ns.get(document))
        found = [(document, step, *span) for step, span in spans.items()]
        rows += sorted(found, key=lambda row: (row[2], row[1]))[:_MAX_STEPS]
    columns = list(zip(*rows, strict=True)) or [()] * 4
    kinds = (pa.int32(), pa.int64(), pa.int64(), pa.int64())
    names = ("document", "step", "start_ns", "end_ns")
    return pa.table({n: pa.array(v, k) for n, v, k in zip(names, columns, kinds, strict=True)}), origins


def _between_optimizer_calls(marks: Sequence[Mark], first_ns: int | None) -> dict[int, tuple[int, int]]:
    """Steps from 0 that end with the optimizer: of several, with the one that is called last among the most used."""
    calls = Counter(mark.optimizer for mark in marks)
    most = max(calls.values())
    last = max((m for m in marks if calls[m.optimizer] == most), key=lambda mark: mark.end_ns)
    ends = sorted((m.start_ns, m.end_ns) for m in marks if m.optimizer == last.optimizer)
    spans = {}
    start = min(first_ns, ends[0][0]) if first_ns else ends[0][0]
    for number, (_, end) in enumerate(ends):
        spans[number] = start, max(end, start)
        start = max(end, start)
    return spans


def emit_steps(sink: Sink, steps: pa.Table, origins: dict[int, str], documents: Documents) -> None:
    if steps.num_rows:
        origin = [origins[document] for document in steps.column("document").to_pylist()]
        rows = {
            "proc": documents.procs(steps),
            "step": steps.column("step"),
            "start_ns": documents.absolute(steps, "start_ns"),
            "end_ns": documents.absolute(steps, "end_ns"),
            "origin": origin,
        }
        sink.emit("step", pa.table(rows))
