"""What a report shows, as plain values: the only input of every renderer in this package.

Whoever fills it masks secrets first and orders everything: renderers keep the order they are given. Texts may be
hostile and of any length; renderers escape and shorten them. Times are ns since the epoch, or ns since the start
of their clock where no epoch is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from forensics.report.pictures import Picture

STATUSES = ("root-cause", "independent", "not-established", "healthy")
ROLES = ("root", "consequence", "independent", "other")


@dataclass(frozen=True)
class EvidenceView:
    """One place in an artifact, with what is found there."""

    artifact: str  # path relative to the analyzed folder
    kind: str = "line"  # line | byte | row; "" when only the artifact as a whole is meant
    position: int | None = None
    text: str = ""  # excerpt, may have several lines
    note: str = ""  # why this place matters, in a few words


@dataclass(frozen=True)
class Threshold:
    name: str
    value: str
    unit: str
    why: str
    measured: str = ""  # what the finding holds against it, where its row tells


@dataclass(frozen=True)
class FindingView:
    id: int
    rule: str
    title: str
    variant: str
    severity: str  # states.SEVERITIES
    strength: str  # states.STRENGTHS
    role: str  # ROLES
    message: str
    confidence: float | None = None  # probability, 0 to 1
    rank: int | None = None
    step: int | None = None
    ts_ns: int | None = None
    proves: str = ""
    cannot_prove: str = ""
    says: str = ""  # limits of the variant that ran
    fix: str = ""
    references: tuple[str, ...] = ()
    explained_by: int | None = None  # FindingView.id of its cause
    same_fault: bool = False  # `explained_by` did not cause it: it is the same fault in another place
    evidence: tuple[EvidenceView, ...] = ()
    query: str = ""  # SQL of the variant, or the inputs of a Python rule
    query_language: str = "sql"  # sql | inputs
    thresholds: tuple[Threshold, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    fingerprint: str = ""
    review: str = ""  # confirmed | dismissed by a reviewer; "" when nobody has said anything
    review_note: str = ""


@dataclass(frozen=True)
class VerdictView:
    status: str  # STATUSES
    sentence: str
    confidence: float | None = None
    confidence_range: tuple[float, float] | None = None  # 95 % interval of the measurement behind it
    confidence_note: str = ""  # how the figure came about: "uncalibrated: …", "calibrated on 120 cases …"
    strength: str = ""  # states.STRENGTHS, of the evidence that the verdict rests on
    culprit: tuple[tuple[str, str], ...] = ()  # (label, value): rank, step, op, line …, most telling first
    fix: str = ""
    not_established_reason: str = ""
    earliest_anomaly: EvidenceView | None = None


@dataclass(frozen=True)
class ChainNode:
    id: str
    label: str
    sub: str = ""  # second line: rank, step, time
    kind: str = "finding"  # finding | state
    severity: str = "info"
    finding: int | None = None  # FindingView.id that the node leads to


# How labels of edges begin whose ends have the same fault: in diagnosis.SAME_FAULT, and behind its semicolon.
SIDE_BY_SIDE = ("the same fault", "which of them came first")


@dataclass(frozen=True)
class ChainEdge:
    start: str  # ChainNode.id of the cause
    end: str
    label: str = ""

    @property
    def is_directed(self) -> bool:
        """Not where both ends have the same fault: neither led to the other."""
        return not self.label.startswith(SIDE_BY_SIDE)


@dataclass(frozen=True)
class RuledOut:
    """A rule that ran on evidence which could have shown the fault, and found nothing.

    Without a place that speaks against the fault there is only no sign of it.
    """

    rule: str
    title: str
    reason: str
    variant: str = ""
    evidence: tuple[EvidenceView, ...] = ()


@dataclass(frozen=True)
class NotChecked:
    """A rule that could not run."""

    rule: str
    title: str
    missing: str  # capability
    meaning: str = ""  # of the capability
    capture: str = ""  # command that records it next time


@dataclass(frozen=True)
class ArtifactView:
    path: str
    format: str
    n_bytes: int
    quality: str  # states.QUALITIES
    processes: str = ""
    rows: str = ""
    warnings: tuple[str, ...] = ()


SET_ASIDE = "set aside: "  # begins the warning of a finding that a suppression covers


@dataclass(frozen=True)
class WarningView:
    artifact: str
    where: str
    message: str
    hides: str  # questions that this leaves open


@dataclass(frozen=True)
class ProcessView:
    attempt: int | None
    host: str
    rank: int | None
    outcome: str
    first_seen_ns: int | None = None
    last_seen_ns: int | None = None


@dataclass(frozen=True)
class Moment:
    ts_ns: int
    rank: int | None
    kind: str
    label: str
    evidence: EvidenceView | None = None


@dataclass(frozen=True)
class SeriesView:
    """One value over steps or time, of one rank. Series of the same name, unit and axis share a drawing."""

    name: str
    unit: str
    rank: int | None
    points: tuple[tuple[float, float], ...]  # (step or ns, value), by step or ns; values may be NaN or infinite
    marks: tuple[tuple[float, str], ...] = ()  # (step or ns, label)
    axis: str = "step"  # step | ns


@dataclass(frozen=True)
class Report:
    title: str
    artifacts_name: str
    generated_by: str  # name and version of the program; never a time
    verdict: VerdictView
    findings: tuple[FindingView, ...] = ()
    chain_nodes: tuple[ChainNode, ...] = ()
    chain_edges: tuple[ChainEdge, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    no_sign: tuple[RuledOut, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    artifacts: tuple[ArtifactView, ...] = ()
    warnings: tuple[WarningView, ...] = ()
    job_facts: tuple[tuple[str, str], ...] = ()
    processes: tuple[ProcessView, ...] = ()
    timeline: tuple[Moment, ...] = ()  # earliest first
    series: tuple[SeriesView, ...] = ()
    pictures: tuple[Picture, ...] = ()
    time_limit: str = ""  # what is missing because it was reached

    @property
    def n_not_checked(self) -> int:
        """Rules that could not run; one that lacks two things is one."""
        return len({one.rule for one in self.not_checked})
