"""What a reader is told: fills the report's view and report.json from the case, the verdict and the rules.

All text that comes from artifacts is masked here, so that every rendering shows the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb

from forensics import __version__
from forensics.citations import Citations
from forensics.engine import Judgement
from forensics.finding import Anomaly, Evidence, Finding, Verdict, format_bytes
from forensics.pictures import read_pictures
from forensics.redact import mask
from forensics.report import view
from forensics.rule import Rule
from forensics.states import SEVERITIES

MAX_TIMELINE = 300
MAX_SERIES = 24
MAX_POINTS = 20_000  # read of a series: beyond, the lowest and highest of each stretch of it
_KEY_FACTS = (
    ("torch", "PyTorch"),
    ("cuda_version", "CUDA"),
    ("driver_version", "Driver"),
    ("python", "Python"),
    ("command", "Command"),
)


def brief(
    con: duckdb.DuckDBPyConnection,
    name: str,
    verdict: Verdict,
    judgement: Judgement,
    rules: Sequence[Rule],
    citations: Citations,
    time_limit: str = "",
) -> view.Report:
    """The report's view model. `time_limit`: what is missing because it was reached."""
    known = {rule.id: rule for rule in rules}
    nodes, edges = _chain(verdict)
    return view.Report(
        title=name,
        artifacts_name=name,
        generated_by=f"forensics {__version__}",
        verdict=_verdict(verdict),
        findings=tuple(_finding(f, verdict, known[f.rule]) for f in _ordered(verdict, judgement)),
        chain_nodes=nodes,
        chain_edges=edges,
        ruled_out=tuple(view.RuledOut(r.rule, r.title, r.reason, r.variant) for r in verdict.ruled_out),
        not_checked=tuple(
            view.NotChecked(n.rule, n.title, n.missing, n.meaning, n.capture) for n in verdict.not_checked
        ),
        artifacts=_artifacts(con),
        warnings=(*_cut_off(time_limit), *_set_aside(judgement), *_unlisted(judgement), *_warnings(con)),
        job_facts=_job_facts(con),
        processes=_processes(con),
        timeline=_timeline(con, citations, verdict),
        series=_series(con),
        pictures=read_pictures(con),
        time_limit=time_limit,
    )


def _cut_off(time_limit: str) -> list[view.WarningView]:
    return [view.WarningView("", "", time_limit, "what these would have shown")] if time_limit else []


def _ordered(verdict: Verdict, judgement: Judgement) -> list[Finding]:
    chosen = [*verdict.root_causes, *verdict.consequences]
    ids = {f.id for f in chosen}
    rest = sorted(
        (f for f in judgement.findings if f.id not in ids), key=lambda f: (SEVERITIES.index(f.severity), f.id)
    )
    return [*chosen, *rest]


def _verdict(verdict: Verdict) -> view.VerdictView:
    root = verdict.root_causes[0] if verdict.root_causes else None
    earliest = verdict.earliest
    return view.VerdictView(
        status=verdict.status,
        sentence=mask(verdict.sentence),
        confidence=root.confidence if root else None,
        confidence_range=confidence_range(root),
        confidence_note=confidence_note(root),
        strength=root.strength if root else "",
        culprit=_culprit(root) if root else (),
        fix=root.fix if root else "",
        not_established_reason=mask(" ".join(verdict.reasons[1:])) if verdict.status == "not-established" else "",
        earliest_anomaly=_evidence(earliest.evidence, note=_earliest_note(earliest)) if earliest else None,
    )


def _earliest_note(earliest: Anomaly) -> str:
    if earliest.weak:
        return "the rarest line near the end: where to look, not a cause"
    others = ", ".join(other.evidence.label() for other in earliest.not_told_apart)
    return "earliest sign of trouble" + (f"; not told apart by the clocks: {others}" if others else "")


def confidence_note(root: Finding | None) -> str:
    """How the confidence of a root cause came about."""
    if root is None:
        return ""
    from forensics.ledger import calibration

    measured = calibration()
    if root.confidence is None:
        return "not calibrated: no labelled case has this strength of proof"
    n = measured["counts"][root.strength]
    return (
        f"{n['right']} of {n['of']} verdicts on evidence of this grade ({root.strength}) were right; {measured['note']}"
    )


def confidence_range(root: Finding | None) -> tuple[float, float] | None:
    """The 95 % interval of that share (Wilson 1927): few verdicts leave a wide one."""
    from forensics.ledger import calibration

    if root is None or root.confidence is None:
        return None
    count = calibration()["counts"][root.strength]
    n, z = count["of"], 1.96
    if not n:
        return None
    share, shrink = count["right"] / n, 1 + z * z / n
    middle = (share + z * z / (2 * n)) / shrink
    reach = z / shrink * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return min(middle - reach, root.confidence), max(middle + reach, root.confidence)


def _culprit(root: Finding) -> tuple[tuple[str, str], ...]:
    rows = []
    if root.rank is not None:
        rows.append(("rank", str(root.rank)))
    if root.step is not None:
        rows.append(("step", str(root.step)))
    for key, label in (
        ("op", "op"),
        ("where_in_code", "code"),
        ("module", "module"),
        ("host", "host"),
        ("device", "device"),
    ):
        if root.facts.get(key) is not None:
            rows.append((label, mask(str(root.facts[key]))))
    if root.host and not any(label == "host" for label, _ in rows):
        rows.append(("host", root.host))
    if root.evidence:
        rows.append(("evidence", root.evidence[0].label()))
    return tuple(rows)


def _evidence(evidence: Evidence, note: str = "") -> view.EvidenceView:
    said = note or mask(evidence.note)
    for kind in ("line", "byte", "row"):
        position = getattr(evidence, kind)
        if position is not None:
            return view.EvidenceView(mask(evidence.artifact), kind, position, mask(evidence.text), said)
    return view.EvidenceView(mask(evidence.artifact), "", None, mask(evidence.text), said)


def _finding(finding: Finding, verdict: Verdict, rule: Rule) -> view.FindingView:
    variant = next(v for v in rule.variants if v.name == finding.variant)
    roots = {f.id for f in verdict.root_causes}
    role = "other"
    if finding.id in roots:
        role = "independent" if verdict.status == "independent" else "root"
    elif finding in verdict.consequences:
        role = "consequence"
    return view.FindingView(
        id=finding.id,
        rule=finding.rule,
        title=finding.title,
        variant=finding.variant,
        severity=finding.severity,
        strength=finding.strength,
        role=role,
        message=mask(finding.message),
        confidence=finding.confidence if role in {"root", "independent"} else None,
        rank=finding.rank,
        step=finding.step,
        ts_ns=finding.ts_ns,
        proves=rule.proves,
        cannot_prove=rule.cannot_prove,
        says=variant.says,
        fix=finding.fix,
        references=tuple(rule.references),
        explained_by=finding.explained_by,
        evidence=tuple(_evidence(e) for e in finding.evidence),
        query=variant.sql or f"Python rule {rule.id}; evidence: {', '.join(variant.needs)}",
        query_language="sql" if variant.sql else "inputs",
        thresholds=tuple(view.Threshold(t.name, f"{t.value:g}", t.unit, t.why) for t in rule.thresholds.values()),
        facts=tuple((key, _fact_text(key, value)) for key, value in finding.facts.items()),
        fingerprint=finding.fingerprint,
    )


def _fact_text(key: str, value: Any) -> str:
    if key.endswith("_bytes") and isinstance(value, int | float):
        return f"{format_bytes(value)} ({value:,.0f} B)"
    return mask(str(value))[:2000]


def _chain(verdict: Verdict) -> tuple[tuple[view.ChainNode, ...], tuple[view.ChainEdge, ...]]:
    shown = [*verdict.root_causes, *verdict.consequences][:40]
    ids = {f.id for f in shown}
    nodes = tuple(view.ChainNode(f"f{f.id}", f.title, _where(f), "finding", f.severity, f.id) for f in shown)
    edges = tuple(
        view.ChainEdge(f"f{f.explained_by}", f"f{f.id}", f.explained_how.split(";")[-1].strip())
        for f in shown
        if f.explained_by in ids
    )
    return nodes, edges


def _where(finding: Finding) -> str:
    parts = [finding.rule]
    if finding.rank is not None:
        parts.append(f"rank {finding.rank}")
    if finding.step is not None:
        parts.append(f"step {finding.step}")
    return " · ".join(parts)


def _artifacts(con: duckdb.DuckDBPyConnection) -> tuple[view.ArtifactView, ...]:
    rows = con.execute(
        """
        WITH
        named AS (
            SELECT DISTINCT
                c.artifact_id,
                p.id,
                CASE WHEN p.rank IS NULL THEN 'process ' || p.id ELSE 'rank ' || p.rank END AS name
            FROM coverage AS c JOIN proc AS p ON p.id = c.proc_id
        ),
        counted AS (
            SELECT artifact_id, capability, sum(n_kept) AS n_kept
            FROM coverage GROUP BY artifact_id, capability HAVING sum(n_kept) > 0
        )
        SELECT a.path, a.format, a.bytes, a.quality,
            (SELECT string_agg(n.name, ', ' ORDER BY n.id) FROM named AS n WHERE n.artifact_id = a.id),
            (SELECT string_agg(c.capability || ' ' || c.n_kept, ', ' ORDER BY c.capability)
             FROM counted AS c WHERE c.artifact_id = a.id),
            (SELECT list(w.message ORDER BY w.code, w.message) FROM ingest_warning AS w WHERE w.artifact_id = a.id)
        FROM artifact AS a ORDER BY a.id
        """
    ).fetchall()
    return tuple(
        view.ArtifactView(
            path, kind or "unknown", size, quality, procs or "", counts or "", tuple(mask(w) for w in warns or ())
        )
        for path, kind, size, quality, procs, counts, warns in rows
    )


def _set_aside(judgement: Judgement) -> list[view.WarningView]:
    return [
        view.WarningView(
            f.evidence[0].artifact if f.evidence else "", f.rule, f"set aside: {mask(f.message)}", mask(why)
        )
        for f, why in judgement.set_aside
    ]


def _unlisted(judgement: Judgement) -> list[view.WarningView]:
    hides = "which processes these are of; the table rule_run of the case names them"
    return [
        view.WarningView("", rule, f"{n} further findings are counted, not listed", hides)
        for rule, n in sorted(judgement.n_unlisted.items())
        if n
    ]


def _warnings(con: duckdb.DuckDBPyConnection) -> tuple[view.WarningView, ...]:
    rows = con.execute(
        "SELECT a.path, w.line, w.byte, w.message, w.hides"
        " FROM ingest_warning AS w JOIN artifact AS a ON a.id = w.artifact_id"
        " ORDER BY a.id, w.line, w.byte, w.code, w.message"
    ).fetchall()
    return tuple(
        view.WarningView(
            path, f"line {line}" if line is not None else f"byte {byte}" if byte is not None else "", mask(text), hides
        )
        for path, line, byte, text, hides in rows
    )


def _job_facts(con: duckdb.DuckDBPyConnection) -> tuple[tuple[str, str], ...]:
    one = con.execute(
        "SELECT count(*), count(DISTINCT rank), max(world_size), count(DISTINCT host), max(attempt) + 1 FROM proc"
    ).fetchone()
    procs, ranks, world, hosts, attempts = one or (0, 0, None, 0, None)
    facts = [("Processes", str(procs))]
    if ranks:
        facts.append(("Ranks seen", f"{ranks} of {world}" if world else str(ranks)))
    if hosts:
        facts.append(("Hosts", str(hosts)))
    if attempts and attempts > 1:
        facts.append(("Attempts", str(attempts)))
    for key, label in _KEY_FACTS:
        values = con.execute(
            "SELECT DISTINCT value FROM fact WHERE lower(key) = ? ORDER BY value LIMIT 3", [key]
        ).fetchall()
        if values:
            short = [v[0].split(" (")[0] if key == "python" else v[0] for v in values]
            facts.append((label, mask(", ".join(short))[:200]))
    steps = con.execute("SELECT max(step) FROM step").fetchone()
    if steps and steps[0] is not None:
        facts.append(("Last step", str(steps[0])))
    return tuple(facts)


def _processes(con: duckdb.DuckDBPyConnection) -> tuple[view.ProcessView, ...]:
    rows = con.execute(
        """
        WITH
        moment AS (
            SELECT proc_id, ts_ns FROM log_event
            UNION ALL SELECT proc_id, ts_ns FROM slice
            UNION ALL SELECT proc_id, ts_ns FROM sample
        ),
        span AS (
            SELECT proc_id, min(ts_ns) AS lo, max(ts_ns) AS hi FROM moment WHERE ts_ns > 0 GROUP BY proc_id
        ),
        ending AS (
            SELECT proc_id,
                min(list_position(['proof', 'strong', 'indication'], strength) || result || ': ' || detail) AS words
            FROM outcome GROUP BY proc_id
        )
        SELECT p.attempt, p.host, p.rank, coalesce(p.start_ns, t.lo), coalesce(p.end_ns, t.hi), e.words
        FROM proc AS p
        LEFT JOIN span AS t ON t.proc_id = p.id
        LEFT JOIN ending AS e ON e.proc_id = p.id
        ORDER BY p.id LIMIT 5000
        """
    ).fetchall()
    return tuple(
        view.ProcessView(attempt, host or "", rank, mask(str(result or "0unknown"))[1:300], first, last)
        for attempt, host, rank, first, last, result in rows
    )


def _timeline(con: duckdb.DuckDBPyConnection, citations: Citations, verdict: Verdict) -> tuple[view.Moment, ...]:
    rows = con.execute(
        """
        SELECT e.ts_ns, e.rank, coalesce(e.class, e.role),
            coalesce(e.exception || ': ', '') || coalesce(e.message, e.signature), e.artifact_id, e.line, e.byte
        FROM log AS e JOIN artifact AS a ON a.id = e.artifact_id
        WHERE e.ts_ns IS NOT NULL AND e.role IN ('primary', 'symptom', 'secondary')
          -- One axis: times of clocks that cannot be compared with it would stand in an order that nobody knows.
          AND a.timeline IS NOT DISTINCT FROM (
              SELECT b.timeline FROM log_event AS f JOIN artifact AS b ON b.id = f.artifact_id
              WHERE f.ts_ns IS NOT NULL AND f.role IN ('primary', 'symptom', 'secondary')
              GROUP BY b.timeline ORDER BY count(*) DESC, b.timeline LIMIT 1
          )
        ORDER BY e.ts_ns, e.artifact_id, e.row LIMIT ?
        """,
        [MAX_TIMELINE],
    ).fetchall()
    moments, shown_on = [], {row[4] for row in rows}
    for ts, rank, kind, label, artifact_id, line, byte in rows:
        cited = citations.cite({"artifact_id": artifact_id, "line": line, "byte": byte, "text": label})
        shown = mask(" ".join(str(label).split()))[:240]
        moments.append(view.Moment(ts, rank, kind, shown, _evidence(cited) if cited else None))
    # The cause stands in its place, also where no log has a line of it.
    axis = con.execute("SELECT DISTINCT timeline FROM artifact WHERE id = ANY(?)", [list(shown_on)]).fetchall()
    for root in verdict.root_causes:
        if root.ts_ns is not None and root.evidence and (not axis or (root.timeline,) in axis):
            place = _evidence(root.evidence[0])
            moments.append(view.Moment(root.ts_ns, root.rank, "root cause", mask(root.message)[:240], place))
    return tuple(sorted(moments, key=lambda moment: moment.ts_ns))


def _series(con: duckdb.DuckDBPyConnection) -> tuple[view.SeriesView, ...]:
    rows = con.execute(
        """
        WITH
        reading AS (
            SELECT name, rank, step, value, artifact_id, row FROM metric
            WHERE name IN ('loss', 'grad_norm', 'loss_scale') AND step IS NOT NULL
            UNION ALL
            SELECT 'health_score', rank, step, score, -1, -1 FROM health_score
            WHERE proc_id IN (SELECT proc_id FROM health_part WHERE score < 100)
        ),
        drawn AS (
            SELECT name, rank, count(*) AS n_points FROM reading
            GROUP BY name, rank HAVING count(DISTINCT step) > 1
            ORDER BY name = 'health_score', name DESC, rank LIMIT $n_series
        ),
        point AS (
            SELECT m.name, m.rank, m.step, m.value, m.artifact_id, m.row,
                row_number() OVER (PARTITION BY m.name, m.rank ORDER BY m.step, m.artifact_id, m.row)
                    // greatest(2 * d.n_points // $n_points, 1) AS bucket
            FROM reading AS m JOIN drawn AS d ON d.name = m.name AND d.rank IS NOT DISTINCT FROM m.rank
        )
        SELECT name, rank, step, value FROM point
        QUALIFY NOT isfinite(value)
            OR value = min(value) FILTER (WHERE isfinite(value)) OVER (PARTITION BY name, rank, bucket)
            OR value = max(value) FILTER (WHERE isfinite(value)) OVER (PARTITION BY name, rank, bucket)
        ORDER BY name = 'health_score', name DESC, rank, step, artifact_id, row
        """,
        {"n_series": MAX_SERIES, "n_points": MAX_POINTS},
    ).fetchall()
    grouped: dict[tuple[str, int | None], dict[float, float]] = {}
    for name, rank, step, value in rows:
        grouped.setdefault((name, rank), {})[float(step)] = value
    return tuple(view.SeriesView(name, "", rank, tuple(points.items())) for (name, rank), points in grouped.items())
