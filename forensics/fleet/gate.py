"""A gate for CI: whether the jobs of the last working run are good enough to go on.

Looked at are jobs that the last batch with new content met. Incidents that reviewers dismissed, all their findings,
count for nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from forensics.fleet.warehouse import rows_of
from forensics.report.text import one_line

_SHOWN = 5


@dataclass(frozen=True)
class Demand:
    """`critical`: patterns of job names whose every rank needs a trace; `slo`: metrics that each job must report."""

    most_new: int = 0
    least_coverage: float = 0.95
    least_traced: float = 1.0
    critical: Sequence[str] = ()
    slo: Sequence[str] = ()


@dataclass(frozen=True)
class Check:
    """One demand; where there is nothing to judge it by, it did not pass."""

    name: str
    passed: bool
    said: str


def judge(con: duckdb.DuckDBPyConnection, demand: Demand) -> list[Check]:
    con.execute(
        "CREATE OR REPLACE TEMP TABLE last_job AS SELECT * FROM job WHERE run = (SELECT max(run) FROM working_run)"
    )
    checks = [_analyzed(con), _new_causes(con, demand), _coverage(con, demand)]
    if demand.critical:
        checks.append(_traced(con, demand))
    return [*checks, *(_slo(con, name) for name in demand.slo)]


def _analyzed(con: duckdb.DuckDBPyConnection) -> Check:
    rows = rows_of(con, "SELECT name, reason FROM last_job WHERE status = 'not-analyzed' ORDER BY name")
    total = rows_of(con, "SELECT count(*) AS n FROM last_job")[0]["n"]
    names = "".join(f"; {row['name']}: {row['reason']}" for row in rows[:_SHOWN])
    return Check("every job was analyzed", total > 0 and not rows, f"{total - len(rows)} of {total}{names}")


def _new_causes(con: duckdb.DuckDBPyConnection, demand: Demand) -> Check:
    rows = rows_of(
        con,
        "SELECT incident, state, rule, message, n_jobs_last_run FROM incident"
        " WHERE state IN ('new', 'regressed') AND NOT (n_dismissed > 0 AND n_dismissed >= n_jobs)"
        " ORDER BY n_jobs_last_run DESC, incident",
    )
    named = "".join(
        f"; {r['state']} {r['rule'] or 'unknown error'}: {one_line(r['message'], 160)}" for r in rows[:_SHOWN]
    )
    return Check("no new root cause", len(rows) <= demand.most_new, f"{len(rows)} new or regressed{named}")


def _coverage(con: duckdb.DuckDBPyConnection, demand: Demand) -> Check:
    row = rows_of(con, "SELECT sum(n_artifacts_whole) AS whole, sum(n_artifacts) AS n FROM last_job")[0]
    whole, n = row["whole"] or 0, row["n"] or 0
    share = whole / n if n else 0.0
    said = f"{whole} of {n} artifacts were read whole ({share:.1%}; at least {demand.least_coverage:.1%})"
    return Check("evidence coverage", n > 0 and share >= demand.least_coverage, said)


def _traced(con: duckdb.DuckDBPyConnection, demand: Demand) -> Check:
    rows = rows_of(con, "SELECT name, n_ranks, n_ranks_traced FROM last_job ORDER BY name")
    rows = [r for r in rows if any(fnmatch.fnmatchcase(r["name"], pattern) for pattern in demand.critical)]
    traced, n = sum(r["n_ranks_traced"] or 0 for r in rows), sum(r["n_ranks"] or 0 for r in rows)
    share = traced / n if n else 0.0
    said = f"{traced} of {n} ranks of {len(rows)} critical jobs have a trace (at least {demand.least_traced:.0%})"
    return Check("trace sampling on critical paths", n > 0 and share >= demand.least_traced, said)


def _slo(con: duckdb.DuckDBPyConnection, name: str) -> Check:
    rows = rows_of(
        con,
        "SELECT name FROM last_job WHERE job NOT IN (SELECT job FROM metric WHERE name = ? AND n > n_nonfinite)"
        " ORDER BY name",
        [name],
    )
    total = rows_of(con, "SELECT count(*) AS n FROM last_job")[0]["n"]
    lacking = "".join(f"; not in {row['name']}" for row in rows[:_SHOWN])
    return Check(
        f"SLO figure {name} present", total > 0 and not rows, f"in {total - len(rows)} of {total} jobs{lacking}"
    )
