"""report.json: the verdict and all findings as a document that programs read. Its keys are a contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from forensics.engine import Judgement
from forensics.finding import Anomaly, Evidence, Finding, RuledOut, Verdict
from forensics.redact import is_masking, mask
from forensics.report import view


def to_json(verdict: Verdict, judgement: Judgement, report: view.Report) -> bytes:
    """report.json: the contract is `verdict` and `findings`; `artifacts`, `warnings` and `job` are for readers."""
    document = {
        "format": "forensics.report/1",
        "generated_by": report.generated_by,
        "redacted": is_masking(),
        "verdict": {
            "status": verdict.status,
            "sentence": report.verdict.sentence,
            "root_causes": [_entry(f) for f in verdict.root_causes],
            "consequences": [_entry(f) for f in verdict.consequences],
            "ruled_out": [{**_silent(r), "evidence": [_place(e) for e in r.evidence]} for r in verdict.ruled_out],
            "no_sign": [_silent(r) for r in verdict.no_sign],
            "not_checked": [
                {"rule": n.rule, "missing": n.missing, "meaning": n.meaning, "capture": n.capture}
                for n in verdict.not_checked
            ],
            "earliest_anomaly": _anomaly(verdict),
            "reasons": [mask(reason) for reason in verdict.reasons],
        },
        "findings": [{**_entry(f), "severity": f.severity} for f in judgement.findings],
        "set_aside": [{**_entry(f), "severity": f.severity, "reason": why} for f, why in judgement.set_aside],
        "artifacts": [
            {"path": a.path, "format": a.format, "bytes": a.n_bytes, "quality": a.quality, "warnings": list(a.warnings)}
            for a in report.artifacts
        ],
        "warnings": [
            {"artifact": w.artifact, "where": w.where, "message": w.message, "hides": w.hides} for w in report.warnings
        ],
        "job": dict(report.job_facts),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2, default=str) + b"\n"


def _entry(finding: Finding) -> Mapping[str, Any]:
    return {
        "id": finding.id,
        "rule": finding.rule,
        "title": finding.title,
        "variant": finding.variant,
        "strength": finding.strength,
        "confidence": finding.confidence,
        "attempt": finding.attempt,
        "rank": finding.rank,
        "step": finding.step,
        "ts_ns": finding.ts_ns,
        "message": mask(finding.message),
        "fix": mask(finding.fix),
        "evidence": [_place(e) for e in finding.evidence],
        "facts": {key: _fact_json(value) for key, value in finding.facts.items()},
        "explained_by": finding.explained_by,
        "fingerprint": finding.fingerprint,
    }


def _silent(rule: RuledOut) -> dict[str, Any]:
    return {"rule": rule.rule, "variant": rule.variant, "reason": mask(rule.reason)}


def _place(evidence: Evidence) -> dict[str, Any]:
    return {key: mask(value) if isinstance(value, str) else value for key, value in evidence.position().items()}


def _fact_json(value: Any) -> Any:
    if isinstance(value, str):
        return mask(value)[:2000]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def _anomaly(verdict: Verdict) -> dict[str, Any] | None:
    if verdict.earliest is None:
        return None
    found = verdict.earliest
    return {**_one_anomaly(found), "not_told_apart": [_one_anomaly(other) for other in found.not_told_apart]}


def _one_anomaly(found: Anomaly) -> dict[str, Any]:
    return {
        "message": mask(found.message),
        "rank": found.rank,
        "ts_ns": found.ts_ns,
        "evidence": _place(found.evidence),
    }
