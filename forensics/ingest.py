"""Runs formats over artifacts into a Parquet cache keyed by content, so that a second run parses nothing.

A cache entry is the folder SHA256-NAME-FORMAT-vVERSION with `meta.json` and one Parquet file per emitted batch. It is
written under another name and renamed, so that a kill leaves no half entry.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Format
from forensics.case import conform, joined
from forensics.discovery import Found
from forensics.errors import ArtifactError, Untrusted
from forensics.formats import formats
from forensics.states import CAPABILITIES, QUALITIES

_LEFTOVER_SECONDS = 24 * 3600
# Columns of numbers that grow from row to row, or are as good as random.
_GROWING = {"row", "ts_ns", "dur_ns", "launch_row", "parent_row", "forward_row", "line", "byte", "correlation", "addr"}
_SMALL_ROWS = 20_000  # batches below this are gathered into one file per table


_WIDTH = {"pid": 63, "start_ns": 63, "end_ns": 63}  # bits of proc's wide columns; the others are INTEGER


def _storable(value: Any, bits: int = 63) -> Any:
    """The value as the case can hold it: no lone surrogates in texts, None for integers that its column cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int) and not -(1 << bits) <= value < 1 << bits:
        return None
    return value


@dataclass
class Loaded:
    """One artifact after ingest: its cache entry (None when nothing was loaded) and what was said about it."""

    found: Found
    folder: Path | None
    meta: dict[str, Any]
    reused: bool = False

    def tables(self) -> dict[str, list[Path]]:
        if self.folder is None:
            return {}
        return {table: [self.folder / part for part in parts] for table, parts in self.meta["tables"].items()}


@dataclass
class _ParquetSink:
    folder: Path
    procs: dict[str, dict[str, Any]] = field(default_factory=dict)
    coverage: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)  # processes that rows belong to
    state: dict[str, Any] = field(default_factory=lambda: {"quality": "complete", "clock": "none"})
    _waiting: dict[str, list[pa.Table]] = field(default_factory=dict)

    def emit(self, table: str, data: Any) -> None:
        if hasattr(data, "to_arrow_table"):
            data = data.to_arrow_table()
        rows = conform(table, data)
        if "proc" in rows.column_names:
            self.numbers.update(rows.column("proc").unique().to_pylist())
        waiting = self._waiting.setdefault(table, [])
        waiting.append(rows)
        if sum(batch.num_rows for batch in waiting) >= _SMALL_ROWS:
            self._write(table)

    def _write(self, table: str) -> None:
        batches = self._waiting.pop(table, [])
        parts = self.tables.setdefault(table, [])
        name = f"{table}-{len(parts):05d}.parquet"
        _write_rows(batches, self.folder / name)
        parts.append(name)

    def proc(self, number: int = 0, **known: Any) -> None:
        entry = self.procs.setdefault(str(number), {})
        kept = {key: _storable(value, _WIDTH.get(key, 31)) for key, value in known.items() if value != "none"}
        entry.update({key: value for key, value in kept.items() if value is not None})

    def cover(self, capability: str, **known: Any) -> None:
        if capability not in CAPABILITIES:
            raise ValueError(f"{capability}: not in states.CAPABILITIES")
        self.coverage.append({"capability": capability, **{key: _storable(value) for key, value in known.items()}})

    def warn(self, code: str, message: str, hides: str, *, byte: int | None = None, line: int | None = None) -> None:
        place = {"byte": _storable(byte), "line": _storable(line)}
        self.warnings.append({"code": code, "message": _storable(message[:2000]), "hides": _storable(hides), **place})

    def fact(self, key: str, value: str, **known: Any) -> None:
        kept = {name: _storable(value) for name, value in known.items()}
        self.facts.append({"key": _storable(key[:500]), "value": _storable(value[:10_000]), **kept})

    def clock(self, kind: str, *, error_ns: int | None = None) -> None:
        self.state["clock"], self.state["clock_error_ns"] = kind, error_ns

    def damaged(self, quality: str, *, byte: int | None = None, lost_bytes: int | None = None) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"{quality}: none of {', '.join(QUALITIES)}")
        self.state.update(quality=quality, bad_byte=byte, lost_bytes=lost_bytes)

    def finish(self) -> dict[str, Any]:
        for table in list(self._waiting):
            self._write(table)
        meta = {
            **self.state,
            # Rows may belong to a process that nothing is said of: it is the one that file name and folder name.
            "procs": {str(number): {} for number in sorted(self.numbers - {None})} | self.procs,
            "coverage": self.coverage,
            "warnings": self.warnings,
            "facts": self.facts,
            "tables": self.tables,
            "sizes": {path.name: path.stat().st_size for path in sorted(self.folder.glob("*.parquet"))},
        }
        (self.folder / "meta.json").write_bytes(orjson.dumps(meta))
        return meta


def _write_rows(batches: Sequence[pa.Table], path: Path) -> None:
    rows = joined(batches)
    # Dictionaries of numbers that hardly repeat cost half of the time and are dropped in the end.
    growing = [name for name in rows.column_names if name in _GROWING]
    encoding = dict.fromkeys(growing, "DELTA_BINARY_PACKED")
    repeating = [name for name in rows.column_names if name not in _GROWING]
    pq.write_table(rows, path, compression="zstd", use_dictionary=repeating or False, column_encoding=encoding or None)


def ingest(
    found: Sequence[Found],
    cache: Path,
    *,
    expired: Callable[[], bool] = lambda: False,
    on_artifact: Callable[[int, int, str], None] = lambda *_: None,
) -> list[Loaded]:
    """Loads every artifact, from the cache where it can; `on_artifact(number, total, name)` reports progress.

    Once `expired()` is true, what is left is listed as not loaded.
    """
    cache.mkdir(parents=True, exist_ok=True)
    remove_leftovers(cache, "loading-*")
    loaded = []
    for number, item in enumerate(found):
        on_artifact(number, len(found), item.source.name)
        if expired():
            item.format = None
            item.problems.append(("time-limit", "not loaded: the time limit was reached", "everything in this file"))
        loaded.append(_load(item, cache))
    return loaded


def remove_leftovers(folder: Path, pattern: str) -> None:
    """Removes what a killed run left under a temporary name; a day old, so that no living run is meant."""
    for path in folder.glob(pattern):
        if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _load(item: Found, cache: Path) -> Loaded:
    if item.format is None:
        read = "complete" if item.part_of else "unknown"
        quality = "failed" if item.problems else read if item.bytes else "empty"
        warnings = [{"code": c, "message": m, "hides": h, "byte": None, "line": None} for c, m, h in item.problems]
        empty: dict[str, Any] = {"quality": quality, "clock": "none", "warnings": warnings}
        return Loaded(item, None, {**empty, "procs": {}, "coverage": [], "facts": [], "tables": {}})
    module = formats()[item.format]
    entry = cache / f"{item.source.sha256}-{_surroundings(item)}-{item.format}-v{module.VERSION}"
    known = _cached(entry)
    if known is not None:
        return Loaded(item, entry, known, reused=True)
    scratch = Path(tempfile.mkdtemp(prefix="loading-", dir=cache))
    sink = _ParquetSink(scratch)
    _run(module, item, sink)
    meta = sink.finish()
    if meta.get("fault"):  # the next run tries again
        return Loaded(item, scratch, meta)
    try:
        scratch.rename(entry)
    except OSError:  # left half-written by something else, or written by another run at this moment
        if _cached(entry) is None:
            shutil.rmtree(entry, ignore_errors=True)
            scratch.rename(entry)
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    return Loaded(item, entry, meta)


def _surroundings(item: Found) -> str:
    """What takes part in an artifact's rows beside its content: its own name, and its companions.

    Formats read host, rank or time from the name where the content has none.
    """
    companions = [(name, other.sha256) for name, other in sorted(item.source.companions.items())]
    said = "\0".join([item.source.own_name, *(word for pair in companions for word in pair)])
    return hashlib.blake2b(said.encode("utf-8", "replace"), digest_size=16 if companions else 4).hexdigest()


def _cached(entry: Path) -> dict[str, Any] | None:
    try:
        meta: dict[str, Any] = orjson.loads((entry / "meta.json").read_bytes())
        parts = [(entry / name, size) for name, size in meta["sizes"].items()]
        whole = all(path.stat().st_size == size for path, size in parts) and {"procs", "tables", "facts"} <= meta.keys()
    except (OSError, orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
        return None
    return meta if whole else None


def _run(module: Format, item: Found, sink: _ParquetSink) -> None:
    """One artifact's fault never ends the analysis: whatever goes wrong becomes a warning of that artifact."""
    for code, message, hides in item.problems:
        sink.warn(code, message, hides)
    try:
        module.load(item.source, sink)
    except ArtifactError as error:
        code = "refused" if isinstance(error, Untrusted) else "unreadable"
        sink.warn(code, str(error), "what lies beyond this position", byte=error.byte)
        sink.damaged("partial" if sink.tables or sink._waiting else "failed", byte=error.byte)
    except (MemoryError, RecursionError, Exception) as error:
        if isinstance(error, RuntimeError) and "interrupt" in str(error).lower():
            raise KeyboardInterrupt from error  # how DuckDB reports Ctrl-C
        sink.state["fault"] = True
        sink.warn("loader-fault", f"{item.format} failed: {type(error).__name__}: {error}", "the rest of this file")
        sink.damaged("partial" if sink.tables or sink._waiting else "failed")
    if item.source.damage:
        sink.warn("damaged-compression", item.source.damage, "everything after the damaged place")
        if sink.state["quality"] == "complete":
            sink.damaged("partial")
