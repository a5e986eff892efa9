"""What differs between the cases of a good and a failed run, table by table, and where they first part.

Runs are matched by rank, step and name; ids of texts are derived from them, so they agree between cases. Figures that
clocks make (times, rates) are not compared step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from forensics import comparison_queries as ask
from forensics.case import connect
from forensics.errors import CaseError

MAX_LISTED = 20  # differences of one kind that are shown; all are counted


@dataclass(frozen=True)
class Difference:
    """One thing that is not alike; `good` and `failed` as text, None where the run has none."""

    what: str
    good: str | None
    failed: str | None
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class Section:
    """Differences of one kind, the most telling first; `n_all` counts those that are not listed too."""

    name: str
    differences: Sequence[Difference]
    n_all: int
    is_compared: bool = True  # both runs recorded something of the kind


@dataclass(frozen=True)
class Comparison:
    """`first`: the earliest difference in what the runs did, and its section; None where nothing parts them."""

    good: str
    failed: str
    first: Difference | None
    first_in: str | None
    sections: Sequence[Section] = field(default_factory=tuple)


def compare(good: Path, failed: Path) -> Comparison:
    """Compares two cases, each a case.duckdb or the folder that `forensics analyze` wrote."""
    con = connect()
    try:
        con.execute("SET threads = 1")
        for name, given in (("good", good), ("failed", failed)):
            path = given / "case.duckdb" if given.is_dir() else given
            if not path.is_file():
                raise CaseError(f"{path}: not found; expected a case; run `forensics analyze` first")
            try:
                con.execute(f"ATTACH '{str(path).replace(chr(39), chr(39) * 2)}' AS {name} (READ_ONLY)")
            except duckdb.Error as error:
                raise CaseError(f"{path}: cannot be opened ({error}); expected a case") from error
        con.execute("SET enable_external_access = false")
        sections = [_section(con, name, sql, tables) for name, sql, tables in ask.SECTIONS]
        first_in, first = _first(con)
    except (duckdb.CatalogException, duckdb.BinderException) as error:  # a table or a column that is not there
        raise CaseError(f"{good} or {failed}: written by another version; analyze both again ({error})") from error
    finally:
        con.close()
    return Comparison(str(good), str(failed), first, first_in, sections)


def _section(con: duckdb.DuckDBPyConnection, name: str, sql: str, tables: Sequence[str]) -> Section:
    """The SQL gives rank, step, what, good, failed, in the order in which they are to be told."""
    n_both = [
        con.execute(f"SELECT EXISTS (SELECT 1 FROM {run}.{table})").fetchall()[0][0]
        for table in tables
        for run in ("good", "failed")
    ]
    if not all(n_both):
        return Section(name, (), 0, is_compared=False)
    n_all = con.execute(f"SELECT count(*) FROM ({sql})").fetchall()[0][0]
    rows = con.execute(f"SELECT rank, step, what, good, failed FROM ({sql}) LIMIT {MAX_LISTED}").fetchall()
    return Section(name, [_difference(row) for row in rows], n_all)


def _first(con: duckdb.DuckDBPyConnection) -> tuple[str | None, Difference | None]:
    """Of the first difference of each kind that of the earliest step; at one step, tensors go before sums of them."""
    found: dict[str, Difference] = {}
    for name, sql in ask.ORDERED:
        rows = con.execute(f"SELECT rank, step, what, good, failed FROM ({sql}) LIMIT 1").fetchall()
        if rows:
            found[name] = _difference(rows[0])
    if not found:
        return None, None
    steps = {name: float("inf") if item.step is None else float(item.step) for name, item in found.items()}
    calls = found.get(ask.COLLECTIVE_ORDER)
    if calls is not None and calls.good and calls.failed:  # other calls came before the end, in which step is not known
        steps[ask.COLLECTIVE_ORDER] = steps.get(ask.LAST_STEPS, float("inf")) - 0.5
    name = min(found, key=lambda key: steps[key])  # of equal steps the one that is first in ORDERED
    return name, found[name]


def _difference(row: Sequence[object]) -> Difference:
    rank, step, what, good, failed = row
    return Difference(
        what=str(what)[:200],
        good=None if good is None else str(good)[:300],
        failed=None if failed is None else str(failed)[:300],
        rank=rank if isinstance(rank, int) else None,
        step=step if isinstance(step, int) else None,
    )
