"""What a reader is told: fills the report's view and report.json from the case, the verdict and the rules.

All text that comes from artifacts is masked here, so that every rendering shows the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import duckdb

from forensics import __version__, casebook
from forensics.citations import Citations
from forensics.diagnosis import SAME_FAULT
from forensics.engine import Judgement
from forensics.finding import GRADES, Anomaly, Finding, RuledOut, Verdict, format_bytes
from forensics.pictures import read_pictures, thresholds
from forensics.redact import mask
from forensics.report import view
from forensics.report.text import number
from forensics.rule import Rule
from forensics.states import SEVERITIES


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
    ordered = _ordered(verdict, judgement)
    return view.Report(
        title=mask(name),
        artifacts_name=mask(name),
        generated_by=f"forensics {__version__}",
        verdict=_verdict(verdict),
        findings=tuple(_finding(f, verdict, known[f.rule]) for f in ordered),
        chain_nodes=nodes,
        chain_edges=edges,
        ruled_out=tuple(_silent(r) for r in verdict.ruled_out),
        no_sign=tuple(_silent(r) for r in verdict.no_sign),
        not_checked=tuple(
            view.NotChecked(n.rule, n.title, n.missing, n.meaning, n.capture) for n in verdict.not_checked
        ),
        artifacts=casebook.artifacts(con),
        warnings=(*_cut_off(time_limit), *_set_aside(judgement), *_unlisted(judgement), *casebook.warnings(con)),
        job_facts=casebook.job_facts(con),
        processes=casebook.processes(con),
        timeline=casebook.timeline(con, citations, verdict),
        series=casebook.series(con),
        pictures=(*read_pictures(con, verdict.root_causes), *thresholds.read(con, ordered, known)),
        time_limit=time_limit,
    )


def _silent(rule: RuledOut) -> view.RuledOut:
    places = tuple(casebook.evidence_view(e) for e in rule.evidence)
    return view.RuledOut(rule.rule, rule.title, mask(rule.reason), rule.variant, places)


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
        earliest_anomaly=casebook.evidence_view(earliest.evidence, note=_earliest_note(earliest)) if earliest else None,
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
    if root.confidence is None or root.grade is None:
        return "not calibrated: no labelled case has such a cause"
    n = measured["counts"][root.grade]
    return f"Of {n['of']} verdicts like this one ({GRADES[root.grade]}) {n['right']} were right; {measured['note']}"


def confidence_range(root: Finding | None) -> tuple[float, float] | None:
    """The 95 % interval of that share (Wilson 1927): few verdicts leave a wide one."""
    from forensics.ledger import calibration

    if root is None or root.confidence is None or root.grade is None:
        return None
    count = calibration()["counts"][root.grade]
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
        value = root.facts.get(key)
        if value is not None and mask(str(value)) not in [known for _, known in rows[-1:]]:
            rows.append((label, mask(str(value))))
    if root.host and not any(label == "host" for label, _ in rows):
        rows.append(("host", mask(root.host)))
    if root.evidence:
        rows.append(("evidence", mask(root.evidence[0].label())))
    return tuple(rows)


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
        proves=mask(finding.proves),
        cannot_prove=mask(finding.cannot_prove),
        says=variant.says,
        fix=finding.fix,
        references=tuple(rule.references),
        explained_by=finding.explained_by,
        same_fault=finding.explained_how.startswith(SAME_FAULT),
        evidence=tuple(casebook.evidence_view(e) for e in finding.evidence),
        query=variant.sql or f"Python rule {rule.id}; evidence: {', '.join(variant.needs)}",
        query_language="sql" if variant.sql else "inputs",
        thresholds=tuple(
            view.Threshold(
                t.name, f"{t.value:g}", t.unit, t.why, "" if (m := t.measure(finding.facts)) is None else number(m)
            )
            for t in rule.thresholds.values()
        ),
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


def _set_aside(judgement: Judgement) -> list[view.WarningView]:
    return [
        view.WarningView(
            mask(f.evidence[0].artifact) if f.evidence else "", f.rule, f"{view.SET_ASIDE}{mask(f.message)}", mask(why)
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
