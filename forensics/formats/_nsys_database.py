"""Reads tables of an SQLite file that nothing is believed of, at speed and as far as it is whole.

SQLite itself prints each block of rows as one text that pyarrow parses: handing over single values through Python takes
four times as long. It prints numbers faster as JSON than by printf. Only real tables are read, so no view, trigger,
virtual table or generated column of the file runs; an authorizer refuses whatever else a statement would do. The file
is opened read-only and as immutable: neither a lock nor a `-wal` file beside it is looked at.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from pyarrow import csv

from forensics.errors import ArtifactError
from forensics.formats._nsys_tables import BadValues

LIST_OF_TABLES = "sqlite_master"
BLOCK_ROWS = 200_000
_FIRST_ROWS = 1_000  # of the first block: many callers want no more
_MAX_TEXT_BYTES = 128 << 20  # one value, and one block of rows
_MAX_COLUMNS = 300
_MAX_TABLES = 2_000
# Steps of SQLite's machine that one block may take; a block of 200,000 rows of 40 columns needs 30 million.
_STEPS, _MAX_STEPS = 1_000_000, 400
_MAX_FAILURES = 4_000  # blocks that may fail in one table before the rest of it is given up
_LARGEST_ROWID = 2**63 - 1
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_PRAGMA, sqlite3.SQLITE_FUNCTION}
_FUNCTIONS = {"printf", "json_array", "group_concat", "count", "max", "min", "typeof"}


@dataclass
class Lost:
    """What could not be read of one table."""

    table: str
    after_rowid: int
    until_rowid: int | None  # the next row that could be read; None when none could
    reason: str


@dataclass
class Database:
    """The real tables of an SQLite file; `lost` says what was unreadable. Close it."""

    path: Path
    lost: list[Lost] = field(default_factory=list)
    missing_bytes: int = 0  # that the header counts and the file lacks
    ends_at: int = 0  # bytes of the file as it lies there
    is_wal: bool = False
    bad: BadValues = field(default_factory=BadValues)
    _columns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _steps: int = 0

    def __post_init__(self) -> None:
        header, size = _header(self.path)
        self.is_wal = header[18:20] == b"\2\2"
        self.missing_bytes = max(0, int.from_bytes(header[28:32], "big") * _page_bytes(header) - size)
        self._con = sqlite3.connect(
            f"file:{quote(str(self.path))}?mode=ro&immutable=1", uri=True, check_same_thread=False, isolation_level=None
        )
        self._con.text_factory = bytes
        self._con.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_TEXT_BYTES)
        self._con.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._con.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)
        self._con.set_progress_handler(self._is_overlong, _STEPS)
        try:
            # Without it SQLite refuses a file that is shorter than its header says, and one odd line of the schema
            # hides all tables. The file cannot be written through this connection either way.
            self._con.execute("PRAGMA writable_schema = ON")
            self._con.execute("PRAGMA trusted_schema = OFF")
            self._con.execute("PRAGMA cell_size_check = ON")
            self._con.execute("PRAGMA cache_size = -16000")
            self._has_json = _has_json(self._con)
            self._con.set_authorizer(_authorize)
            self._columns = self._real_tables()
        except sqlite3.Error as error:
            self._con.close()
            raise ArtifactError(
                f"{self.path.name}: no readable list of tables ({error}); expected an SQLite file"
            ) from error

    def close(self) -> None:
        self._con.close()

    def _is_overlong(self) -> bool:
        self._steps += 1
        return self._steps > _MAX_STEPS

    def _real_tables(self) -> dict[str, tuple[str, ...]]:
        is_table = "type = 'table' AND rootpage > 0 AND typeof(name) = 'text'"
        query = f"SELECT _rowid_, name FROM {LIST_OF_TABLES} WHERE {is_table}"
        found: list[tuple[int, bytes]] = []
        try:
            found.extend(itertools.islice(self._con.execute(query), _MAX_TABLES))
        except sqlite3.DatabaseError as error:  # the list has pages of its own, between those of the tables
            if not found:
                raise
            self.lost.append(Lost(LIST_OF_TABLES, found[-1][0], None, str(error)))
        tables = {}
        for _, name in found:
            table = name.decode("utf-8", "replace")
            try:
                described = self._con.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchmany(_MAX_COLUMNS)
            except sqlite3.Error:
                continue
            # hidden is not 0: generated, that is an expression of the file.
            columns = tuple(column[1].decode("utf-8", "replace") for column in described if column[6] == 0)
            if columns and table not in tables:
                tables[table] = columns
        return tables

    def tables(self) -> list[str]:
        return list(self._columns)

    def columns(self, table: str) -> tuple[str, ...]:
        return self._columns.get(table, ())

    def read(self, table: str, columns: Sequence[str], texts: Sequence[str] = ()) -> Iterator[pa.Table]:
        """Blocks of rows with the columns asked for that the table has, `rowid` first; integers, and texts as said.

        The next block is read while the caller works on this one. A value of the wrong type is NULL, and counted.
        """
        if table not in self._columns:
            return
        wanted = [name for name in columns if name in self._columns[table]]
        for block in _ahead(self._blocks(table, wanted, frozenset(texts))):
            parsed = _parsed(block, wanted, texts)
            yield parsed if parsed is not None else self._one_by_one(table, wanted, texts, block)

    def count(self, table: str) -> int:
        """Rows of a table, 0 where they cannot be counted."""
        self._steps = 0
        try:
            return int(self._con.execute(f"SELECT count(*) FROM {_quoted(table)}").fetchone()[0])
        except (sqlite3.Error, OverflowError):
            return 0

    def describe(self, table: str, rowid: int) -> str:
        """The values of one row, for a reader; "" where it cannot be read."""
        self._steps = 0
        names = list(self._columns.get(table, ()))
        try:
            listed = ", ".join(map(_quoted, names))
            row = self._con.execute(f"SELECT {listed} FROM {_quoted(table)} WHERE _rowid_ = ?", (rowid,)).fetchone()
        except (sqlite3.Error, OverflowError):
            return ""
        values = zip(names, row or (), strict=bool(row))
        return ", ".join(f"{name} {_text(value)}" for name, value in values if value is not None)

    def _blocks(self, table: str, columns: Sequence[str], texts: frozenset[str]) -> Iterator[_Block]:
        names = "".join(f", {_quoted(name)}" for name in columns)
        # %Q quotes a text and leaves NULL as the bare word.
        form = "".join(",%Q" if name in texts else ",%s" for name in columns)
        printed = f"printf('[0,%s{form},0]', _rowid_{names})"
        rows = f"(SELECT _rowid_{names} FROM {_quoted(table)} WHERE _rowid_ > ? ORDER BY _rowid_ LIMIT ?)"
        ends = f"min(_rowid_), max(_rowid_), count(*) FROM {rows}"
        always = query = f"SELECT group_concat({printed}, '\n'), {ends}"
        if self._has_json and not texts.intersection(columns):
            query = f"SELECT group_concat(json_array(0, _rowid_{names}, 0), '\n'), {ends}"
        last, size, failures = -_LARGEST_ROWID - 1, _FIRST_ROWS, 0
        while True:
            self._steps = 0
            try:
                text, first, end, n = self._row(query, always, (last, size))
                if n and not (last < first <= end - n + 1):  # what SQLite makes of cells that are not there
                    raise sqlite3.DatabaseError("rows are out of order")
            except (sqlite3.Error, MemoryError, OverflowError) as error:
                failures += 1
                if size > 1:
                    size = size // 8 or 1
                    continue
                after = None if failures > _MAX_FAILURES else self._next_readable(table, last)
                self.lost.append(Lost(table, last, after, str(error)))
                if after is None:
                    return
                last = after - 1
                continue
            if n:
                yield _Block(text, last, end, n)
                last = end
            if n < size:
                return
            size = min(BLOCK_ROWS, size * 8)

    def _row(self, query: str, instead: str, given: tuple[int, ...]) -> tuple[Any, ...]:
        """The only row of a query; of `instead` where JSON cannot hold what lies there."""
        try:
            return tuple(self._con.execute(query, given).fetchone())
        except sqlite3.OperationalError as error:
            if query == instead or "JSON" not in str(error):
                raise
            return tuple(self._con.execute(instead, given).fetchone())

    def _next_readable(self, table: str, last: int) -> int | None:
        """The first row after a damaged place, found by steps that double; None when there is none."""
        query = f"SELECT min(_rowid_) FROM {_quoted(table)} WHERE _rowid_ >= ?"
        at, step = max(last, 0) + 2, 1
        while at < 1 << 48:
            self._steps = 0
            try:
                (found,) = self._con.execute(query, (at,)).fetchone()
                return int(found) if found is not None else None
            except (sqlite3.Error, OverflowError):
                at, step = at + step, step * 2
        return None

    def _one_by_one(self, table: str, columns: Sequence[str], texts: Sequence[str], block: _Block) -> pa.Table:
        """The same rows through Python, for values that are not what their column should hold."""
        names = "".join(f", {_quoted(name)}" for name in columns)
        query = (
            f"SELECT _rowid_{names} FROM {_quoted(table)} WHERE _rowid_ > ? AND _rowid_ <= ? ORDER BY _rowid_ LIMIT ?"
        )
        self._steps = 0
        try:
            rows = self._con.execute(query, (block.after, block.end, block.n)).fetchall()
        except (sqlite3.Error, MemoryError) as error:
            self.lost.append(Lost(table, block.after, block.end + 1, str(error)))
            rows = []
        values = {}
        for n, (name, kind) in enumerate(_schema(columns, texts).items()):
            column = [_text(row[n]) if name in texts else _integer(row[n]) for row in rows]
            n_bad = column.count(None) - sum(row[n] is None for row in rows)
            self.bad.add(table, name, block.after, n_bad)
            values[name] = pa.array(column, kind)
        return pa.table(values)


def _ahead(blocks: Iterator[_Block]) -> Iterator[_Block]:
    """The same blocks, each read while the caller works on the one before; small tables need no thread."""
    first = list(itertools.islice(blocks, 2))
    yield from first
    if len(first) < 2:
        return
    with ThreadPoolExecutor(1) as reader:
        pending = reader.submit(next, blocks, None)
        while (block := pending.result()) is not None:
            pending = reader.submit(next, blocks, None)
            yield block


def _has_json(con: sqlite3.Connection) -> bool:
    try:
        con.execute("SELECT json_array(1)")
    except sqlite3.OperationalError:  # builds before 3.38 may lack it
        return False
    return True


def _header(path: Path) -> tuple[bytes, int]:
    with path.open("rb") as file:
        return file.read(100), file.seek(0, os.SEEK_END)


def _page_bytes(header: bytes) -> int:
    size = int.from_bytes(header[16:18], "big")
    return 65536 if size == 1 else size


def whole_pages(path: Path) -> int | None:
    """Bytes of the file's whole pages where it ends within a page, else None.

    SQLite fills such a page with zeros, and makes rows of them.
    """
    header, size = _header(path)
    page = _page_bytes(header)
    return size - size % page if page >= 512 and size % page else None


@dataclass(frozen=True)
class _Block:
    text: bytes
    after: int
    end: int
    n: int


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second not in _FUNCTIONS):
        return sqlite3.SQLITE_DENY
    if action == sqlite3.SQLITE_PRAGMA and first != "table_xinfo":
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _schema(columns: Sequence[str], texts: Sequence[str]) -> dict[str, pa.DataType]:
    return {"rowid": pa.int64(), **{name: pa.string() if name in texts else pa.int64() for name in columns}}


def _parsed(block: _Block, columns: Sequence[str], texts: Sequence[str]) -> pa.Table | None:
    kinds = _schema(columns, texts)
    names = ["[0", *kinds, "0]"]  # around each row
    try:
        table = csv.read_csv(
            pa.py_buffer(block.text),
            read_options=csv.ReadOptions(column_names=names, use_threads=False, block_size=_MAX_TEXT_BYTES),
            parse_options=csv.ParseOptions(quote_char="'", double_quote=True, newlines_in_values=bool(texts)),
            convert_options=csv.ConvertOptions(
                include_columns=list(kinds),
                column_types=kinds,
                null_values=["", "NULL", "null"],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowKeyError):
        return None
    return table if table.num_rows == block.n else None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _integer(value: Any) -> int | None:
    if isinstance(value, float):
        value = int(value) if abs(value) < 2**62 and value.is_integer() else None
    return value if isinstance(value, int) else None


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
