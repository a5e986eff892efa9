"""`forensics fleet`: questions to the analyses of many jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from forensics.errors import ForensicsError

app = App(name="fleet", help="Ask what `forensics batch` learned of many jobs: query, gate.")


@app.command
def query(fleet: Path, sql: str, /, *, format: Literal["table", "csv", "json"] = "table") -> int:
    """Ask a fleet a question in SQL.

    Parameters
    ----------
    fleet
        Folder that `forensics batch --out` wrote.
    sql
        A SELECT over job, finding, incident, host, gpu, error, metric and others; `SELECT * FROM duckdb_columns()`
        lists them with their comments.
    format
        table (first 1000 rows, cells of at most 120 characters), csv or json lines (all of all rows).
    """
    import duckdb

    from forensics.cli.query import print_rows
    from forensics.fleet.layout import Fleet
    from forensics.fleet.warehouse import ask, open_fleet

    con = open_fleet(Fleet(fleet.absolute()))
    try:
        print_rows(ask(con, sql), format)
    except duckdb.Error as error:
        raise ForensicsError(f"query: {error}") from error
    finally:
        con.close()
    return 0
