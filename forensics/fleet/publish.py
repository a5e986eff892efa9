"""What a batch tells others once it is done: a Prometheus text file, and a webhook where one was asked for."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping
from http.client import HTTPException
from typing import Any

import duckdb
import orjson

from forensics import __version__
from forensics.errors import ForensicsError
from forensics.fleet.layout import Fleet, write_whole
from forensics.fleet.warehouse import rows_of

_TIMEOUT_SECONDS = 10
_MOST_SERIES = 500  # of one metric
_MOST_INCIDENTS = 50


def write_metrics(
    fleet: Fleet, con: duckdb.DuckDBPyConnection, program: str, seconds: float, counts: Mapping[str, int]
) -> None:
    """metrics.prom, for the node exporter's textfile collector; every figure carries the version that made it.

    `counts`: of the last batch, by what became of jobs.
    """
    lines: list[str] = []
    told = [{"what": name.removeprefix("n_"), "value": n} for name, n in counts.items() if name.startswith("n_")]
    batch = ("forensics_batch_jobs", "Jobs of the last batch; completed and running ones were left out", told)
    for name, meaning, rows in (*_families(con, program, seconds), batch):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        for row in rows[:_MOST_SERIES]:
            labels = {**{key: value for key, value in row.items() if key != "value"}, "version": __version__}
            shown = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
            lines.append(f"{name}{{{shown}}} {float(row['value'] or 0):.12g}")
    write_whole(fleet.folder / "metrics.prom", "\n".join([*lines, ""]).encode("utf-8", "replace"))


def _escaped(value: Any) -> str:
    return str("" if value is None else value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _families(
    con: duckdb.DuckDBPyConnection, program: str, seconds: float
) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    job = "coalesce(verdict, status) AS verdict, count(*) AS value FROM job GROUP BY ALL ORDER BY ALL"
    yield "forensics_fleet_jobs", "Jobs of the fleet by verdict", rows_of(con, f"SELECT {job}")
    yield (
        "forensics_fleet_root_causes",
        "Jobs by rule of the first root cause and version of the training code",
        rows_of(
            con,
            "SELECT rule, coalesce(code_version, '') AS code_version, count(*) AS value FROM job WHERE rule IS NOT NULL"
            " GROUP BY ALL ORDER BY value DESC, rule, code_version",
        ),
    )
    yield (
        "forensics_fleet_incidents",
        "Incidents by state",
        rows_of(
            con,
            "SELECT s.state, count(i.incident) AS value"
            " FROM unnest(['new', 'known', 'regressed', 'resolved']) AS s(state)"
            " LEFT JOIN incident AS i ON i.state = s.state GROUP BY s.state ORDER BY s.state",
        ),
    )
    yield (
        "forensics_fleet_open_incident_jobs",
        "Jobs of new and regressed incidents; runbook is the page of the rule",
        rows_of(
            con,
            "SELECT incident, state, coalesce(rule, '') AS rule,"
            " CASE WHEN rule IS NULL THEN 'pages/incident-' || incident || '.html' ELSE 'rules/' || rule || '.html' END"
            " AS runbook, n_jobs AS value FROM incident WHERE state IN ('new', 'regressed')"
            " ORDER BY value DESC, incident",
        ),
    )
    yield (
        "forensics_fleet_gpu_hours_lost",
        "GPU hours that failed jobs held, as far as known",
        rows_of(con, "SELECT coalesce(sum(gpu_hours_lost), 0) AS value FROM job"),
    )
    yield (
        "forensics_fleet_host_fault_score",
        "Lower end of the 95 percent interval of the share of jobs that the host spoiled",
        rows_of(con, "SELECT host, score AS value FROM host WHERE n_faults > 0 ORDER BY score DESC, host"),
    )
    yield (
        "forensics_fleet_drifted_metrics",
        "Metrics whose distribution differs from that of the run before, of jobs of the last working run",
        rows_of(
            con,
            "SELECT count(*) AS value FROM drift WHERE drifted AND run = (SELECT max(run) FROM working_run)",
        ),
    )
    reviewed = "SELECT decision, count(*) AS value FROM review GROUP BY decision ORDER BY decision"
    yield "forensics_fleet_reviews", "Findings by what reviewers decided", rows_of(con, reviewed)
    last = [{"edition": program, "value": time.time()}]
    yield "forensics_batch_last_end_seconds", "When the last batch ended, seconds since the epoch", last
    yield "forensics_batch_duration_seconds", "How long it took", [{"value": seconds}]


def payload(con: duckdb.DuckDBPyConnection, site: str, counts: Mapping[str, int]) -> dict[str, Any]:
    """What a webhook is told: counts, and new and regressed incidents with links to report and runbook."""
    base = site.rstrip("/") + "/" if site else ""
    incidents = rows_of(
        con,
        "SELECT i.*, j.report FROM incident AS i LEFT JOIN job AS j ON j.job = i.example"
        " WHERE i.state IN ('new', 'regressed') ORDER BY i.n_jobs DESC, i.incident LIMIT ?",
        [_MOST_INCIDENTS],
    )
    return {
        "format": "forensics.webhook/1",
        "version": __version__,
        "batch": dict(counts),
        "index": f"{base}index.html",
        "incidents": [
            {
                "incident": i["incident"],
                "state": i["state"],
                "rule": i["rule"],
                "title": i["title"],
                "message": i["message"],
                "severity": i["severity"],
                "n_jobs": i["n_jobs"],
                "gpu_hours_lost": i["gpu_hours_lost"],
                "report": f"{base}{i['report']}" if i["report"] else None,
                "runbook": f"{base}rules/{i['rule']}.html"
                if i["rule"]
                else f"{base}pages/incident-{i['incident']}.html",
            }
            for i in incidents
        ],
    }


def check_webhook(url: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise ForensicsError(f"webhook: {url!r}; expected a URL that begins with https:// or http://")


def send(url: str, told: Mapping[str, Any]) -> str:
    """Posts it as JSON once; what went wrong, empty when nothing did."""
    request = urllib.request.Request(  # noqa: S310 - checked by check_webhook
        url, orjson.dumps(told, default=str), {"Content-Type": "application/json", "User-Agent": "forensics"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
            answer.read(1)
    except (OSError, ValueError, HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return ""
