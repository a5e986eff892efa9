"""The row of one job, with everything that the fleet keeps of it: one Parquet file, renamed into place."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TEXT, _INT, _LONG, _REAL = pa.string(), pa.int32(), pa.int64(), pa.float64()

_FINDING = {
    "id": _INT, "rule": _TEXT, "title": _TEXT, "variant": _TEXT, "severity": _TEXT, "strength": _TEXT,
    "confidence": _REAL,
    "place": _TEXT, "attempt": _INT, "rank": _INT, "step": _LONG, "ts_ns": _LONG, "host": _TEXT, "device": _INT,
    "message": _TEXT, "fix": _TEXT, "fingerprint": _TEXT, "incident": _TEXT,
}  # fmt: skip
_PROCESS = {
    "attempt": _INT, "host": _TEXT, "rank": _INT, "device": _INT, "exit_code": _INT, "signal": _INT,
    "traced": pa.bool_(),
}  # fmt: skip
_ERROR = {"exception": _TEXT, "message": _TEXT, "where_in_code": _TEXT, "n": _LONG, "incident": _TEXT}
_METRIC = {"name": _TEXT, "n": _LONG, "n_nonfinite": _LONG, "steps": pa.list_(_LONG), "samples": pa.list_(_REAL)}
_MISSING = {"rule": _TEXT, "capability": _TEXT}
_ARTIFACT = {"format": _TEXT, "quality": _TEXT, "n": _LONG, "bytes": _LONG}


def _list_of(fields: Mapping[str, pa.DataType]) -> pa.DataType:
    return pa.list_(pa.struct(list(fields.items())))


SCHEMA = pa.schema(
    {
        "job": _TEXT, "name": _TEXT, "series": _TEXT, "place": _TEXT, "run": _INT, "status": _TEXT, "reason": _TEXT,
        "state": _TEXT, "state_origin": _TEXT, "scheduler_id": _TEXT, "content": _TEXT, "edition": _TEXT,
        "version": _TEXT,
        "code_version": _TEXT, "analyzed_ns": _LONG, "started_ns": _LONG, "ended_ns": _LONG, "elapsed_s": _REAL,
        "n_gpus": _INT, "gpu_hours": _REAL, "gpu_hours_origin": _TEXT, "verdict": _TEXT, "sentence": _TEXT,
        "rule": _TEXT,
        "severity": _TEXT, "confidence": _REAL, "incident": _TEXT, "bytes": _LONG, "n_findings": _INT,
        "n_warnings": _INT,
        "wall_s": _REAL, "cpu_s": _REAL, "peak_bytes": _LONG, "report": _TEXT, "findings": _list_of(_FINDING),
        "processes": _list_of(_PROCESS), "errors": _list_of(_ERROR), "metrics": _list_of(_METRIC),
        "missing": _list_of(_MISSING), "artifacts": _list_of(_ARTIFACT),
    }
)  # fmt: skip


def write_row(path: Path, row: Mapping[str, Any]) -> None:
    """Replaces the row of a job. What it does not name is NULL, lists are empty."""
    unknown = set(row) - set(SCHEMA.names)
    if unknown:
        raise ValueError(f"unknown columns {sorted(unknown)}")
    whole = {f.name: row.get(f.name, [] if pa.types.is_list(f.type) else None) for f in SCHEMA}
    beside = path.with_name(f".{path.name}.new")
    pq.write_table(pa.Table.from_pylist([whole], SCHEMA), beside, compression="zstd")
    beside.replace(path)
