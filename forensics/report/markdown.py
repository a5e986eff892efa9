"""Renders a report as Markdown for a ticket: the verdict, its findings with evidence, and what is not known.

Texts are escaped so that nothing in an artifact becomes markup, a mention, an issue reference or a link.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from forensics.report import text
from forensics.report.chain_svg import chain_sentences
from forensics.report.outline import Branch, outline
from forensics.report.page import gaps, is_prose, unsaid_reason
from forensics.report.terminal import how_sure, single_fault
from forensics.report.view import EvidenceView, FindingView, Report
from forensics.report.witnesses import witnesses

MAX_FINDINGS = 12
MAX_LISTED = 20
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~&$]")
_STATUS = {"root-cause": "Root cause", "independent": "Several independent causes", "healthy": "Healthy"}


def render_markdown(report: Report) -> str:
    """GitHub-flavoured Markdown, a few kB, ending in a newline."""
    verdict = report.verdict
    lines = [f"## {_STATUS.get(verdict.status, 'Cause not established')}: {escape(verdict.sentence, 400)}", ""]
    reason = unsaid_reason(verdict)
    if reason:
        lines += [escape(reason, 1200, start=True), ""]
    lines += _answers(report)
    if verdict.fix:
        fix = [escape(verdict.fix, 2_000, start=True)] if is_prose(verdict.fix) else fence(verdict.fix)
        lines += ["**What to do**", "", *fix, ""]
    if verdict.earliest_anomaly and not verdict.culprit:
        lines += ["**Earliest anomaly**", "", *_place(verdict.earliest_anomaly), ""]
    chain = chain_sentences(report.chain_nodes, report.chain_edges, MAX_LISTED)
    if chain:
        lines += [
            "### From cause to failure",
            "",
            *(f"{i}. {escape(row, start=True)}" for i, row in enumerate(chain, 1)),
            "",
        ]
    lines += _findings(report)
    lines += _not_said(report)
    lines += [f"_{escape(report.generated_by, 120)}, artifacts {code(report.artifacts_name)}_"]
    return "\n".join(lines) + "\n"


def _answers(report: Report) -> list[str]:
    verdict = report.verdict
    fault = single_fault(report)
    rows = [("fault", fault)] if fault else []
    rows += [(label, value) for label, value in verdict.culprit[:8]]
    sure = " ".join(part for part in (how_sure(verdict), _in_brackets(verdict.confidence_note)) if part)
    if sure:
        rows.append(("how sure", sure))
    if not rows:
        return []
    return ["| | |", "|---|---|", *(f"| {escape(a, 60)} | {escape(b, 300)} |" for a, b in rows), ""]


def _in_brackets(note: str) -> str:
    return f"({note})" if note else ""


def _findings(report: Report) -> list[str]:
    read = outline(report.findings)
    lines, n = [], 0
    for finding, depth in _walk([branch for group in read.groups for branch in group.branches]):
        if n == MAX_FINDINGS:
            break
        n += 1
        lines += _finding(finding, depth)
    if n < len(report.findings):
        lines += [f"{text.plural(len(report.findings) - n, 'more finding')} in report.html and report.json.", ""]
    return ["### Findings", "", *lines] if lines else []


def _walk(branches: Sequence[Branch], depth: int = 0) -> Iterator[tuple[FindingView, int]]:
    for branch in branches:
        yield branch.finding, depth
        yield from _walk(branch.children, depth + 1)


def _finding(finding: FindingView, depth: int) -> list[str]:
    where = [f"rank {finding.rank}"] if finding.rank is not None else []
    where += [f"step {finding.step}"] if finding.step is not None else []
    where += [text.moment(finding.ts_ns)] if finding.ts_ns is not None else []
    about = " · ".join([escape(finding.severity, 20), escape(finding.strength, 20), *where])
    lead = "also: " if finding.same_fault else "consequence: " if depth else ""
    lines = [f"- **{lead}{escape(finding.message)}**", f"  {code(finding.rule)} · {about}", ""]
    for label, value in (("Proves", finding.proves), ("Cannot prove", finding.cannot_prove), ("Limits", finding.says)):
        if value and not depth:
            lines += [f"  {label}: {escape(value, 1200)}", ""]
    shown = witnesses(finding) or list(finding.evidence[:1])
    for evidence in shown:
        lines += [f"  {row}" if row else "" for row in _place(evidence)] + [""]
    if len(finding.evidence) > len(shown):
        lines += [f"  {text.plural(len(finding.evidence) - len(shown), 'more place')} in report.html.", ""]
    return lines


def _place(evidence: EvidenceView) -> list[str]:
    note = f" – {escape(evidence.note, 200)}" if evidence.note else ""
    excerpt = ["", *fence(evidence.text, 1_200, 12)] if evidence.text else []
    return [_where(evidence) + note, *excerpt]


def _where(evidence: EvidenceView) -> str:
    position = escape(text.place(evidence.kind, evidence.position))
    return " ".join(part for part in (code(evidence.artifact), position) if part)


def _not_said(report: Report) -> list[str]:
    lines = []
    if report.ruled_out:
        lines += ["### Ruled out by evidence", ""]
        for rule in report.ruled_out[:MAX_LISTED]:
            where = f" ({_where(rule.evidence[0])})" if rule.evidence else ""
            title = escape(rule.title, 200, start=True)
            lines.append(f"- {title} ({code(rule.rule)}): {escape(rule.reason, 300)}{where}")
        lines += [*_more(len(report.ruled_out), "rule"), ""]
    if report.no_sign:
        n = len({one.rule for one in report.no_sign})
        lines += [f"No sign of {text.plural(n, 'other fault')} in what was read; report.json names the rules.", ""]
    missing = gaps(report.not_checked)
    if missing:
        lines += ["### Not checked", "", "Capture it next time:", ""]
        for gap in missing[:MAX_LISTED]:
            lines.append(
                f"- {escape(gap.meaning or gap.missing, 200, start=True)}: {text.plural(len(gap.rules), 'rule')} more"
            )
            lines += ["", *(f"  {row}" for row in fence(gap.capture, 600, 6)), ""] if gap.capture else []
        lines = lines[:-1] if lines[-1] == "" else lines
        lines += [*_more(len(missing), "kind of evidence", "kinds of evidence"), ""]
    if report.warnings:
        lines += ["### What was lost", ""]
        for warning in report.warnings[:MAX_LISTED]:
            where = f"{code(warning.artifact)} {escape(warning.where, 60)}".rstrip()
            lines.append(f"- {where}: {escape(warning.message, 200)}; leaves open: {escape(warning.hides, 200)}")
        lines += [*_more(len(report.warnings), "warning"), ""]
    return lines


def _more(n: int, word: str, words: str | None = None) -> list[str]:
    return (
        [f"- {text.plural(n - MAX_LISTED, 'more ' + word, 'more ' + words if words else None)}"]
        if n > MAX_LISTED
        else []
    )


def escape(value: str, limit: int = text.LINE_LIMIT, *, start: bool = False) -> str:
    """One line of text without any meaning to Markdown. `start`: it begins a line or a list item."""
    shown = _SPECIAL.sub(lambda match: "\\" + match.group(), text.one_line(value, limit))
    shown = shown.replace("://", ":\\//").replace("www.", "www\\.")
    # Forges look for mentions and references after rendering, where a backslash is gone: part them with a word joiner.
    shown = re.sub(r"([@#])(?=\w)", "\\1\u2060", shown)
    # There these would begin a heading, a list or a quote.
    return re.sub(r"^(\d{1,9})?([#+\-.)=>])", r"\1\\\2", shown) if start else shown


def code(value: str, limit: int = 300) -> str:
    """A code span, whatever backticks the text holds. Not for table cells, where a bar would end the cell."""
    shown = text.one_line(value, limit)
    if not shown:
        return ""
    ticks = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{ticks}{pad}{shown}{pad}{ticks}"


def fence(value: str, limit: int = 4_000, lines: int = 40) -> list[str]:
    """A code block whose fence is longer than any run of backticks within."""
    shown = text.block(value, limit, lines)
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return [f"{ticks}text", *shown.split("\n"), ticks]
