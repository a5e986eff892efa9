"""Joins findings into a causal graph and draws a verdict from it.

A finding A explains B when a state that A causes travels (states.TRAVELS) to one that B requires, on an entity that
both share, and time, attempt, rank, device and step allow it. Roots are what nothing explains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forensics.finding import Anomaly, Finding, Link, NotChecked, RuledOut, Verdict
from forensics.rule import alternatives
from forensics.states import CAPABILITIES, PERSISTENT, SEVERITIES, STATES, STRENGTHS, TRAVELS

if TYPE_CHECKING:
    import networkx as nx

# How far a state reaches: its own rank, the ranks of its device or host, all ranks.
_REACH = {"process": 0, "rank": 0, "device": 1, "host": 2, "group": 3, "job": 3}
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
_TIMELINES = {"epoch": 0, "wall": 1}
_MANY = 8  # ranks with the same fault of which the verdict's sentence says so
_ORDER = {state: number for number, state in enumerate(STATES)}


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
class Outcome:
    """How the job ended as far as evidence goes.

    `completed` and `failed` are the strongest words for each, `failed` without what was demonstrably survived: a
    failure is survived when its own log later says that the work was completed, when an exit code of 0 is on record
    for where it lies, or when an attempt after it completed. Another file's closing words say nothing about it.
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
        if self.completed is not None and self.is_superseded(attempt):
            return True
        if artifact_id is not None and self.completed_lines.get(artifact_id, -1) > (line or 0):
            return True
        codes = {code.zero for code in self.exits if code.covers(path, rank)}
        return codes == {True}


@dataclass(frozen=True)
class _Path:
    states: tuple[str, ...]
    how: str
    reach: int


def diagnose(
    findings: Sequence[Finding],
    outcome: Outcome,
    *,
    ruled_out: Sequence[RuledOut] = (),
    not_checked: Sequence[NotChecked] = (),
    earliest: Anomaly | None = None,
    confidence: Mapping[str, float] | None = None,
    unlisted: Mapping[str, int] | None = None,
) -> Verdict:
    """The verdict over all findings; sets `explained_by` and `confidence` of each.

    `unlisted`: how many findings of a rule there are beside those given.
    """
    _soften_quoted(findings, outcome)
    for finding in findings:
        finding.confidence = (confidence or {}).get(finding.strength)
    _soften_survived(findings, outcome)
    graph, links = _causal_graph(findings)
    _explain(graph, findings, links)
    roots = sorted(
        _ranked_roots(graph, findings), key=lambda f: (outcome.is_quoted(f), outcome.is_superseded(f.attempt))
    )
    common = {
        "links": links,
        "ruled_out": [r for r in ruled_out if r.rule not in {f.rule for f in findings}],
        "not_checked": not_checked,
        "earliest": earliest,
    }
    if not roots:
        return _without_root(findings, outcome, common, unlisted or {})
    top = roots[0]
    independent = [r for r in roots[1:] if _stands_alone(r, top) and not outcome.is_superseded(r.attempt)]
    chosen = [top, *independent]
    status = "independent" if independent else "root-cause"
    chosen_ids = {f.id for f in chosen}
    below = {n for f in chosen for n in _descendants(graph, f.id)}
    consequences = [f for f in findings if f.id in below and f.id not in chosen_ids]
    consequences.sort(key=_when)
    others = [f for f in findings if f.id not in below and f.id not in chosen_ids]
    told = _told_for_all(top, findings, unlisted or {})
    if outcome.is_quoted(top):
        told = f"{told} (so says only {top.evidence[0].artifact}, which need not be a log of this job)"
    sentence = told if status == "root-cause" else f"{len(chosen)} independent causes; first: {told}"
    return Verdict(status, sentence, chosen, consequences, others, **common)  # type: ignore[arg-type]


def _without_root(
    findings: Sequence[Finding], outcome: Outcome, common: Mapping[str, object], unlisted: Mapping[str, int]
) -> Verdict:
    symptoms = [f for f in findings if f.severity in {"critical", "high"} and f.role == "symptom"]
    others = list(findings)
    if outcome.is_success and not symptoms:
        sentence = f"The job completed and nothing is wrong in the evidence: {outcome.completed}"
        return Verdict("healthy", sentence, others=others, reasons=[str(outcome.completed)], **common)  # type: ignore[arg-type]
    reasons = []
    if symptoms:
        reasons.append(
            f"{_sentence(_told_for_all(symptoms[0], findings, unlisted))} What led to it is not in the evidence."
        )
    earliest = common.get("earliest")
    if isinstance(earliest, Anomaly):
        reasons.append(_sentence(f"The earliest sign of trouble is at {earliest.evidence.label()}: {earliest.message}"))
        if tied := [a.evidence.label() for a in earliest.not_told_apart]:
            reasons.append(f"By the clocks, what is at {', '.join(tied)} may have come as early.")
    if outcome.failed:
        reasons.append(_sentence(f"The job failed: {outcome.failed}"))
    if not reasons:
        reasons.append("The evidence shows neither a failure nor that the job completed.")
    sentence = f"The cause is not established. {reasons[0]}"
    return Verdict("not-established", sentence, consequences=symptoms, others=others, reasons=reasons, **common)  # type: ignore[arg-type]


def _told_for_all(top: Finding, findings: Sequence[Finding], unlisted: Mapping[str, int]) -> str:
    """The message of a cause; where many processes have the same one, with their number."""
    ranks = {(f.attempt, f.rank) for f in findings if f.rule == top.rule and f.attempt == top.attempt}
    n_more = len(ranks) - 1 + unlisted.get(top.rule, 0)
    return top.message if n_more < _MANY else f"{top.message}; {n_more:,} other ranks met the same"


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
        fatal = finding.causes and all(cause["state"] in _FATAL for cause in finding.causes)
        if finding.severity not in {"critical", "high"} or not (fatal or finding.role == "symptom"):
            continue
        places = finding.evidence[:1]
        if outcome.is_superseded(finding.attempt):
            finding.facts["started_again"] = f"attempt {outcome.last_attempt} came after it"
        if any(outcome.survived(e.artifact_id, e.artifact, e.line, finding.rank, finding.attempt) for e in places):
            finding.severity = "medium"
            finding.facts["survived"] = outcome.completed or "the job went on to its end"


def _causal_graph(findings: Sequence[Finding]) -> tuple[nx.DiGraph, list[Link]]:
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(f.id for f in findings)
    reached = {f.id: _reachable(f) for f in findings}
    links = []
    for cause in findings:
        for effect in findings:
            # The same rule on two ranks is one fault seen twice, never its own cause.
            path = _best_path(cause, effect, reached[cause.id]) if cause.rule != effect.rule else None
            if path is not None:
                graph.add_edge(cause.id, effect.id)
                links.append(Link(cause.id, effect.id, path.states, path.how))
    return graph, _without_cycles(graph, links, {f.id: f for f in findings})


def _reachable(finding: Finding) -> dict[str, _Path]:
    """States that this finding brings about, with the shortest way to each."""
    start = [_Path((c["state"],), "", _REACH[STATES[c["state"]].entity]) for c in finding.causes]
    paths: dict[str, _Path] = {}
    while start:
        following = []
        for path in start:
            here = path.states[-1]
            if here in paths:
                continue
            paths[here] = path
            for travel in TRAVELS:
                if travel.state == here:
                    reach = max(path.reach, _REACH[STATES[travel.then].entity])
                    how = f"{path.how}; {travel.how}" if path.how else travel.how
                    following.append(_Path((*path.states, travel.then), how, reach))
        start = following
    return paths


def _best_path(cause: Finding, effect: Finding, reached: Mapping[str, _Path]) -> _Path | None:
    ways = [reached[r["state"]] for r in effect.requires if r["state"] in reached]
    fitting = [way for way in ways if _fits(cause, effect, way)]
    return min(fitting, key=lambda way: len(way.states), default=None)


def _fits(cause: Finding, effect: Finding, way: _Path) -> bool:
    reach, same_attempt = way.reach, not _differ(cause.attempt, effect.attempt)
    if not same_attempt and (way.states[0] not in PERSISTENT or (cause.attempt or 0) > (effect.attempt or 0)):
        return False
    if reach == 0 and _differ(cause.rank, effect.rank):
        return False
    if reach == 1 and (
        _differ(cause.device, effect.device) or (cause.device is None and _differ(cause.rank, effect.rank))
    ):
        return False
    if reach <= 2 and _differ(cause.host, effect.host):
        return False
    if same_attempt and cause.step is not None and effect.step is not None and cause.step > effect.step:
        return False
    return not cause.is_after(effect)


def _differ(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _without_cycles(graph: nx.DiGraph, links: list[Link], by_id: Mapping[int, Finding]) -> list[Link]:
    """Of two findings that could each explain the other, the earlier and more specific one is the cause."""
    kept = []
    for link in sorted(
        links, key=lambda x: (_precedence(by_id[x.cause]), _precedence(by_id[x.effect]), x.cause, x.effect)
    ):
        cause, effect = by_id[link.cause], by_id[link.effect]
        if graph.has_edge(link.effect, link.cause) and _is_rather_the_cause(effect, cause):
            graph.remove_edge(link.cause, link.effect)
            continue
        kept.append(link)
    import networkx as nx

    while not nx.is_directed_acyclic_graph(graph):
        edges = [(a, b) for a, b, *_ in nx.find_cycle(graph)]
        worst = max(edges, key=lambda e: (_precedence(by_id[e[0]]), e))
        graph.remove_edge(*worst)
        kept = [x for x in kept if (x.cause, x.effect) != worst]
    return kept


def _precedence(finding: Finding) -> tuple[int, int, float, int]:
    """Smaller comes first as a cause: causes before symptoms, then earlier, then the more specific state."""
    role = {"cause": 0, "symptom": 1, "performance": 2}[finding.role]
    depth = min((_ORDER[c["state"]] for c in finding.causes), default=len(_ORDER))
    explained = 1 if finding.requires else 0
    return (role, explained, float(finding.ts_ns or 0), -depth)


def _is_rather_the_cause(one: Finding, other: Finding) -> bool:
    """Of two that could each explain the other. Times decide only where the clocks can tell them apart."""
    mine, its = _precedence(one), _precedence(other)
    if mine[:2] != its[:2]:
        return mine[:2] < its[:2]
    if one.is_after(other) or other.is_after(one):
        return other.is_after(one)
    return (mine[3], mine[2]) < (its[3], its[2])


def _explain(graph: nx.DiGraph, findings: Sequence[Finding], links: Sequence[Link]) -> None:
    by_id = {f.id: f for f in findings}
    how = {(x.cause, x.effect): x.how for x in links}
    length = {(x.cause, x.effect): len(x.states) for x in links}
    for finding in findings:
        causes = [by_id[n] for n in graph.predecessors(finding.id)]
        if causes:
            # The nearest cause, so that the chain shows every step of the way.
            best = min(causes, key=lambda c: (length[c.id, finding.id], *_weight(c), *_precedence(c), c.id))
            finding.explained_by = best.id
            finding.explained_how = how.get((best.id, finding.id), "")
    for finding in findings:  # the same fault on several ranks: the first one stands for all
        if finding.explained_by is None:
            twins = [
                f
                for f in findings
                if f.rule == finding.rule and f.attempt == finding.attempt and f.explained_by is None
            ]
            first = min(twins, key=_when)
            if first.id != finding.id:
                timed = finding.ts_ns is not None and first.ts_ns is not None
                order = (
                    "; which of them came first, the clocks cannot tell"
                    if timed and not finding.is_after(first)
                    else ""
                )
                finding.explained_by, finding.explained_how = first.id, f"the same fault, also here{order}"
                graph.add_edge(first.id, finding.id)


def _ranked_roots(graph: nx.DiGraph, findings: Sequence[Finding]) -> list[Finding]:
    roots = [f for f in findings if f.explained_by is None and f.role == "cause" and f.severity in {"critical", "high"}]
    return sorted(roots, key=lambda f: (*_weight(f), -len(_descendants(graph, f.id)), *_when(f)))


def _weight(finding: Finding) -> tuple[int, int]:
    return SEVERITIES.index(finding.severity), STRENGTHS.index(finding.strength)


def _when(finding: Finding) -> tuple[int, int, int, int]:
    """An order for what must stand in one; times of several timelines cannot be mixed, so one goes before the other."""
    first_line = finding.evidence[0].line or 0 if finding.evidence else 0
    timeline = _TIMELINES.get(finding.timeline or "", len(_TIMELINES))
    return (int(finding.ts_ns is None), timeline, finding.ts_ns or first_line, finding.id)


def _descendants(graph: nx.DiGraph, node: int) -> set[int]:
    import networkx as nx

    return set(nx.descendants(graph, node))


def _stands_alone(other: Finding, top: Finding) -> bool:
    """Whether a second root is a cause in its own right: as severe, proven, and not of the same rank."""
    if _weight(other) > (SEVERITIES.index("critical"), STRENGTHS.index("strong")) or other.rule == top.rule:
        return False
    return _differ(other.rank, top.rank) or _differ(other.attempt, top.attempt)


def not_checked_rules(missing: Sequence[tuple[str, str, str]]) -> list[NotChecked]:
    """`missing`: (rule, title, need) of rules that could not run for any process."""
    listed = []
    for rule, title, need in missing:
        names = alternatives(need)
        capability = CAPABILITIES[names[0]]
        listed.append(NotChecked(rule, title, " or ".join(names), capability.meaning, capability.capture))
    return listed
