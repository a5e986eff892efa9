"""Builds rows of `sample` with bounded memory, and knows the names under which trainers log the same quantity."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from forensics.artifact import Sink

_BATCH_ROWS = 65_536
_MAX_NAME = 500
_COLUMNS: dict[str, pa.DataType] = {
    "row": pa.int64(),
    "proc": pa.int32(),
    "step": pa.int64(),
    "ts_ns": pa.int64(),
    "line": pa.int64(),
    "source": pa.string(),
    "name": pa.string(),
    "entity": pa.string(),
    "device": pa.int32(),
    "unit": pa.string(),
    "value": pa.float64(),
}
_SCHEMA = pa.schema(list(_COLUMNS.items()))

# Spellings in lower case with underscores, after a `train/`, `train_` or `training/` was taken off.
_SAME_METRIC = {
    "loss": "loss",
    "lm_loss": "loss",  # Megatron
    "grad_norm": "grad_norm",
    "gradient_norm": "grad_norm",
    "total_norm": "grad_norm",
    "global_grad_norm": "grad_norm",
    "lr": "learning_rate",
    "learning_rate": "learning_rate",
    "scale": "loss_scale",
    "loss_scale": "loss_scale",
    "amp_scale": "loss_scale",
    "grad_scale": "loss_scale",
    "epoch": "epoch",
}
_OF_OPTIMIZER = re.compile(r"lr-[A-Za-z]{1,40}")  # Lightning's LearningRateMonitor
_TRAIN_PREFIXES = ("train/", "train_", "train.", "training/", "training_")


def folded(name: str) -> str:
    return name.strip().lower().replace(" ", "_").replace("-", "_")


def canonical_metric(name: str) -> str:
    """The normalised name of a training metric; other names as written."""
    key = folded(name)
    if _OF_OPTIMIZER.fullmatch(name):
        return "learning_rate"
    prefix = next((p for p in _TRAIN_PREFIXES if key.startswith(p)), "")
    return _SAME_METRIC.get(key[len(prefix) :], name)


class SampleRows:
    """Collects samples and emits them in batches; `row` is their ordinal in the artifact."""

    def __init__(self, sink: Sink, source: str, *, first_row: int = 0) -> None:
        self._sink = sink
        self._source = source
        self._rows: list[tuple[Any, ...]] = []
        self.count = first_row

    def add(
        self,
        name: str,
        value: float,
        *,
        step: int | None = None,
        ts_ns: int | None = None,
        line: int | None = None,
        entity: str | None = None,
        device: int | None = None,
        unit: str | None = None,
        proc: int = 0,
        source: str | None = None,
    ) -> None:
        row = (
            self.count,
            proc,
            step,
            ts_ns,
            line,
            source or self._source,
            name[:_MAX_NAME],
            entity,
            device,
            unit,
            value,
        )
        self._rows.append(row)
        self.count += 1
        if len(self._rows) >= _BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        columns = [
            pa.array(column, kind)
            for column, kind in zip(zip(*self._rows, strict=True), _COLUMNS.values(), strict=True)
        ]
        self._sink.emit("sample", pa.Table.from_arrays(columns, schema=_SCHEMA))
        self._rows = []
