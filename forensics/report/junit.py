"""Renders an analysis as JUnit XML: a finding fails, a rule that found nothing passes, one not checked is skipped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from forensics.report import text
from forensics.report.view import FindingView, Report

# What XML 1.0 cannot hold, not even as a reference.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(report: Report) -> str:
    """One suite; findings of severity info pass, with their words as output."""
    failing = [f for f in report.findings if f.severity != "info"]
    silent = (*report.ruled_out, *report.no_sign)
    n = len(report.findings) + len(silent) + len(report.not_checked)
    counts = {"tests": str(n), "failures": str(len(failing)), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "forensics", **counts})
    counts["skipped"] = str(len(report.not_checked))  # only a suite may say so
    suite = ElementTree.SubElement(root, "testsuite", {"name": _fit(report.title) or "job", **counts})
    for finding in report.findings:
        _add_finding(suite, finding)
    for passed in silent:
        ElementTree.SubElement(suite, "testcase", {"classname": _fit(passed.rule), "name": _fit(passed.title)})
    for gap in report.not_checked:
        case = ElementTree.SubElement(suite, "testcase", {"classname": _fit(gap.rule), "name": _fit(gap.title)})
        ElementTree.SubElement(case, "skipped", {"message": _fit(f"needs {gap.meaning or gap.missing}")})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _add_finding(suite: ElementTree.Element, finding: FindingView) -> None:
    case = ElementTree.SubElement(suite, "testcase", {"classname": _fit(finding.rule), "name": _name(finding)})
    places = [f"{e.artifact} {text.place(e.kind, e.position)}".strip() for e in finding.evidence[:12]]
    body = "\n".join(_fit(row, 1000) for row in (finding.message, *places, finding.fix) if row)
    if finding.severity == "info":
        ElementTree.SubElement(case, "system-out").text = body
    else:
        about = {"message": _fit(finding.message), "type": _fit(f"{finding.severity} {finding.role}")}
        ElementTree.SubElement(case, "failure", about).text = body


def _name(finding: FindingView) -> str:
    """The title with the fingerprint: the same finding has the same name in the next run."""
    return _fit(f"{finding.title} {finding.fingerprint[:12]}".strip())


def _fit(value: str, limit: int = text.LINE_LIMIT) -> str:
    return _NOT_XML.sub("", text.one_line(value, limit))
