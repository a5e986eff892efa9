"""Draws a verdict from findings and their causal graph (`causality`). Roots are what nothing explains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.causality import causal_graph, differ, order_of_time, precedence
from forensics.finding import Anomaly, Finding, Link, NotChecked, RuledOut, Verdict
from forensics.rule import alternatives
from forensics.states import CAPABILITIES, SEVERITIES, STRENGTHS

if TYPE_CHECKING:
    import networkx as nx

# Ends of processes: what only says "this job died" is contradicted when the job demonstrably completed.
_FATAL = {
    "rank-failed",
    "rank-gone",
    "device-full",
    "host-full",
    "collective-stuck",
    "connection-lost",
    "context-poisoned",
} | {
    "device-lost",
    "capture-broken",
    "generator-poisoned",
    "shm-full",
    "disk-full",
    "job-stopped",
    "rank-stalled",
    "input-stalled",
    "weights-incomplete",
    "config-contradictory",
    "memory-retained",
}
# Weights that are not those meant end no process by themselves: a job that goes on with them gives a wrong result.
_ENDS = _FATAL - {"weights-incomplete"}
SAME_FAULT = "the same fault, also here"  # how a finding is explained that nothing caused but what caused the other too
_GRAVE = {"critical", "high"}
_STANDS = ("cause", "symptom", "performance")  # roles of grave findings, by how much of a verdict each can carry
_MANY = 8  # ranks with the same fault of which the verdict's sentence says so


@dataclass(frozen=True)
class Exit:
    """An exit code that is on record: what lies in `folder` and below, and only `rank` when it names one, ended so."""

    zero: bool
    folder: str = ""
    rank: int | None = None

    def covers(self, path: str, rank: int | None) -> bool:
        inside = not self.folder or path.startswith(f"{self.folder}/")
        return inside and (self.rank is None or self.rank == rank)


@dataclass(frozen=True)
class Crash:
    """An error that is no echo of another, and the end of a log.

    `alike`: artifact and line of what its process says of the same kinds, itself and the error that it came out of
    ("direct cause of") included: one cited, all are.
    """

    artifact_id: int
    line: int
    path: str
    text: str
    alike: Set[tuple[int, int]]


@dataclass(frozen=True)
class Outcome:
    """How the job ended as far as evidence goes.

    `completed` and `failed` are the strongest words for each, `failed` without what was demonstrably survived: a
    failure is survived when its own log later says that the work was completed, when an exit code of 0 is on record
    for where it lies, when an attempt after it completed, or when only a log of the machine, where other jobs run too,
    tells of it and the job says that it completed. Other files' closing words say nothing about it.
    `last_attempt`: the one that decides, where attempts follow each other; None for one only or trials side by side.
    `quoting`: ids of artifacts that need not tell of this job: what rests on them alone is an indication at most, and
    never stands against evidence that the job completed.
    """

    completed: str | None = None
    failed: str | None = None
    exits: Sequence[Exit] = ()
    completed_lines: Mapping[int, int] = field(default_factory=dict)  # artifact id → line of its last closing words
    last_attempt: int | None = None
    quoting: Set[int] = frozenset()
    last_words: Set[tuple[int, int]] = frozenset()  # artifact and line of exceptions in which a log of the job ends
    crashes: Sequence[Crash] = ()
    handled: str | None = None  # errors that the job says it caught and went on after: how many, and the first
    # Logs of the machine that alone speak of a failure, where the job's own say that it completed.
    machine_logs: Set[int] = frozenset()

    @property
    def is_success(self) -> bool:
        return self.completed is not None and self.failed is None

    def is_superseded(self, attempt: int | None) -> bool:
        """Whether the job was started again after this attempt."""
        return attempt is not None and self.last_attempt is not None and attempt < self.last_attempt

    def is_quoted(self, finding: Finding) -> bool:
        places = {evidence.artifact_id for evidence in finding.evidence}
        return bool(places) and places <= self.quoting

    def survived(
        self, artifact_id: int | None, path: str, line: int | None, rank: int | None, attempt: int | None = None
    ) -> bool:
        if self.completed is not None and (self.is_superseded(attempt) or artifact_id in self.machine_logs):
            return True
        if artifact_id is not None and self.completed_lines.get(artifact_id, -1) > (line or 0):
            return True
        if (artifact_id, line) in self.last_words:
            return False  # an exit code of 0 may be that of another command, as of tee in a pipe
        codes = {code.zero for code in self.exits if code.covers(path, rank)}
        return codes == {True}


def diagnose(
    findings: Sequence[Finding],
    outcome: Outcome,
    *,
    ruled_out: Sequence[RuledOut] = (),  # all rules that found nothing
    not_checked: Sequence[NotChecked] = (),
    earliest: Anomaly | None = None,
    confidence: Mapping[str, float] | None = None,
    unlisted: Mapping[str, int] | None = None,
) -> Verdict:
    """The verdict over all findings; sets `explained_by` and `confidence` of each.

    `confidence`: by grade. `unlisted`: how many findings of a rule there are beside those given.
    """
    _soften_quoted(findings, outcome)
    _soften_survived(findings, outcome)
    graph, links = causal_graph(findings)
    standing = _settle_standing(graph, findings)
    links = [link for link in links if graph.has_edge(link.cause, link.effect)]
    _explain(graph, findings, links, standing)
    for finding in findings:
        finding.confidence = (confidence or {}).get(finding.grade or "")
    roots = sorted(
        _ranked_roots(graph, findings) or _slow_without_failure(findings, outcome),
        key=lambda f: (outcome.is_quoted(f), outcome.is_superseded(f.attempt)),
    )
    found = {f.rule for f in findings}
    silent = [r for r in ruled_out if r.rule not in found]
    common = {
        "links": links,
        "ruled_out": [r for r in silent if r.evidence],
        "no_sign": [r for r in silent if not r.evidence],
        "not_checked": not_checked,
        "earliest": earliest,
    }
    if not roots:
        return _without_root(findings, outcome, common, unlisted or {})
    top = roots[0]
    if (crash := _unexplained_crash(top, findings, outcome)) is not None:
        where = f"{crash.text} ({crash.path}:{crash.line})"
        why = (
            f"No rule explains the error that ended a log, {where}. Whether this led to it is not shown: {top.message}"
        )
        return _without_root(findings, outcome, common, unlisted or {}, why)
    independent = [r for r in roots[1:] if _stands_alone(r, top) and not outcome.is_superseded(r.attempt)]
    chosen = [top, *independent]
    status = "independent" if any(f.rule != top.rule for f in independent) else "root-cause"
    chosen_ids = {f.id for f in chosen}
    below = {n for f in chosen for n in _descendants(graph, f.id)}
    consequences = [f for f in findings if f.id in below and f.id not in chosen_ids]
    consequences.sort(key=order_of_time)
    others = [f for f in findings if f.id not in below and f.id not in chosen_ids]
    told = _told_for_all(top, findings, unlisted or {})
    if outcome.is_quoted(top):
        told = f"{told} (so says only {top.evidence[0].artifact}, which need not be a log of this job)"
    if status == "independent":
        told = f"{len(chosen)} independent causes; first: {told}"
    elif alike := [f"rank {f.rank}" for f in independent[:_MANY]]:
        more = f" and {len(independent) - _MANY} more" if len(independent) > _MANY else ""
        told = f"{told}; at fault in the same way: {', '.join(alike)}{more}"
    return Verdict(status, told, chosen, consequences, others, **common)  # type: ignore[arg-type]


def _without_root(
    findings: Sequence[Finding],
    outcome: Outcome,
    common: Mapping[str, object],
    unlisted: Mapping[str, int],
    why: str | None = None,
) -> Verdict:
    symptoms = [f for f in findings if f.severity in {"critical", "high"} and f.role == "symptom"]
    others = list(findings)
    if outcome.is_success and not symptoms and why is None:
        n_asked = len({r.rule for given in ("ruled_out", "no_sign") for r in common[given]})  # type: ignore[attr-defined]
        none = f"none of the {n_asked} rules that could judge it found" if n_asked > 1 else "no rule could find"
        met = f"; on its way it went on after {outcome.handled}" if outcome.handled else ""
        sentence = f"The job completed, and {none} a fault: {outcome.completed}{met}"
        return Verdict("healthy", sentence, others=others, reasons=[str(outcome.completed)], **common)  # type: ignore[arg-type]
    reasons = [_sentence(why)] if why else []
    if symptoms:
        reasons.append(
            f"{_sentence(_told_for_all(symptoms[0], findings, unlisted))} What led to it is not in the evidence."
        )
    earliest = common.get("earliest")
    if isinstance(earliest, Anomaly) and not earliest.weak:
        reasons.append(_sentence(f"The earliest sign of trouble is at {earliest.evidence.label()}: {earliest.message}"))
        if tied := [a.evidence.label() for a in earliest.not_told_apart]:
            reasons.append(f"By the clocks, what is at {', '.join(tied)} may have come as early.")
    if outcome.failed:
        is_said = isinstance(earliest, Anomaly) and outcome.failed.endswith(f" ({earliest.evidence.label()})")
        reasons.append("The job failed with it." if is_said else _sentence(f"The job failed: {outcome.failed}"))
    if isinstance(earliest, Anomaly) and earliest.weak:
        where = f"The line that is unlike all others is at {earliest.evidence.label()}: {earliest.message}"
        reasons.append(_sentence(f"No error is known in the logs. {where}"))
    if not reasons:
        reasons.append("The evidence shows neither a failure nor that the job completed.")
    sentence = f"The cause is not established. {reasons[0]}"
    return Verdict("not-established", sentence, consequences=symptoms, others=others, reasons=reasons, **common)  # type: ignore[arg-type]


def _unexplained_crash(top: Finding, findings: Sequence[Finding], outcome: Outcome) -> Crash | None:
    """What ended a log and no finding cites, where only weak evidence speaks for another cause of the failure."""
    if top.strength != STRENGTHS[-1] or outcome.is_superseded(top.attempt):
        return None
    cited = {(e.artifact_id, e.line) for finding in findings for e in finding.evidence}
    return next((crash for crash in outcome.crashes if crash.alike.isdisjoint(cited)), None)


def _told_for_all(top: Finding, findings: Sequence[Finding], unlisted: Mapping[str, int]) -> str:
    """The message of a cause; where many processes have the same one, with their number."""
    same = [
        f
        for f in findings
        if (f.rule, f.attempt) == (top.rule, top.attempt) and not differ(f.facts.get("fault"), top.facts.get("fault"))
    ]
    n_more = len({f.rank for f in same}) - 1 + unlisted.get(top.rule, 0)
    if n_more >= _MANY:
        return f"{top.message}; {n_more:,} other ranks met the same"
    open_order = {f.rank for f in same if f.rank is not None and not (_came_before(top, f) or _came_before(f, top))}
    if top.rank is None or not (others := sorted(open_order - {top.rank})):
        return top.message
    whose = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(map(str, others))}"
    return f"{top.message}; {whose} met the same, and nothing tells which was first"


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."


def _soften_quoted(findings: Sequence[Finding], outcome: Outcome) -> None:
    """What only a text says that need not be a log of this job is weak, and nothing against a job that completed."""
    for finding in findings:
        if outcome.is_quoted(finding):
            finding.strength = STRENGTHS[-1]
            if outcome.is_success and finding.severity in {"critical", "high"}:
                finding.severity = "medium"
                finding.facts["quoted"] = f"against it stands: {outcome.completed}"


def _soften_survived(findings: Sequence[Finding], outcome: Outcome) -> None:
    """A failure that the job survived is no cause of death; faults of the result stay what they are."""
    for finding in findings:
        states = {cause["state"] for cause in finding.causes}
        fatal = states <= _FATAL and not states.isdisjoint(_ENDS)
        if finding.severity not in {"critical", "high"} or not (fatal or finding.role == "symptom"):
            continue
        places = finding.evidence[:1]
        if outcome.is_superseded(finding.attempt):
            finding.facts["started_again"] = f"attempt {outcome.last_attempt} came after it"
        if any(outcome.survived(e.artifact_id, e.artifact, e.line, finding.rank, finding.attempt) for e in places):
            finding.severity = "medium"
            finding.facts["survived"] = outcome.completed or "the job went on to its end"


def _settle_standing(graph: nx.DiGraph, findings: Sequence[Finding]) -> dict[int, int]:
    """How far each finding, or the best of those that led to it, can carry a verdict: an index of _STANDS, or beyond.

    Takes from the graph what would explain a possible root without one behind it: a fault of medium severity, one that
    was survived, context or mere cost takes the root away and puts nothing in its place. What follows a grave symptom
    stays explained: what led to that symptom is then not in the evidence. So does what costs much and comes of what
    costs less: it tells of no failure.
    """
    import networkx as nx

    by_id, standing = {f.id: f for f in findings}, dict[int, int]()
    for number in nx.topological_sort(graph):
        finding = by_id[number]
        if _can_be_root(finding):
            idle = [n for n in graph.predecessors(number) if standing[n] > _STANDS.index("symptom")]
            graph.remove_edges_from([(n, number) for n in idle])
        own = _STANDS.index(finding.role) if finding.severity in _GRAVE else len(_STANDS)
        standing[number] = min([own, *(standing[n] for n in graph.predecessors(number))])
    return standing


def _explain(
    graph: nx.DiGraph, findings: Sequence[Finding], links: Sequence[Link], standing: Mapping[int, int]
) -> None:
    by_id = {f.id: f for f in findings}
    edges = {(x.cause, x.effect): x for x in links}
    for finding in findings:
        causes = [by_id[n] for n in graph.predecessors(finding.id)]
        if causes:
            # The nearest cause that leads to a root, so that the chain shows every step of the way.
            best = min(
                causes,
                key=lambda c: (standing[c.id], len(edges[c.id, finding.id].states), *_weight(c), *precedence(c)),
            )
            finding.explained_by = best.id
            finding.explained_how = edges[best.id, finding.id].how
    twins: dict[tuple[object, ...], list[Finding]] = {}
    for finding in findings:
        if finding.explained_by is None:
            twins.setdefault((finding.rule, finding.attempt, finding.facts.get("fault")), []).append(finding)
    for same in twins.values():
        first = _stands_for(same)
        for finding in same:
            if finding is not first:
                timed = finding.ts_ns is not None and first.ts_ns is not None
                is_open = timed and not finding.is_after(first)
                order = "; which of them came first, the clocks cannot tell" if is_open else ""
                finding.explained_by, finding.explained_how = first.id, f"{SAME_FAULT}{order}"
                graph.add_edge(first.id, finding.id)


def _stands_for(twins: Sequence[Finding]) -> Finding:
    """Of the same fault in several places the one to name: best shown, unless another demonstrably came before it."""
    roots = [f for f in twins if _can_be_root(f)] or twins
    best = min(roots, key=lambda f: (*_weight(f), *order_of_time(f)))
    before = [f for f in roots if _came_before(f, best)]
    return min(before, key=order_of_time) if before else best


def _came_before(one: Finding, other: Finding) -> bool:
    if one.step is not None and other.step is not None:
        return one.step + 1 < other.step  # some count from 0, some from 1
    return other.is_after(one)


def _can_be_root(finding: Finding) -> bool:
    return finding.role == "cause" and finding.severity in {"critical", "high"}


def _ranked_roots(graph: nx.DiGraph, findings: Sequence[Finding]) -> list[Finding]:
    roots = [f for f in findings if f.explained_by is None and _can_be_root(f)]
    return sorted(roots, key=lambda f: (*_weight(f), -len(_descendants(graph, f.id)), *order_of_time(f)))


def _slow_without_failure(findings: Sequence[Finding], outcome: Outcome) -> list[Finding]:
    """What costs a job much, where nothing but a weak sign says that it failed: then that is what is wrong.

    People cancel jobs that are slow, and signals have many senders.
    """
    ailing = (f for f in findings if f.role == "symptom" and f.severity in _GRAVE and f.strength != STRENGTHS[-1])
    if outcome.failed or any(ailing):
        return []
    slow = [f for f in findings if f.role == "performance" and f.severity in _GRAVE and f.explained_by is None]
    return sorted(slow, key=lambda f: (*_weight(f), *order_of_time(f)))


def _weight(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.severity), STRENGTHS.index(finding.strength)


def _descendants(graph: nx.DiGraph, node: int) -> set[int]:
    import networkx as nx

    return set(nx.descendants(graph, node))


def _stands_alone(other: Finding, top: Finding) -> bool:
    """Whether a second root is a cause in its own right: as severe, proven, and not of the same rank."""
    if _weight(other) > (SEVERITIES.index("critical"), STRENGTHS.index("strong")):
        return False
    if other.rule == top.rule:
        return other.attempt == top.attempt and differ(other.facts.get("fault"), top.facts.get("fault"))
    return differ(other.rank, top.rank) or differ(other.attempt, top.attempt)


def not_checked_rules(missing: Sequence[tuple[str, str, str]]) -> list[NotChecked]:
    """`missing`: (rule, title, need) of rules that could not run for any process."""
    listed = []
    for rule, title, need in missing:
        names = alternatives(need)
        capability = CAPABILITIES[names[0]]
        listed.append(NotChecked(rule, title, " or ".join(names), capability.meaning, capability.capture))
    return listed
