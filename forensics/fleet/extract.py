"""What a fleet keeps of a finished case: read from its report.json and its tables, secrets masked as there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from forensics.fleet.incidents import incident_of, incident_of_error
from forensics.investigation import Case
from forensics.redact import mask

MAX_FINDINGS, MAX_PROCESSES, MAX_ERRORS, MAX_METRICS, MAX_SAMPLES = 200, 4096, 50, 40, 256
_MAX_TEXT = 600


def extract(out: Path) -> dict[str, Any]:
    """Columns of `rows.SCHEMA` that come from the case and report in `out`."""
    report = orjson.loads((out / "report.json").read_bytes())
    with Case(out) as case:
        findings = _findings(report, _places(case))
        errors = _errors(case)
        row = _verdict(report, findings, errors)
        return {
            **row,
            **_times(case),
            "code_version": _code_version(case),
            "findings": findings,
            "n_findings": len(report["findings"]),
            "n_warnings": len(report["warnings"]),
            "processes": _processes(case),
            "errors": errors,
            "metrics": _metrics(case),
            "missing": [
                {"rule": n["rule"], "capability": n["missing"]} for n in report["verdict"]["not_checked"][:MAX_FINDINGS]
            ],
            "artifacts": _rows(
                case,
                "SELECT format, quality, count(*) AS n, sum(bytes)::BIGINT AS bytes FROM artifact"
                " GROUP BY ALL ORDER BY ALL",
            ),
        }


def _rows(case: Case, sql: str, **parameters: Any) -> list[dict[str, Any]]:
    relation = case.query(sql, **parameters)
    names = list(relation.columns)
    return [dict(zip(names, row, strict=True)) for row in relation.fetchall()]


def _places(case: Case) -> dict[int, tuple[str | None, int | None]]:
    rows = _rows(
        case,
        "SELECT f.id, p.host, coalesce((f.facts ->> 'device')::INTEGER, p.device) AS device"
        " FROM (SELECT id, proc_id, CASE WHEN regexp_full_match(facts ->> 'device', '[0-9]{1,4}') THEN facts END"
        " AS facts FROM finding) AS f LEFT JOIN proc AS p ON p.id = f.proc_id ORDER BY f.id",
    )
    return {row["id"]: (row["host"], row["device"]) for row in rows}


def _findings(report: Mapping[str, Any], places: Mapping[int, tuple[str | None, int | None]]) -> list[dict[str, Any]]:
    verdict = report["verdict"]
    roots = {f["id"] for f in verdict["root_causes"]}
    consequences = {f["id"] for f in verdict["consequences"]}
    found = []
    for given in report["findings"]:
        host, device = places.get(given["id"], (None, None))
        place = "root" if given["id"] in roots else "consequence" if given["id"] in consequences else "other"
        names = (
            "id",
            "rule",
            "title",
            "variant",
            "severity",
            "strength",
            "confidence",
            "attempt",
            "rank",
            "step",
            "ts_ns",
        )
        found.append(
            {
                **{name: given.get(name) for name in names},
                "place": place,
                "host": host,
                "device": device,
                "message": _text(given["message"]),
                "fix": _text(given["fix"]),
                "fingerprint": given["fingerprint"],
                "incident": incident_of(given["rule"], given["message"], given["facts"]),
            }
        )
    order = ("root", "consequence", "other")
    return sorted(found, key=lambda f: (order.index(f["place"]), f["id"]))[:MAX_FINDINGS]


def _verdict(
    report: Mapping[str, Any], findings: Sequence[Mapping[str, Any]], errors: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    verdict = report["verdict"]
    # The first that the verdict names comes first.
    order = [f["id"] for f in verdict["root_causes"]]
    roots = sorted((f for f in findings if f["place"] == "root"), key=lambda f: order.index(f["id"]))
    row = {"verdict": verdict["status"], "sentence": _text(verdict["sentence"]), "version": report["generated_by"]}
    if roots:
        first = roots[0]
        return {**row, **{name: first[name] for name in ("rule", "severity", "confidence", "incident")}}
    anomaly = verdict.get("earliest_anomaly")
    incident = None
    if verdict["status"] != "healthy":
        if errors:
            incident = errors[0]["incident"]
        elif anomaly:
            incident = incident_of_error("", anomaly["message"])
    return {**row, "rule": None, "severity": None, "confidence": None, "incident": incident}


def _errors(case: Case) -> list[dict[str, Any]]:
    """Errors that no catalogue entry names, with how often each came; the earliest kind first."""
    rows = _rows(
        case,
        """
        SELECT l.exception, l.message, f.function || ' (' || regexp_extract(f.file, '[^/]*$') || ')' AS where_in_code
        FROM log AS l
        LEFT JOIN frame AS k ON k.id = l.stack_id
        LEFT JOIN frame AS f ON f.id = coalesce(k.user_stack_id, k.id)
        WHERE l.class IN ('exception.unknown', 'line.error') AND coalesce(l.fields ->> 'handled', 'false') <> 'true'
            AND (coalesce(l.exception, '') <> '' OR coalesce(l.message, '') <> '')
        ORDER BY l.class, l.ts_ns NULLS LAST, l.artifact_id, l.line
        LIMIT 5000
        """,
    )
    kinds: dict[str, dict[str, Any]] = {}
    for row in rows:
        exception, message = row["exception"] or "", mask(row["message"] or "")
        incident = incident_of_error(exception, message)
        kind = kinds.setdefault(
            incident,
            {
                "exception": _text(exception),
                "message": _text(message),
                "where_in_code": _text(row["where_in_code"] or ""),
                "n": 0,
                "incident": incident,
            },
        )
        kind["n"] += 1
    return list(kinds.values())[:MAX_ERRORS]


def _processes(case: Case) -> list[dict[str, Any]]:
    return _rows(
        case,
        """
        SELECT p.attempt, p.host, p.rank, p.device, p.exit_code, p.signal,
            EXISTS (
                SELECT 1 FROM coverage AS c WHERE c.proc_id = p.id AND c.capability = 'slice' AND c.n_kept > 0
            ) AS traced
        FROM proc AS p ORDER BY p.id LIMIT $most
        """,
        most=MAX_PROCESSES,
    )


def _times(case: Case) -> dict[str, Any]:
    """When it ran, by its processes; GPU time only where processes are known to have used a device."""
    row = _rows(
        case,
        """
        SELECT min(start_ns) AS started_ns, max(end_ns) AS ended_ns,
            count(DISTINCT (host, device)) FILTER (WHERE device IS NOT NULL) AS n_gpus,
            sum(CASE WHEN device IS NOT NULL AND end_ns > start_ns THEN (end_ns - start_ns) / 3.6e12 END) AS gpu_hours
        FROM proc WHERE start_ns IS NULL OR start_ns > 1000000000000000000
        """,
    )[0]
    known = row["gpu_hours"] is not None
    return {
        **row,
        "n_gpus": row["n_gpus"] or None,
        "gpu_hours_origin": "processes" if known else None,
        "elapsed_s": (row["ended_ns"] - row["started_ns"]) / 1e9 if row["started_ns"] and row["ended_ns"] else None,
    }


def _code_version(case: Case) -> str | None:
    rows = _rows(
        case,
        "SELECT value FROM fact WHERE key IN ('git_commit', 'commit', 'GIT_COMMIT')"
        " GROUP BY value ORDER BY count(*) DESC, value LIMIT 1",
    )
    return str(rows[0]["value"])[:40] if rows else None


def _metrics(case: Case) -> list[dict[str, Any]]:
    """Step metrics of the last attempt's lowest rank that has them, thinned evenly."""
    rows = _rows(
        case,
        """
        WITH given AS (
            SELECT m.name, m.step, m.value, m.row, m.artifact_id,
                dense_rank() OVER (
                    PARTITION BY m.name ORDER BY coalesce(p.attempt, 0) DESC, m.rank NULLS LAST, m.artifact_id
                ) AS choice
            FROM metric AS m LEFT JOIN proc AS p ON p.id = m.proc_id
            WHERE m.step IS NOT NULL AND m.source IN ('metrics', 'log') AND m.entity_id IS NULL
        ),
        counted AS (
            SELECT *, count(*) OVER (PARTITION BY name) AS n,
                count(*) FILTER (WHERE NOT isfinite(value)) OVER (PARTITION BY name) AS n_nonfinite,
                row_number() OVER (PARTITION BY name ORDER BY step, row) - 1 AS place
            FROM given WHERE choice = 1
        )
        SELECT name, n, n_nonfinite, list(step ORDER BY place) AS steps, list(value ORDER BY place) AS samples
        FROM counted
        WHERE isfinite(value) AND place % greatest(1, ceil(n / $most)::BIGINT) = 0
        GROUP BY name, n, n_nonfinite ORDER BY n DESC, name LIMIT $metrics
        """,
        most=MAX_SAMPLES,
        metrics=MAX_METRICS,
    )
    return [{**row, "samples": [float(v) for v in row["samples"] if math.isfinite(v)]} for row in rows]


def _text(value: str) -> str:
    return value if len(value) <= _MAX_TEXT else value[: _MAX_TEXT - 1] + "…"
