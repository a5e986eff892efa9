"""Recorded histories for tests of the allocator model: snapshots loaded without the pipeline, and invented ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from support import ARTIFACTS, MemorySink, load

from forensics import resources
from forensics.case import connect, joined
from forensics.formats import memory_snapshot
from forensics.models.allocator_fit import Fit, fit
from forensics.models.allocator_held import read_held
from forensics.models.allocator_history import History, read_history
from forensics.models.allocator_rewind import learn_pools, rewind
from forensics.models.allocator_settings import AllocatorSettings, read_settings

TRUTH = ARTIFACTS / "truth" / "allocator"
SNAPSHOTS = sorted((ARTIFACTS / "allocator").glob("*.pickle")) if ARTIFACTS.is_dir() else []
_TABLES = ("memory_event", "memory_segment", "memory_block")


def truth_of(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TRUTH / f"{name}.json").read_text())
    return found


class Snapshot:
    """Tables of one snapshot in a database of its own; `without`: drops that many of its first events."""

    def __init__(self, path: Path, *, without: int = 0) -> None:
        sink = load(memory_snapshot, path)
        self.facts = {str(f["key"]): str(f["value"]) for f in sink.facts}
        self.con = _database(sink)
        if without:
            self.con.execute("DELETE FROM memory_event WHERE row < ?", [without])

    @property
    def settings(self) -> AllocatorSettings:
        return read_settings(self.facts)

    def devices(self) -> list[int]:
        rows = self.con.execute("SELECT DISTINCT device FROM memory_event WHERE device >= 0 ORDER BY 1").fetchall()
        return [device for (device,) in rows]

    def history(self, device: int = 0) -> History:
        return read_history(self.con, 0, device)

    def fit(self, device: int = 0, told: int | None = None) -> Fit:
        history, held = self.history(device), read_held(self.con, 0, device)
        learn_pools(history, held)
        return fit(history, self.settings, rewind(history, held), told)


def peak_up_to(found: Fit, n_allocations: int) -> int:
    """Most bytes that the record had reserved when it had served so many allocations."""
    history, reserved, peak, served = found.history, 0, 0, 0
    for kind, number in zip(history.kinds, history.numbers, strict=True):
        if kind.name in ("OBTAIN", "MAP"):
            reserved += history.segments[number].size
            peak = max(peak, reserved)
        elif kind.name in ("RELEASE", "UNMAP"):
            reserved -= history.segments[number].size
        elif kind.name == "ALLOC":
            served += 1
            if served >= n_allocations:
                break
    return peak


def _database(sink: MemorySink) -> duckdb.DuckDBPyConnection:
    con = connect()
    con.execute(resources.schema_sql())
    for table in _TABLES:
        if table in sink.tables:
            rows: pa.Table = joined(sink.tables[table]).drop_columns(["proc"])
            con.register("loaded", rows)
            con.execute(f"INSERT INTO {table} BY NAME SELECT 0 AS artifact_id, * FROM loaded")
            con.unregister("loaded")
    return con
