"""`forensics query CASE SQL`."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from forensics.errors import ForensicsError

if TYPE_CHECKING:
    import duckdb

_SHOWN_ROWS = 1000
_SHOWN_CHARACTERS = 120  # of a cell
_ESCAPES = {"\n": " ", "\xa0": " "}


def query(case: Path, sql: str, /, *, format: Literal["table", "csv", "json"] = "table") -> int:
    """Ask a finished case a question in SQL.

    Parameters
    ----------
    case
        A case.duckdb, or the folder that `forensics analyze` wrote.
    sql
        A SELECT over the tables of the case; `SELECT * FROM duckdb_columns()` lists them with their comments.
    format
        table (first 1000 rows, cells of at most 120 characters), csv or json lines (all of all rows).
    """
    import duckdb

    from forensics.investigation import Case

    with Case(case) as opened:
        try:
            print_rows(opened.query(sql), format)
        except duckdb.Error as error:
            raise ForensicsError(f"query: {error}") from error
    return 0


def print_rows(relation: duckdb.DuckDBPyRelation, format: str) -> None:
    """The rows of an answer as a table, CSV or JSON lines."""
    names = list(relation.columns)
    rows = relation.limit(_SHOWN_ROWS + 1).fetchall() if format == "table" else relation.fetchall()
    if format == "csv":
        steered = sys.stdout.isatty()  # a file gets the bytes as they are
        writer = csv.writer(sys.stdout)
        for row in (names, *rows):
            writer.writerow([_harmless(value) if steered and isinstance(value, str) else value for value in row])
    elif format == "json":
        import orjson

        for row in rows:
            print(orjson.dumps(dict(zip(names, row, strict=True)), default=str).decode())
    else:
        _print_table(names, rows[:_SHOWN_ROWS])
        if len(rows) > _SHOWN_ROWS:
            print(f"… only the first {_SHOWN_ROWS} rows; --format csv or json gives all")


def _print_table(names: list[str], rows: list[tuple[object, ...]]) -> None:
    names = [_shown(name) for name in names]
    texts = [["" if value is None else _shown(str(value)) for value in row] for row in rows]
    widths = [max(len(name), *(len(row[n]) for row in texts)) if texts else len(name) for n, name in enumerate(names)]
    print("  ".join(name.ljust(width) for name, width in zip(names, widths, strict=True)).rstrip())
    print("  ".join("-" * width for width in widths))
    for row in texts:
        print("  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip())


def _shown(text: str) -> str:
    """The text on one line, cut with its full length told; what would steer the terminal is spelt out."""
    cut = text[:_SHOWN_CHARACTERS]
    shown = _harmless(cut)
    return shown if len(text) <= _SHOWN_CHARACTERS else f"{shown}… ({len(text)} characters)"


def _harmless(text: str) -> str:
    return "".join(c if c.isprintable() else _ESCAPES.get(c) or c.encode("unicode_escape").decode() for c in text)
