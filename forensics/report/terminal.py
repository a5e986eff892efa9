"""Renders the verdict for a terminal: a few lines of plain text, coloured only when asked."""

from __future__ import annotations

import textwrap

from forensics.report import text
from forensics.report.outline import outline
from forensics.report.page import gaps, is_prose, unsaid_reason
from forensics.report.view import SET_ASIDE, EvidenceView, FindingView, Report, VerdictView
from forensics.report.witnesses import first_of

_STATUS = {"root-cause": "ROOT CAUSE", "independent": "INDEPENDENT CAUSES", "healthy": "HEALTHY"}
_COLOURS = {"root-cause": "1;31", "independent": "1;31", "healthy": "1;32"}
_LABEL = 12  # columns
_MAX_KINDS = 4
_MAX_PLACES = 3
_BRIEF = 160


def render_terminal(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """A few lines without a final newline. Control characters of artifacts are shown, never sent to the terminal."""
    pen = _Pen(colour, max(width, 40))
    verdict = report.verdict
    status = _STATUS.get(verdict.status, "NOT ESTABLISHED")
    sure = how_sure(verdict)
    lines = [pen.paint(status, _COLOURS.get(verdict.status, "1;35")) + (f"  {sure}" if sure else "")]
    lines += pen.paragraph(verdict.sentence, "1")
    reason = unsaid_reason(verdict)
    lines += pen.paragraph(reason) if reason else []
    lines.append("")
    fault = single_fault(report)
    lines += pen.row("fault", fault) if fault else []
    if verdict.confidence_note:
        lines += pen.row("how sure" if sure else "rests on", text.one_line(verdict.confidence_note, 300))
    if verdict.culprit:
        lines += pen.row("where", ", ".join(f"{label} {value}" for label, value in verdict.culprit[:8]))
    causes = [f for f in report.findings if f.role in {"root", "independent"}]
    lines += _causes(pen, causes, None if verdict.status == "healthy" else verdict.earliest_anomaly)
    if verdict.fix:
        lines += pen.row("fix", verdict.fix) if is_prose(verdict.fix) else pen.rows("fix", verdict.fix)
    consequences = [f for f in report.findings if f.role == "consequence"]
    for label, met in (
        ("as well", [f for f in consequences if f.same_fault]),
        ("led to" if causes else "symptoms", [f for f in consequences if not f.same_fault]),
    ):
        for i, said in enumerate(_consequences(met)):
            lines += pen.row("" if i else label, said)
    others = _others(report)
    if others:
        lines += pen.row("also", others)
    covered = [w for w in report.warnings if w.message.startswith(SET_ASIDE)]
    if covered:
        kinds = ", ".join(dict.fromkeys(w.where for w in covered[:_MAX_KINDS]))
        lines += pen.row(
            "set aside", f"{text.plural(len(covered), 'finding')}, by suppressions of the settings: {kinds}"
        )
    lines += pen.row("looked at", _looked_at(report))
    lines += pen.row("time limit", report.time_limit) if report.time_limit else []
    if verdict.status == "not-established":
        for gap in [gap for gap in gaps(report.not_checked) if gap.capture][:3]:
            lines += pen.row("next time", text.one_line(gap.capture, 200))
    return "\n".join(lines)


def single_fault(report: Report) -> str:
    """The kind of the one cause in plain words, where the verdict's sentence tells how it showed; "" of several."""
    causes = [f for f in report.findings if f.role in {"root", "independent"}]
    return causes[0].title if len(causes) == 1 else ""


def how_sure(verdict: VerdictView) -> str:
    """The figure with its interval, apart from the grade of the evidence, which is no probability."""
    sure, bounds = text.percent(verdict.confidence), text.percent_range(verdict.confidence_range)
    grade = f"evidence: {text.one_line(verdict.strength, 20)}" if verdict.strength else ""
    return ", ".join(part for part in (f"{sure} sure" if sure else "", bounds, grade) if part)


def _causes(pen: _Pen, causes: list[FindingView], earliest: EvidenceView | None) -> list[str]:
    lines = []
    if len(causes) > 1:
        for finding in causes[:5]:
            lines += pen.row("cause", finding.message)
        if len(causes) > 5:
            lines += pen.row("", f"and {text.plural(len(causes) - 5, 'more cause')}")
    for place in first_of(causes[:3])[:_MAX_PLACES] or ([earliest] if earliest else []):
        where = " ".join(part for part in (place.artifact, text.place(place.kind, place.position)) if part)
        where = text.one_line(where, 300)
        lines += pen.row("evidence", f"{where}: {text.one_line(place.note, 120)}" if place.note else where)
        first = place.text.strip().split("\n", 1)[0]
        lines += pen.row("", text.one_line(first, 200)) if first else []
    return lines


def _consequences(consequences: list[FindingView]) -> list[str]:
    """Each kind once: by its message where it came once, else by its title with the ranks that it met."""
    kinds: dict[str, list[FindingView]] = {}
    for finding in consequences:
        kinds.setdefault(finding.title, []).append(finding)
    said = []
    for title, met in list(kinds.items())[:_MAX_KINDS]:
        ranks = sorted({f.rank for f in met if f.rank is not None})
        whose = f": rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:8]))}" if ranks else ""
        more = ", …" if len(ranks) > 8 else ""
        said.append(_brief(met[0].message) if len(met) == 1 else f"{title} {len(met):,} times{whose}{more}")
    more_kinds = len(kinds) - len(said)
    return [*said, f"and {text.plural(more_kinds, 'more kind')}"] if more_kinds else said


def _brief(message: str) -> str:
    """A message in at most 160 characters, which is as much as two lines hold."""
    shown = text.one_line(message, 10_000)
    return shown if len(shown) <= _BRIEF else shown[: _BRIEF - 2].rstrip() + " …"


def _others(report: Report) -> str:
    read = outline(report.findings)
    others = [branch.finding for group in read.groups if group.role == "other" for branch in group.branches]
    if not others:
        return ""
    more = f" (and {len(others) - 2:,} more)" if len(others) > 2 else ""
    return "; ".join(f"{f.severity}: {_brief(f.message)}" for f in others[:2]) + more


def _looked_at(report: Report) -> str:
    unclean = sum(artifact.quality != "complete" for artifact in report.artifacts)
    artifacts = text.plural(len(report.artifacts), "artifact") + (f" ({unclean:,} not complete)" if unclean else "")
    return (
        f"{artifacts}; {text.plural(len(report.ruled_out), 'alternative')} ruled out by evidence, "
        f"no sign of {len(report.no_sign):,} more, {report.n_not_checked:,} not checked"
    )


class _Pen:
    def __init__(self, colour: bool, width: int) -> None:
        self._colour = colour
        self._width = width

    def paint(self, value: str, code: str) -> str:
        return f"\x1b[{code}m{value}\x1b[0m" if self._colour else value

    def paragraph(self, value: str, code: str = "") -> list[str]:
        lines = textwrap.wrap(text.one_line(value, 1200), self._width - 2)
        return [f"  {self.paint(row, code) if code else row}" for row in lines]

    def row(self, label: str, value: str) -> list[str]:
        """One labelled entry, wrapped under itself."""
        wrapped = textwrap.wrap(text.one_line(value, 1200), self._width - _LABEL - 2, break_on_hyphens=False) or [""]
        return self._labelled(label, wrapped)

    def rows(self, label: str, value: str) -> list[str]:
        """An entry whose line ends matter; long lines stay whole so that they can be copied."""
        return self._labelled(label, text.block(value, 2_000, 12).replace("\t", "    ").split("\n"))

    def _labelled(self, label: str, rows: list[str]) -> list[str]:
        head = self.paint(f"{label:<{_LABEL}}", "2") if label else " " * _LABEL
        return [f"  {head if i == 0 else ' ' * _LABEL}{row}".rstrip() for i, row in enumerate(rows)]
