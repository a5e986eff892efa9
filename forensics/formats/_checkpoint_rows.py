"""Rows of one file of a checkpoint: the file, its tensors with their statistics, and the adapters among them.

Statistics of all elements where the file's tensors fit the budget; else of stretches spread over each tensor, and
`n_read` says of how many elements. Only whole tensors have a checksum.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, BinaryIO

import orjson
import pyarrow as pa

from forensics.artifact import Sink, Source
from forensics.formats._adapter_modules import adapter_modules
from forensics.formats._checkpoint_layout import BITS, Layout, StoredTensor, lost
from forensics.formats._tensor_values import Statistics, can_be_read, chunks, sampled_stretches

BUDGET_BYTES = 256 << 20  # read for statistics, of one file
_LEAST_SAMPLE = 32_768  # elements of one tensor
_BATCH_ROWS = 16_384
_N_PICKED = 64  # elements of each tensor whose values are kept
_NAMED_STEP = re.compile(r"(?:checkpoint|ckpt|global_?step|step|iter(?:ation)?)[-_=]?0*(\d{1,12})(?!\d)", re.IGNORECASE)
_HARMLESS = {"foreign-names", "too-many"}  # no damage of the file
_UNREAD = {"no-directory", "truncated", "bad-header", "bad-pickle", "wrong-checksum", "overlap"}

_TENSOR = {
    "row": pa.int64(),
    **dict.fromkeys(("name", "dtype", "shape", "device", "storage", "fault", "file"), pa.string()),
    **dict.fromkeys(("byte", "size_bytes", "n_elements", "n_read", "n_nan", "n_inf", "n_zero"), pa.int64()),
    **dict.fromkeys(("absmax", "norm"), pa.float64()),
    "checksum": pa.uint64(),
    "picked": pa.list_(pa.float64()),
}


def emit_checkpoint(layout: Layout, source: Source, sink: Sink, file: BinaryIO | None = None) -> None:
    """Hands all of a layout to the sink; `file`: where the values of its tensors can be read."""
    places = _emit_tensors(layout, sink, file)
    modules = adapter_modules(layout, file, places) if file is not None else []
    if modules:
        sink.emit("adapter_module", pa.Table.from_pylist(modules))
    bad = lost(layout.tensors)
    _tell_damage(layout, sink, bad)
    named = _NAMED_STEP.search(source.own_name)
    damages = [problem for problem in layout.problems if problem.code not in _HARMLESS]
    first = damages[0] if damages else None
    row = {
        "row": 0,
        "kind": layout.kind,
        "n_tensors": len(layout.tensors),
        "n_said": layout.n_said,
        "size_bytes": sum(tensor.n_bytes for tensor in layout.tensors),
        "n_lost": len(bad),
        "n_adapter_modules": len(modules),
        "step": layout.step if layout.step is not None else int(named[1]) if named else None,
        "damage": first.code if first else bad[0].fault if bad else None,
        "damage_text": first.message if first else _lost_text(bad) if bad else None,
        "bad_byte": first.byte if first else bad[0].start if bad else None,
        "settings": orjson.dumps(layout.settings, option=orjson.OPT_NON_STR_KEYS, default=str).decode(),
    }
    sink.emit("checkpoint", pa.Table.from_pylist([row]))
    whole = not bad and not damages and source.damage is None
    sink.cover(
        "checkpoint", job=True, complete=whole, n_read=len(layout.tensors), n_kept=len(layout.tensors) - len(bad)
    )


def _tell_damage(layout: Layout, sink: Sink, bad: Sequence[StoredTensor]) -> None:
    for problem in layout.problems:
        sink.warn(problem.code, problem.message, problem.hides, byte=problem.byte)
    if bad:
        sink.warn("lost-tensors", _lost_text(bad), "the values of these tensors", byte=bad[0].start)
    harmful = [problem for problem in layout.problems if problem.code in _UNREAD]
    if bad or harmful:
        place = next((problem.byte for problem in harmful if problem.byte is not None), None)
        sink.damaged("partial" if layout.tensors else "failed", byte=place)


def _lost_text(bad: Sequence[StoredTensor]) -> str:
    listed = ", ".join(f"{tensor.name} ({tensor.fault})" for tensor in bad[:4]) + (", …" if len(bad) > 4 else "")
    return f"{len(bad)} tensors are not whole: {listed}"


def _emit_tensors(layout: Layout, sink: Sink, file: BinaryIO | None) -> dict[str, int]:
    """Row of each tensor by name."""
    readable = [t for t in layout.tensors if t.fault in {None, "wrong-checksum"} and can_be_read(t.dtype)]
    total = sum(tensor.n_bytes for tensor in readable)
    share = min(1.0, BUDGET_BYTES / total) if total else 1.0
    rows: list[dict[str, Any]] = []
    places: dict[str, int] = {}
    for number, tensor in enumerate(layout.tensors):
        row: dict[str, Any] = {
            "row": number,
            "name": tensor.name,
            "dtype": tensor.dtype,
            "shape": orjson.dumps(tensor.shape).decode(),
            "device": tensor.device,
            "storage": tensor.storage,
            "fault": tensor.fault,
            "file": tensor.file,
            "byte": tensor.start,
            "size_bytes": tensor.n_bytes,
            "n_elements": tensor.n_elements,
        }
        if file is not None and tensor.fault in {None, "wrong-checksum"}:
            row |= _statistics(file, tensor, layout.byteorder, share)
        places.setdefault(tensor.name, number)
        rows.append(row)
        if len(rows) >= _BATCH_ROWS:
            _emit(sink, rows)
    _emit(sink, rows)
    return places


def _emit(sink: Sink, rows: list[dict[str, Any]]) -> None:
    if rows:
        columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in _TENSOR.items()}
        sink.emit("checkpoint_tensor", pa.table(columns))
        rows.clear()


def _statistics(file: BinaryIO, tensor: StoredTensor, byteorder: str, share: float) -> dict[str, Any]:
    size = BITS.get(tensor.dtype, 0) // 8
    if not size or tensor.start is None or not tensor.n_elements:
        return {"n_read": 0}
    wanted = max(int(tensor.n_elements * share), _LEAST_SAMPLE)
    found = Statistics(_evenly(tensor.n_elements))
    if share >= 1 or wanted >= tensor.n_elements:
        found.add_all(chunks(file, tensor, byteorder))
    elif tensor.stride is None:
        for first, n in sampled_stretches(tensor.n_elements, wanted):
            found.add_all(chunks(file, tensor, byteorder, first, n))
    if not found.n_read:
        return {"n_read": 0}
    per_element = 2 if tensor.dtype.startswith("complex") else 1
    whole = found.n_read == tensor.n_elements * per_element
    return {
        "n_read": found.n_read // per_element,
        "n_nan": found.n_nan,
        "n_inf": found.n_inf,
        "n_zero": found.n_zero,
        "absmax": found.absmax,
        "norm": found.norm if whole else None,
        "checksum": found.checksum if whole else None,
        "picked": found.picked if whole else None,
    }


def _evenly(n_elements: int) -> list[int]:
    n = min(n_elements, _N_PICKED)
    return [k * n_elements // n for k in range(n)]
