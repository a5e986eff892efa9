"""The fleet as static pages: an index, all jobs by time and by name, one page per incident and per rule that was found.

Same style sheet and macros as a report; pages ask for nothing from any network and read without scripts.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from forensics import __version__
from forensics.fleet.layout import Fleet, write_whole
from forensics.fleet.warehouse import rows_of
from forensics.library import load_rules
from forensics.report import text
from forensics.report.html import asset, block, content_policy, finalize, line, link
from forensics.resources import resource_folder

PAGE_JOBS, PAGE_NAMES = 500, 2000
_SHOWN = {
    "open": 15,
    "incidents": 60,
    "resolved": 20,
    "hosts": 25,
    "gpus": 25,
    "errors": 25,
    "drifts": 25,
    "missing": 15,
    "aside": 25,
}
_INCIDENT_PAGES, _INCIDENT_JOBS = 400, 300
_CAUSES, _BARS = 7, 60
_JOB = "job, name, status, reason, verdict, sentence, rule, ended_ns, gpu_hours_lost, report"


@dataclass(frozen=True)
class Bar:
    """One part of a column of the chart, in its coordinates."""

    x: float
    y: float
    width: float
    height: float
    cause: int
    title: str


def write_pages(
    fleet: Fleet, con: duckdb.DuckDBPyConnection, rules: Sequence[Path] = (), counts: Mapping[str, int] | None = None
) -> None:
    """Writes index.html, pages/ and rules/; each file is replaced as a whole. `counts`: of the batch just done."""
    fleet.pages.mkdir(exist_ok=True)
    con.execute("CREATE TEMP TABLE shown_job AS SELECT * FROM job")
    con.execute("CREATE TEMP TABLE shown_incident AS SELECT * FROM incident")
    con.execute("CREATE TEMP TABLE shown_sighting AS SELECT DISTINCT incident, job FROM sighting ORDER BY incident")
    n_jobs = rows_of(con, "SELECT count(*) AS n FROM shown_job")[0]["n"]
    n_pages = math.ceil(n_jobs / PAGE_JOBS)
    known = _write_rules(fleet, con, rules)
    told = {**_index(con, n_jobs, n_pages), "names": _write_names(fleet, con), "batch": counts, "known_rules": known}
    _write(fleet.folder / "index.html", "fleet_index.html.j2", **told, up="")
    for number in range(1, n_pages + 1):
        jobs = rows_of(
            con,
            f"SELECT {_JOB} FROM shown_job ORDER BY ended_ns DESC NULLS LAST, job LIMIT {PAGE_JOBS} OFFSET ?",
            [(number - 1) * PAGE_JOBS],
        )
        told = {"jobs": jobs, "number": number, "n_pages": n_pages, "n_jobs": n_jobs, "known_rules": known, "up": "../"}
        _write(fleet.pages / f"jobs-{number}.html", "fleet_jobs.html.j2", **told)
    _write_incidents(fleet, con, known)
    _remove_after(fleet, "jobs", n_pages)


def _remove_after(fleet: Fleet, kind: str, last: int) -> None:
    """Pages that a larger fleet had."""
    for path in fleet.pages.glob(f"{kind}-*.html"):
        number = path.stem.removeprefix(f"{kind}-")
        if number.isdecimal() and int(number) > last:
            path.unlink()


def _write_names(fleet: Fleet, con: duckdb.DuckDBPyConnection) -> list[tuple[str, str]]:
    """Pages of names, where the browser's own search finds a job; the first and last name on each."""
    jobs = rows_of(con, "SELECT job, name, status, verdict, rule, ended_ns, report FROM shown_job ORDER BY name, job")
    parts = [jobs[first : first + PAGE_NAMES] for first in range(0, len(jobs), PAGE_NAMES)]
    spans = [(part[0]["name"], part[-1]["name"]) for part in parts]
    for number, part in enumerate(parts, 1):
        _write(
            fleet.pages / f"names-{number}.html", "fleet_names.html.j2", jobs=part, number=number, spans=spans, up="../"
        )
    _remove_after(fleet, "names", len(parts))
    return spans


def _index(con: duckdb.DuckDBPyConnection, n_jobs: int, n_pages: int) -> dict[str, Any]:
    order = "CASE state WHEN 'regressed' THEN 0 WHEN 'new' THEN 1 WHEN 'known' THEN 2 ELSE 3 END"
    incident = (
        f"SELECT * FROM shown_incident WHERE state {{}} 'resolved' ORDER BY {order}, n_jobs DESC, incident LIMIT ?"
    )
    totals = rows_of(
        con,
        """
        SELECT count(*) AS n, count(*) FILTER (WHERE status = 'not-analyzed') AS not_analyzed,
            count(*) FILTER (WHERE verdict = 'root-cause') AS root_cause,
            count(*) FILTER (WHERE verdict = 'independent') AS independent,
            count(*) FILTER (WHERE verdict = 'not-established') AS not_established,
            count(*) FILTER (WHERE verdict = 'healthy') AS healthy,
            sum(gpu_hours_lost) AS gpu_hours_lost, count(gpu_hours) AS n_with_hours,
            sum(n_artifacts_whole) AS n_whole, sum(n_artifacts) AS n_artifacts, max(analyzed_ns) AS analyzed_ns,
            (SELECT max(run) FROM working_run) AS run
        FROM shown_job
        """,
    )[0]
    return {
        "totals": totals,
        "states": dict.fromkeys(("new", "known", "regressed", "resolved"), 0)
        | {r["state"]: r["n"] for r in rows_of(con, "SELECT state, count(*) AS n FROM shown_incident GROUP BY ALL")},
        "reviews": {
            r["decision"]: r["n"] for r in rows_of(con, "SELECT decision, count(*) AS n FROM review GROUP BY ALL")
        },
        "incidents": rows_of(con, incident.format("<>"), [_SHOWN["incidents"]]),
        "resolved": rows_of(con, incident.format("="), [_SHOWN["resolved"]]),
        "chart": _chart(con),
        "hosts": rows_of(
            con,
            "SELECT * FROM host WHERE n_faults > 0 OR n_roots > 1"
            " ORDER BY n_faults > 1 DESC, score DESC, n_roots DESC, host LIMIT ?",
            [_SHOWN["hosts"]],
        ),
        "gpus": rows_of(
            con,
            "SELECT * FROM gpu WHERE n_faults > 0 OR n_roots > 1"
            " ORDER BY n_faults > 1 DESC, score DESC, n_roots DESC, host, device LIMIT ?",
            [_SHOWN["gpus"]],
        ),
        "errors": rows_of(
            con,
            "SELECT * FROM unknown_error ORDER BY n_jobs DESC, n DESC, incident LIMIT ?",
            [_SHOWN["errors"]],
        ),
        "drifts": rows_of(
            con,
            "SELECT d.*, j.name AS name, b.name AS name_before FROM drift AS d JOIN shown_job AS j ON j.job = d.job"
            " JOIN shown_job AS b ON b.job = d.job_before"
            " WHERE d.drifted ORDER BY d.ended_ns DESC NULLS LAST, d.statistic DESC, d.metric LIMIT ?",
            [_SHOWN["drifts"]],
        ),
        "missing": rows_of(
            con,
            "SELECT capability, count(DISTINCT job) AS n_jobs, count(DISTINCT rule) AS n_rules FROM missing_evidence"
            " WHERE job IN (SELECT job FROM shown_job WHERE verdict = 'not-established')"
            " GROUP BY capability ORDER BY n_jobs DESC, capability LIMIT ?",
            [_SHOWN["missing"]],
        ),
        "aside": rows_of(
            con,
            "SELECT job, name, reason FROM shown_job WHERE status = 'not-analyzed'"
            " ORDER BY analyzed_ns DESC, job LIMIT ?",
            [_SHOWN["aside"]],
        ),
        "latest": rows_of(con, f"SELECT {_JOB} FROM shown_job ORDER BY ended_ns DESC NULLS LAST, job LIMIT 30"),
        "n_jobs": n_jobs,
        "n_pages": n_pages,
        "shown": _SHOWN,
    }


def _chart(con: duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    """Jobs by cause and day, or by week or month where the days are too many; at most eight causes, the rest joined."""
    rows = rows_of(con, "SELECT * FROM cause_by_day WHERE cause <> 'healthy' ORDER BY day, cause")
    if not rows:
        return None
    first, last = rows[0]["day"], rows[-1]["day"]
    days = next((d for d in (1, 7, 30, 90, 365) if (last - first).days // d < _BARS), 3650)
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["cause"]] = totals.get(row["cause"], 0) + row["n_jobs"]
    named = sorted(totals, key=lambda cause: (-totals[cause], cause))[:_CAUSES]
    columns: dict[int, dict[str, int]] = {}
    for row in rows:
        cause = row["cause"] if row["cause"] in named else "other"
        column = columns.setdefault((row["day"] - first).days // days, {})
        column[cause] = column.get(cause, 0) + row["n_jobs"]
    causes = [*named, *(["other"] if len(totals) > len(named) else [])]
    n_columns = (last - first).days // days + 1
    most = max(sum(column.values()) for column in columns.values())
    return {
        "bars": list(_bars(columns, causes, n_columns, most, first, days)),
        "causes": [(n, cause, sum(c.get(cause, 0) for c in columns.values())) for n, cause in enumerate(causes)],
        "most": most,
        "first": first.isoformat(),
        "last": last.isoformat(),
        "days": {1: "day", 7: "week", 30: "30 days", 90: "90 days"}.get(days, "year"),
    }


def _bars(
    columns: dict[int, dict[str, int]],
    causes: Sequence[str],
    n_columns: int,
    most: int,
    first: datetime.date,
    days: int,
) -> Sequence[Bar]:
    width = min(120.0, 1000 / n_columns)
    bars = []
    for place, column in sorted(columns.items()):
        y = 200.0
        day = first + datetime.timedelta(days=place * days)
        for number, cause in enumerate(causes):
            if n := column.get(cause, 0):
                height = 190 * n / most
                y -= height
                title = f"{day.isoformat()}: {text.plural(n, 'job')}, {cause}"
                bars.append(Bar(place * width, y, max(1.0, width - 2), height, number, title))
    return bars


def _write_incidents(fleet: Fleet, con: duckdb.DuckDBPyConnection, known: set[str]) -> None:
    """Pages of those that the index lists, and of the others as far as the bound goes."""
    incidents = rows_of(
        con,
        "SELECT * FROM shown_incident"
        f" ORDER BY state = 'resolved', state = 'known', n_jobs DESC, incident LIMIT {_INCIDENT_PAGES}",
    )
    for incident in incidents:
        jobs = rows_of(
            con,
            f"SELECT {_JOB} FROM shown_job WHERE job IN (SELECT job FROM shown_sighting WHERE incident = ?)"
            " ORDER BY ended_ns DESC NULLS LAST, job LIMIT ?",
            [incident["incident"], _INCIDENT_JOBS],
        )
        path = fleet.pages / f"incident-{incident['incident']}.html"
        _write(path, "fleet_incident.html.j2", incident=incident, jobs=jobs, known_rules=known, up="../")


def _write_rules(fleet: Fleet, con: duckdb.DuckDBPyConnection, rules: Sequence[Path]) -> set[str]:
    """One page per rule that was found anywhere: what it proves and what to do, the runbook of its alerts."""
    fleet.rule_pages.mkdir(exist_ok=True)
    found = {row["rule"] for row in rows_of(con, "SELECT DISTINCT rule FROM finding")}
    known = {rule.id: rule for rule in load_rules(rules) if rule.id in found}
    for rule in known.values():
        _write(fleet.rule_pages / f"{rule.id}.html", "fleet_rule.html.j2", rule=rule, up="../")
    return set(known)


def _write(path: Path, template: str, **told: Any) -> None:
    css = asset("page.css") + asset("fleet.css")
    script = asset("fleet.js")
    page = (
        _environment()
        .get_template(template)
        .render(
            css=Markup(css),  # noqa: S704  our own file
            script=Markup(script),  # noqa: S704  our own file
            policy=content_policy(css, script),
            version=__version__,
            **told,
        )
    )
    write_whole(path, page.encode("utf-8", "replace"))


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(resource_folder("reports")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters.update(
        line=line, plain=text.one_line, block=block, link=link, percent=text.percent, plural=text.plural, path=quote,
        when=_minute, hours=_hours, px=lambda value: f"{value:.2f}",
        count=lambda n: f"{n or 0:,}",
    )  # fmt: skip
    return environment


def _minute(ts_ns: int | None) -> str:
    if ts_ns is None or not text.has_epoch(ts_ns):
        return ""
    return datetime.datetime.fromtimestamp(ts_ns // 10**9, datetime.UTC).strftime("%Y-%m-%d %H:%M")


def _hours(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
