"""What rows of an export refer to: texts, enumerations, processes and the clock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._nsys_tables import Tables

_MAX_PROCESSES = 10_000
_MAX_SMALL_ROWS = 20_000
_EPOCH_FROM_NS = 10**18  # September 2001: no session lasts that long, so such times are absolute already
_VERSION_SUFFIX = re.compile(r"(?:_pt[sd][sz])?(?:_v[0-9]{4,5})?$")  # cudaMalloc_v3020, cudaLaunchKernel_ptsz_v7000
_MASK = (1 << 64) - 1
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def call_name(text: str) -> str:
    """The name of a CUDA call as programs and other profilers write it."""
    return _VERSION_SUFFIX.sub("", text) if text.startswith("cu") else text


@dataclass
class Report:
    """One export while it is being loaded. Numbers of processes are given as they are met."""

    tables: Tables
    sink: Sink
    base_ns: int = 0
    is_epoch: bool = False
    processes: dict[int, int] = field(default_factory=dict)  # globalPid → number
    n_unnamed: int = 0  # rows' names that StringIds lacks
    _texts: dict[int, str | None] = field(default_factory=dict)
    _ids: pa.ChunkedArray | None = None
    _values: pa.ChunkedArray | None = None

    def __post_init__(self) -> None:
        self._read_clock()

    def small(self, table: str, texts: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """All rows of a table that is small in every honest export."""
        columns = self.tables.columns(table)
        rows: list[dict[str, Any]] = []
        for block in self.tables.read(table, columns, [name for name in columns if name in texts]):
            rows += block.slice(0, max(0, _MAX_SMALL_ROWS - len(rows))).to_pylist()
            if len(rows) >= _MAX_SMALL_ROWS:
                break
        return rows

    def enum(self, table: str) -> dict[int, str]:
        """Number → symbol of one of the export's own enumerations; {} where it has none."""
        return {row["id"]: row["name"] for row in self.small(table, ("name", "label")) if row.get("name")}

    def named(self, ids: pa.ChunkedArray, finish: Callable[[str], str], missing: str) -> pa.Array:
        """Texts of StringIds, as a dictionary of the few that differ; `missing` where there is no id."""
        encoded = ids.combine_chunks().dictionary_encode()
        found = self.texts(encoded.dictionary)
        words = [finish(t) if t is not None else f"{missing} #{i}" for i, t in found.items()]
        self.n_unnamed += sum(text is None for text in found.values())
        indices = encoded.indices
        if indices.null_count:
            indices, words = pc.fill_null(indices, len(words)), [*words, missing]
        return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))

    def texts(self, ids: pa.Array) -> dict[int, str | None]:
        """Text of each of these ids of StringIds."""
        asked = ids.to_pylist()
        unknown = [i for i in asked if i not in self._texts]
        if unknown:
            if self._ids is None:
                self._read_strings()
            at = pc.index_in(pa.array(unknown, pa.int64()), self._ids)
            self._texts.update(zip(unknown, pc.take(self._values, at).to_pylist(), strict=True))
        return {i: self._texts[i] for i in asked}

    def _read_strings(self) -> None:
        blocks = [b for b in self.tables.read("StringIds", ("id", "value"), ("value",)) if b.num_columns == 3]
        empty = pa.table({"id": pa.array([], pa.int64()), "value": pa.array([], pa.string())})
        strings = pa.concat_tables([block.select(["id", "value"]) for block in blocks]) if blocks else empty
        self._ids, self._values = strings.column("id"), strings.column("value")

    def place(self, ids: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Process number and thread id of globalTid or globalPid values (hardware, VM, pid, tid: 8, 8, 24, 24 bits)."""
        encoded = ids.combine_chunks().dictionary_encode()
        known = encoded.dictionary.to_pylist()
        numbers = pa.array([self._number(i & _MASK) for i in known], pa.int32()).take(encoded.indices)
        threads = pa.array([i & 0xFFFFFF for i in known], pa.int64()).take(encoded.indices)
        only = next(iter(self.processes.values())) if len(self.processes) == 1 else 0
        return pc.fill_null(numbers, only), threads

    def _number(self, global_id: int) -> int | None:
        process = global_id >> 24 << 24
        if process not in self.processes and len(self.processes) >= _MAX_PROCESSES:
            return None
        return self.processes.setdefault(process, len(self.processes))

    def _read_clock(self) -> None:
        session = next(iter(self.small("TARGET_INFO_SESSION_START_TIME", ("utcTime", "localTime"))), {})
        settings = self.settings("META_DATA_EXPORT")
        # --ts-shift, and --ts-normalize, which shifts by the start of the session.
        shift = settings.get("EXPORT_CONFIG_TIME_SHIFT", "0")
        shifted = int(shift) if _INTEGER.fullmatch(shift) else 0
        if (session.get("utcEpochNs") or 0) > _EPOCH_FROM_NS:
            self.base_ns, self.is_epoch = session["utcEpochNs"] - shifted, True
        elif self._first_start() > _EPOCH_FROM_NS:
            self.is_epoch = True

    def _first_start(self) -> int:
        for table in self.tables.tables():
            if "start" in self.tables.columns(table) and table != "ANALYSIS_DETAILS":
                for block in self.tables.read(table, ("start",)):
                    return pc.max(block.column("start")).as_py() or 0
        return 0

    def settings(self, table: str) -> Mapping[str, str]:
        """A table of names and values; the first of a name counts."""
        found: dict[str, str] = {}
        for row in self.small(table, ("name", "value")):
            if row.get("name") is not None and row.get("value") is not None:
                found.setdefault(row["name"], row["value"])
        return found
