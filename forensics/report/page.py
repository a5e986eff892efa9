"""Prepares a report for the page: bounded lists, groups, counts and drawings; the template only writes them down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from forensics.report.chain_svg import Chain, chain, chain_sentences
from forensics.report.exhibit import Exhibit
from forensics.report.exhibits import exhibits
from forensics.report.lanes_svg import Lanes, lanes
from forensics.report.outline import Branch, Outline, outline
from forensics.report.series_svg import Chart, charts
from forensics.report.view import (
    ArtifactView,
    EvidenceView,
    FindingView,
    Moment,
    NotChecked,
    ProcessView,
    Report,
    RuledOut,
    VerdictView,
    WarningView,
)
from forensics.report.witnesses import witnesses
from forensics.states import QUALITIES

T = TypeVar("T")

MAX_ROWS = 300  # of a table
MAX_MOMENTS = 200
MAX_FACTS = 60
HEADLINE = 170
_LITTLE = 30  # characters more are not worth a paragraph of their own
_A_SENTENCE = 8  # spaces: a line of so many words that ends in a stop is no command


@dataclass(frozen=True)
class Bounded(Generic[T]):
    items: Sequence[T]
    n_hidden: int

    @property
    def n(self) -> int:
        return len(self.items) + self.n_hidden


@dataclass(frozen=True)
class Gap:
    """A capability that was missing, with the rules that it kept from running."""

    missing: str
    meaning: str
    capture: str
    rules: list[NotChecked]


@dataclass(frozen=True)
class Unseen:
    """Rules that found nothing in the same evidence."""

    reason: str
    rules: list[RuledOut]


@dataclass(frozen=True)
class Ending:
    outcome: str
    n: int


@dataclass(frozen=True)
class Share:
    name: str
    n: int
    x: float  # of 100
    width: float


@dataclass(frozen=True)
class Page:
    report: Report
    headline: str
    more: str  # what the verdict's sentence says beyond it
    reason: str  # why nothing is established
    outline: Outline
    lead: FindingView | None  # the finding that the verdict rests on
    culprit: Sequence[tuple[str, str]]
    shown: list[EvidenceView]  # the places that show the one cause, where they can be read
    n_causes: int
    causes: list[FindingView]
    chain: Chain | None
    chain_words: list[str]
    artifact_shares: list[Share]
    rule_shares: list[Share]
    gaps: list[Gap]
    may_settle: list[Gap]  # what to capture when there is no cause
    endings: list[Ending]
    ruled_out: Bounded[RuledOut]
    no_sign: list[Unseen]
    artifacts: Bounded[ArtifactView]
    warnings: Bounded[WarningView]
    processes: Bounded[ProcessView]
    timeline: Bounded[Moment]
    job_facts: Bounded[tuple[str, str]]
    lanes: Lanes | None
    charts: list[Chart]
    n_charts_hidden: int
    lead_exhibit: Exhibit | None  # the picture that shows the cause
    exhibits: list[Exhibit]


def prepare(report: Report) -> Page:
    read = outline(report.findings)
    failed = report.verdict.status in {"root-cause", "independent"}
    causes = [f for f in report.findings if f.role in {"root", "independent"}] if failed else []
    moments = bounded(report.timeline, MAX_MOMENTS)
    drawn, n_hidden = charts(report.series)
    missing = gaps(report.not_checked)
    headline, more = parted(report.verdict.sentence)
    shown = witnesses(causes[0]) if len(causes) == 1 else []
    lead_exhibit, others = exhibits(report.pictures, causes[0].rule if causes else "")
    return Page(
        report=report,
        headline=headline,
        more=more,
        reason=unsaid_reason(report.verdict),
        outline=read,
        lead=causes[0] if causes else None,
        culprit=_without_place(report.verdict.culprit) if shown else report.verdict.culprit,
        shown=shown,
        n_causes=len(causes),
        causes=causes[:6],
        # Without an edge there is nothing that the first screen does not say already.
        chain=chain(report.chain_nodes, report.chain_edges, anchors(read)) if report.chain_edges else None,
        chain_words=chain_sentences(report.chain_nodes, report.chain_edges),
        artifact_shares=shares(_by_quality(report.artifacts)),
        rule_shares=shares(_by_outcome(report)),
        gaps=missing,
        may_settle=[gap for gap in missing if gap.capture][:3] if report.verdict.status == "not-established" else [],
        endings=endings(report.processes),
        ruled_out=bounded(report.ruled_out),
        no_sign=unseen(report.no_sign),
        artifacts=bounded(report.artifacts),
        warnings=bounded(report.warnings),
        processes=bounded(report.processes),
        timeline=moments,
        job_facts=bounded(report.job_facts, MAX_FACTS),
        lanes=lanes(moments.items, report.processes),
        charts=drawn,
        n_charts_hidden=n_hidden,
        lead_exhibit=lead_exhibit,
        exhibits=others,
    )


def _without_place(culprit: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """What is shown below needs no second mention, unless nothing else is known."""
    return [row for row in culprit if row[0] != "evidence"] or culprit


def parted(sentence: str) -> tuple[str, str]:
    """A sentence too long for a heading in two, at a semicolon or colon: what comes first is what matters most."""
    at = max(sentence.rfind("; ", 0, HEADLINE), sentence.rfind(": ", HEADLINE // 3, HEADLINE))
    if len(sentence) <= HEADLINE + _LITTLE or at < HEADLINE // 4:
        return sentence, ""
    more = sentence[at + 2 :]
    if more.partition(" ")[0].isalpha():  # a name stays as it is
        more = more[0].upper() + more[1:]
    return sentence[:at], more + ("" if more.endswith(".") else ".")


def unsaid_reason(verdict: VerdictView) -> str:
    """Why nothing is established, where the verdict's sentence does not say it already."""
    reason = verdict.not_established_reason
    return "" if reason.strip().rstrip(".") in verdict.sentence else reason


def is_prose(value: str) -> bool:
    """Whether a fix is sentences to read; anything else is set like code, its line ends kept."""
    rows = [row for row in value.strip().split("\n", 40) if row.strip()]
    begins = bool(rows) and (rows[0][0].isupper() or (len(rows) == 1 and rows[0].count(" ") >= _A_SENTENCE))
    sentence = begins and rows[-1].rstrip().endswith((".", ")"))
    return sentence and all(row[0].isalnum() or row[0] in "(\"'" for row in rows) and " " in rows[0]


def bounded(items: Sequence[T], limit: int = MAX_ROWS) -> Bounded[T]:
    return Bounded(items[:limit], max(0, len(items) - limit))


def anchors(read: Outline) -> frozenset[int]:
    """Ids of the findings that have a place on the page."""
    return frozenset(f.id for f in _shown(read))


def _shown(read: Outline) -> Iterator[FindingView]:
    waiting: list[Branch] = [branch for group in read.groups for branch in group.branches]
    while waiting:
        branch = waiting.pop()
        yield branch.finding
        yield from branch.alike
        waiting.extend(branch.children)
    yield from read.further


def gaps(not_checked: Sequence[NotChecked]) -> list[Gap]:
    """By missing capability, so that each command stands once, in the order given: most relevant first."""
    groups: dict[str, list[NotChecked]] = {}
    for one in not_checked:
        groups.setdefault(one.missing, []).append(one)
    return [Gap(name, rules[0].meaning, rules[0].capture, rules) for name, rules in groups.items()]


def unseen(no_sign: Sequence[RuledOut]) -> list[Unseen]:
    """By what was read, the most rules first, in the order given."""
    groups: dict[str, list[RuledOut]] = {}
    for one in no_sign:
        groups.setdefault(one.reason, []).append(one)
    return sorted((Unseen(reason, rules) for reason, rules in groups.items()), key=lambda group: -len(group.rules))


def endings(processes: Sequence[ProcessView]) -> list[Ending]:
    """How many processes ended in each way, the most frequent first."""
    counts: dict[str, int] = {}
    for process in processes:
        counts[process.outcome] = counts.get(process.outcome, 0) + 1
    return [Ending(outcome, n) for outcome, n in sorted(counts.items(), key=lambda item: -item[1])]


def shares(counts: dict[str, int]) -> list[Share]:
    """Parts of a bar 100 wide; a part that exists stays wide enough to be seen."""
    total = sum(counts.values())
    present = {name: max(n / total, 0.02) for name, n in counts.items() if n} if total else {}
    x, found = 0.0, []
    for name, ratio in present.items():
        width = 100 * ratio / sum(present.values())
        found.append(Share(name, counts[name], x, width))
        x += width
    return found


def _by_quality(artifacts: Sequence[ArtifactView]) -> dict[str, int]:
    counts = dict.fromkeys(QUALITIES, 0)
    for artifact in artifacts:
        counts[artifact.quality if artifact.quality in counts else "unknown"] += 1
    return counts


def _by_outcome(report: Report) -> dict[str, int]:
    return {
        "found something": len({f.rule for f in report.findings}),
        "ruled out": len({r.rule for r in report.ruled_out}),
        "no sign": len({r.rule for r in report.no_sign}),
        "not checked": report.n_not_checked,
    }
