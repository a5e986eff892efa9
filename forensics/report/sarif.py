"""Renders findings as SARIF 2.1.0, which code hosts show beside the files that findings name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from forensics.report import text
from forensics.report.view import EvidenceView, FindingView, Report

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
MAX_PLACES = 12
_LEVELS = {"critical": "error", "high": "error", "medium": "warning", "info": "note"}


def render_sarif(report: Report) -> str:
    """One run with every finding as a result; JSON text ending in a newline."""
    name, _, version = report.generated_by.partition(" ")
    rules = list(dict.fromkeys(f.rule for f in report.findings))
    driver = {"name": name, "version": version, "rules": [_rule(rule, report.findings) for rule in rules]}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "properties": {"verdict": report.verdict.status, "sentence": text.one_line(report.verdict.sentence)},
        "results": [_result(f, rules.index(f.rule)) for f in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(rule: str, findings: Sequence[FindingView]) -> dict[str, Any]:
    one = next(f for f in findings if f.rule == rule)
    described: dict[str, Any] = {"id": rule, "shortDescription": {"text": text.one_line(one.title) or rule}}
    if one.proves:
        described["fullDescription"] = {"text": text.one_line(one.proves, 1000)}
    if one.references and one.references[0].startswith("https://"):
        described["helpUri"] = one.references[0]
    return described


def _result(finding: FindingView, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS.get(finding.severity, "warning"),
        "message": {"text": text.one_line(finding.message, 1000) or finding.rule},
        "locations": [_location(e) for e in finding.evidence[:1]],
        "relatedLocations": _related(finding.evidence[1:MAX_PLACES]),
        "properties": {
            "severity": finding.severity,
            "strength": finding.strength,
            "role": finding.role,
            "confidence": finding.confidence,
            "rank": finding.rank,
            "step": finding.step,
        },
    }
    if finding.fingerprint:
        result["partialFingerprints"] = {"forensics/v1": finding.fingerprint}
    return result


def _related(places: Sequence[EvidenceView]) -> list[dict[str, Any]]:
    """Each place once, as the schema asks: two findings of a damaged file may cite it alike."""
    found: list[dict[str, Any]] = []
    for place in map(_location, places):
        if place not in found:
            found.append(place)
    return found


def _location(evidence: EvidenceView) -> dict[str, Any]:
    """Lines and bytes are regions of the file; a row is said as a logical location, since SARIF has no such region."""
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(evidence.artifact)}}
    location: dict[str, Any] = {"physicalLocation": physical}
    if evidence.kind == "line" and evidence.position:
        physical["region"] = {"startLine": evidence.position}
    elif evidence.kind == "byte" and evidence.position is not None:
        physical["region"] = {"byteOffset": evidence.position, "byteLength": 0}
    elif evidence.kind == "row" and evidence.position is not None:
        location["logicalLocations"] = [{"name": f"row {evidence.position}", "kind": "element"}]
    if evidence.note:
        location["message"] = {"text": text.one_line(evidence.note)}
    return location


def _uri(path: str) -> str:
    from urllib.parse import quote

    return quote(path.encode("utf-8", "replace"), safe="/")
