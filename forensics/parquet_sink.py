"""Writes what a format says of one artifact into a folder: Parquet parts and, at the end, `meta.json`.

With a journal, everything said is on disk at once, so that another process can take over what was said when the one
that loads has died: `recover` makes the entry that the dead process did not finish.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import case_columns, conform, intern
from forensics.states import CAPABILITIES, QUALITIES

# Columns of numbers that grow from row to row, or are as good as random.
_GROWING = {"row", "ts_ns", "dur_ns", "launch_row", "parent_row", "forward_row", "line", "byte", "correlation", "addr"}
_FILES = 2  # raised when an entry's files are laid out otherwise
_SMALL_ROWS = 20_000  # batches below this are gathered into one file per table
_WIDTH = {"pid": 63, "start_ns": 63, "end_ns": 63}  # bits of proc's wide columns; the others are INTEGER
_JOURNAL = "said.jsonl"
_MAX_SAID = 200_000  # warnings, facts and capabilities of one artifact, each


@lru_cache(maxsize=1)
def layout() -> str:
    """What an entry's files and their columns are like; entries of another layout are written anew."""
    columns = orjson.dumps(case_columns(), option=orjson.OPT_SORT_KEYS)
    return f"{_FILES}-{hashlib.blake2b(columns, digest_size=8).hexdigest()}"


def storable(value: Any, bits: int = 63) -> Any:
    """The value as the case can hold it: no lone surrogates in texts, None for integers that its column cannot hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, int) and not -(1 << bits) <= value < 1 << bits:
        return None
    return value


@dataclass
class ParquetSink:
    """A `Sink` whose rows go to `folder`."""

    folder: Path
    procs: dict[str, dict[str, Any]] = field(default_factory=dict)
    coverage: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[dict[str, Any]] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)
    tables: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, set[int]] = field(default_factory=dict)  # processes that rows of each table belong to
    state: dict[str, Any] = field(default_factory=lambda: {"quality": "complete", "clock": "none"})
    _waiting: dict[str, list[pa.Table]] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)  # rows written of each table
    _known_texts: set[int] = field(default_factory=set)
    _journal: BinaryIO | None = None
    _writing: bool = False
    _stop: BaseException | None = None

    def keep_journal(self) -> None:
        """From now on everything said is on disk when the call returns."""
        self._journal = (self.folder / _JOURNAL).open("ab", buffering=0)

    def stop(self, signal: BaseException) -> None:
        """Raises `signal`, at once or when the part that is being written is whole; not when the load has ended."""
        if not self._writing:
            raise signal
        self._stop = signal

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        self._writing = True
        try:
            yield
        finally:
            self._writing = False
        if self._stop is not None:
            stop, self._stop = self._stop, None
            raise stop

    def _note(self, *said: Any) -> None:
        if self._journal is not None:
            self._journal.write(orjson.dumps(said) + b"\n")

    def emit(self, table: str, data: Any) -> None:
        if hasattr(data, "to_arrow_table"):
            data = data.to_arrow_table()
        rows = conform(table, data)
        if not rows.num_rows:
            return
        with self._undisturbed():
            waiting = self._waiting.setdefault(table, [])
            waiting.append(rows)
            # The first rows are written at once, then as many as there are already: few parts, and never more rows
            # in memory than on disk, for whom the process dies under.
            if sum(batch.num_rows for batch in waiting) >= min(_SMALL_ROWS, self._rows.get(table, 0)):
                self._write(table)

    def _write(self, table: str) -> None:
        rows, texts = intern(table, self._waiting.pop(table, []), self._known_texts)
        if texts.num_rows:  # before the rows that name them
            self._write_part("string", texts)
        self._write_part(table, rows)

    def _write_part(self, table: str, rows: pa.Table) -> None:
        parts = self.tables.setdefault(table, [])
        name = f"{table}-{len(parts):05d}.parquet"
        write_rows(rows, self.folder / name)
        parts.append(name)
        numbers = rows.column("proc").unique().to_pylist() if "proc" in rows.column_names else []
        self._take(table, rows.num_rows, numbers)
        self._note("part", table, name, rows.num_rows, numbers)

    def _take(self, table: str, n_rows: int, numbers: list[int | None]) -> None:
        self._rows[table] = self._rows.get(table, 0) + n_rows
        self.numbers.setdefault(table, set()).update(number for number in numbers if number is not None)

    def proc(self, number: int = 0, **known: Any) -> None:
        entry = self.procs.setdefault(str(number), {})
        kept = {key: storable(value, _WIDTH.get(key, 31)) for key, value in known.items() if value != "none"}
        kept = {key: value for key, value in kept.items() if value is not None}
        entry.update(kept)
        self._note("proc", number, kept)

    def cover(self, capability: str, **known: Any) -> None:
        if capability not in CAPABILITIES:
            raise ValueError(f"{capability}: not in states.CAPABILITIES")
        self._keep("coverage", {"capability": capability, **{key: storable(value) for key, value in known.items()}})

    def warn(self, code: str, message: str, hides: str, *, byte: int | None = None, line: int | None = None) -> None:
        place = {"byte": storable(byte), "line": storable(line)}
        said = {"code": code, "message": storable(message[:2000]), "hides": storable(hides), **place}
        self._keep("warnings", said)

    def fact(self, key: str, value: str, **known: Any) -> None:
        kept = {name: storable(given) for name, given in known.items()}
        self._keep("facts", {"key": storable(key[:500]), "value": storable(value[:10_000]), **kept})

    def _keep(self, what: str, said: dict[str, Any]) -> None:
        kept: list[dict[str, Any]] = getattr(self, what)
        if len(kept) < _MAX_SAID:
            kept.append(said)
            self._note(what, said)

    def clock(self, kind: str, *, error_ns: int | None = None) -> None:
        self._set(clock=kind, clock_error_ns=error_ns)

    def damaged(self, quality: str, *, byte: int | None = None, lost_bytes: int | None = None) -> None:
        if quality not in QUALITIES:
            raise ValueError(f"{quality}: none of {', '.join(QUALITIES)}")
        self._set(quality=quality, bad_byte=byte, lost_bytes=lost_bytes)

    def _set(self, **state: Any) -> None:
        self.state.update(state)
        self._note("state", state)

    @property
    def any_rows(self) -> bool:
        return bool(self.tables or self._waiting)

    def break_off(self) -> None:
        """Says that the load did not end by itself: nothing is complete, and what rows can support is declared."""
        self._writing = True
        for table in list(self._waiting):
            self._write(table)
        self.state["fault"] = True  # the next run tries again
        self.damaged("partial" if self.any_rows else "failed")
        for said in self.coverage:
            said["complete"] = False
        covered = {(said["capability"], said.get("proc", 0)) for said in self.coverage}
        for table, numbers in self.numbers.items():
            for number in sorted(numbers) if table in CAPABILITIES else ():
                if (table, number) not in covered:
                    n_rows = self._rows[table]
                    self.cover(table, proc=number, complete=False, n_read=n_rows, n_kept=n_rows)

    def finish(self) -> dict[str, Any]:
        """Writes what is left and `meta.json`; its content is returned."""
        self._writing = True
        for table in list(self._waiting):
            self._write(table)
        belonging = sorted(set().union(*self.numbers.values()))
        meta = {
            **self.state,
            # Rows may belong to a process that nothing is said of: it is the one that file name and folder name.
            "procs": {str(number): {} for number in belonging} | self.procs,
            "coverage": self.coverage,
            "warnings": self.warnings,
            "facts": self.facts,
            "tables": self.tables,
            "layout": layout(),
            "sizes": {path.name: path.stat().st_size for path in sorted(self.folder.glob("*.parquet"))},
        }
        (self.folder / "meta.json").write_bytes(orjson.dumps(meta))
        if self._journal is not None:
            self._journal.close()
        (self.folder / _JOURNAL).unlink(missing_ok=True)
        return meta


def write_rows(rows: pa.Table, path: Path) -> None:
    # Dictionaries of numbers that hardly repeat cost half of the time and are dropped in the end.
    growing = [name for name in rows.column_names if name in _GROWING]
    encoding = dict.fromkeys(growing, "DELTA_BINARY_PACKED")
    repeating = [name for name in rows.column_names if name not in _GROWING]
    pq.write_table(rows, path, compression="zstd", use_dictionary=repeating or False, column_encoding=encoding or None)


def add_warning(meta: dict[str, Any], code: str, message: str, hides: str) -> None:
    """Adds a warning without a position to finished meta data."""
    meta["warnings"].append({"code": code, "message": storable(message), "hides": hides, "byte": None, "line": None})


def recover(folder: Path) -> ParquetSink:
    """What a process that died while it loaded had said and written, as a sink that goes on from there."""
    sink = ParquetSink(folder)
    try:
        lines = (folder / _JOURNAL).read_bytes().split(b"\n")[:-1]
    except OSError:
        lines = []
    for line in lines:
        kind, *said = json.loads(line)
        if kind == "part":
            table, name, n_rows, numbers = said
            sink.tables.setdefault(table, []).append(name)
            sink._take(table, n_rows, numbers)
        elif kind == "proc":
            sink.procs.setdefault(str(said[0]), {}).update(said[1])
        elif kind == "state":
            sink.state.update(said[0])
        else:
            getattr(sink, kind).append(said[0])
    noted = {name for parts in sink.tables.values() for name in parts}
    for path in folder.glob("*.parquet"):
        if path.name not in noted:  # half-written
            path.unlink()
    return sink
