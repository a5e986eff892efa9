"""`forensics fleet`: questions to the analyses of many jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

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


@app.command
def gate(
    fleet: Path,
    /,
    *,
    allow_new: int = 0,
    min_coverage: float = 0.95,
    min_traced: float = 1.0,
    critical: Annotated[list[str] | None, Parameter(negative="")] = None,
    slo: Annotated[list[str] | None, Parameter(negative="")] = None,
) -> int:
    """Judge the jobs of the last batch that met new ones; exits with 1 where one of the checks fails.

    Parameters
    ----------
    fleet
        Folder that `forensics batch --out` wrote.
    allow_new
        New or regressed incidents that may be there.
    min_coverage
        Share of the artifacts that must have been read whole.
    min_traced
        Share of the ranks of critical jobs that need a trace.
    critical
        Pattern of names of critical jobs, such as "train-*"; may be given several times.
    slo
        Metric that every job must report, such as loss or ttft_ms; may be given several times.
    """
    from forensics.fleet.gate import Demand, judge
    from forensics.fleet.layout import Fleet
    from forensics.fleet.warehouse import open_fleet

    con = open_fleet(Fleet(fleet.absolute()))
    try:
        checks = judge(con, Demand(allow_new, min_coverage, min_traced, critical or (), slo or ()))
    finally:
        con.close()
    for check in checks:
        print(f"{'pass' if check.passed else 'FAIL'}  {check.name}: {check.said}")
    return int(not all(check.passed for check in checks))
