"""Joins findings into a causal graph: which finding explains which, along which states.

A finding A explains B when a state that A causes travels (states.TRAVELS) to one that B requires, on an entity that
both share, and time, attempt, rank, device and step allow it. Of the findings of one rule that could explain B only the
first is joined to it, found by entity instead of by comparing all pairs: a job of many ranks has thousands of findings.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from forensics.finding import Finding, Link
from forensics.states import ACT_ON_THE_NEXT_STEP, PERSISTENT, STATES, TRAVELS

if TYPE_CHECKING:
    import networkx as nx

# How far a state reaches: its own rank, the ranks of its device or host, all ranks.
_REACH = {"process": 0, "rank": 0, "device": 1, "host": 2, "group": 3, "job": 3}
_ORDER = {state: number for number, state in enumerate(STATES)}
_TIMELINES = {"epoch": 0, "wall": 1}
_OPEN = "\0open"  # stands for every host
# Causes of one shelf that are tried in turn: the first is the earliest, so those behind it fit an effect still less.
_MOST_TRIED = 64

Order = tuple[int, int, float, int, int]
_Entity = tuple[str, int | None, str | None]


@dataclass(frozen=True)
class _Way:
    states: tuple[str, ...]
    how: str
    reach: int


def causal_graph(findings: Sequence[Finding]) -> tuple[nx.DiGraph, list[Link]]:
    """Edges from causes to what they explain, without cycles, and the states of each edge."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(finding.id for finding in findings)
    shelves = _Shelves(findings)
    links = []
    for effect in findings:
        for cause, way in shelves.causes_of(effect):
            graph.add_edge(cause.id, effect.id)
            links.append(Link(cause.id, effect.id, way.states, way.how))
    return graph, _without_cycles(graph, links, {f.id: f for f in findings})


def _caused_by(finding: Finding) -> tuple[str, ...]:
    return tuple(str(c["state"]) for c in finding.causes)


@lru_cache(maxsize=4096)
def _reachable(caused: tuple[str, ...]) -> Mapping[str, _Way]:
    """States that these bring about, with the shortest way to each."""
    start = [_Way((state,), "", _REACH[STATES[state].entity]) for state in caused]
    ways: dict[str, _Way] = {}
    while start:
        following = []
        for way in start:
            here = way.states[-1]
            if here in ways:
                continue
            ways[here] = way
            for travel in TRAVELS:
                if travel.state == here:
                    reach = max(way.reach, _REACH[STATES[travel.then].entity])
                    how = f"{way.how}; {travel.how}" if way.how else travel.how
                    following.append(_Way((*way.states, travel.then), how, reach))
        start = following
    return ways


@dataclass
class _Shelf:
    """Findings of one rule that cause the same, on one timeline, by entity; each list in the order of precedence."""

    rule: str
    ways: Mapping[str, _Way]
    every: list[tuple[Order, Finding]] = field(default_factory=list)
    places: dict[int, dict[_Entity, list[tuple[Order, Finding]]]] = field(default_factory=dict)

    def first_cause(self, effect: Finding, way: _Way) -> Finding | None:
        if way.reach not in self.places:
            held: dict[_Entity, list[tuple[Order, Finding]]] = defaultdict(list)
            for entry in self.every:
                for entity in _entities(entry[1], way.reach):
                    held[entity].append(entry)
            self.places[way.reach] = held
        place = self.places[way.reach]
        lists = [place[entity] for entity in _entities_shared_with(effect, way.reach) if entity in place]
        for _, cause in islice(heapq.merge(*lists), _MOST_TRIED):
            if _fits(cause, effect, way) and not _is_rather_explained_by(cause, effect):
                return cause
        return None


def _entities(cause: Finding, reach: int) -> Iterator[_Entity]:
    """What this finding is listed under, so that effects that leave a rank, device or host open find it as well."""
    if reach == 3:
        yield "all", None, _OPEN
        return
    for host in (cause.host, _OPEN):
        if reach == 2:
            yield "all", None, host
        elif reach == 1 and cause.device is not None:
            yield "device", cause.device, host
            yield "any device", None, host
        else:
            yield "rank", cause.rank, host
            yield "any rank", None, host


def _entities_shared_with(effect: Finding, reach: int) -> Iterator[_Entity]:
    """Under which of them causes are listed from which a way of this reach may lead to the effect."""
    if reach == 3:
        yield "all", None, _OPEN
        return
    for host in (_OPEN,) if effect.host is None else (effect.host, None):
        if reach == 2:
            yield "all", None, host
            continue
        if reach == 1:
            yield ("any device", None, host) if effect.device is None else ("device", effect.device, host)
        if effect.rank is None:
            yield "any rank", None, host
        else:
            yield "rank", effect.rank, host
            yield "rank", None, host


class _Shelves:
    """All findings by the states that they bring about and the attempt in which they do."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        shelves: dict[tuple[object, ...], _Shelf] = {}
        self._leading: dict[tuple[str, int | None], list[_Shelf]] = defaultdict(list)
        self._lasting: dict[str, list[_Shelf]] = defaultdict(list)
        for finding in findings:
            caused = _caused_by(finding)
            if not caused:
                continue
            traits = (bool(finding.requires), finding.severity, finding.strength, finding.role)
            key = (finding.rule, caused, traits, finding.attempt, finding.timeline, finding.ts_ns is None)
            if key not in shelves:
                shelf = shelves[key] = _Shelf(finding.rule, _reachable(caused))
                for state, way in shelf.ways.items():
                    self._leading[state, finding.attempt].append(shelf)
                    if way.states[0] in PERSISTENT:
                        self._lasting[state].append(shelf)
            shelves[key].every.append((precedence(finding), finding))
        for shelf in shelves.values():
            shelf.every.sort()

    def causes_of(self, effect: Finding) -> Iterator[tuple[Finding, _Way]]:
        """The first finding of each shelf that explains this one, with the shortest way."""
        best: dict[int, tuple[int, Finding, _Way]] = {}
        for state in dict.fromkeys(str(r["state"]) for r in effect.requires):
            for shelf in self._that_lead_to(state, effect.attempt):
                way, known = shelf.ways[state], best.get(id(shelf))
                # The same rule on two ranks is one fault seen twice, never its own cause.
                if shelf.rule == effect.rule or (known is not None and known[0] <= len(way.states)):
                    continue
                if (cause := shelf.first_cause(effect, way)) is not None:
                    best[id(shelf)] = (len(way.states), cause, way)
        for _, cause, way in best.values():
            yield cause, way

    def _that_lead_to(self, state: str, attempt: int | None) -> Iterator[_Shelf]:
        if attempt is None:
            for (leads_to, _), shelves in self._leading.items():
                if leads_to == state:
                    yield from shelves
            return
        yield from self._leading.get((state, attempt), ())
        yield from self._leading.get((state, None), ())
        for shelf in self._lasting.get(state, ()):
            before = shelf.every[0][1].attempt
            if before is not None and before < attempt:
                yield shelf


def _fits(cause: Finding, effect: Finding, way: _Way) -> bool:
    reach, same_attempt = way.reach, not differ(cause.attempt, effect.attempt)
    if not same_attempt and (way.states[0] not in PERSISTENT or (cause.attempt or 0) > (effect.attempt or 0)):
        return False
    if reach == 0 and differ(cause.rank, effect.rank):
        return False
    if reach == 1 and (
        differ(cause.device, effect.device) or (cause.device is None and differ(cause.rank, effect.rank))
    ):
        return False
    if reach <= 2 and differ(cause.host, effect.host):
        return False
    if same_attempt and cause.step is not None and effect.step is not None:
        # What a log tells of a step comes after it, so a rank that told of step 7 last may have ended in step 8; what
        # comes with the next update of the weights has nothing to do with the step beside it.
        latest = effect.step - 1 if way.states[0] in ACT_ON_THE_NEXT_STEP else effect.step + 1
        if cause.step > latest:
            return False
    return not cause.is_after(effect)


def differ(one: object, other: object) -> bool:
    """Whether both are known and not the same."""
    return one is not None and other is not None and one != other


def _is_rather_explained_by(cause: Finding, effect: Finding) -> bool:
    """Whether the effect could explain the cause as well, and better."""
    ways = _reachable(_caused_by(effect))
    back = [ways[state] for r in cause.requires if (state := str(r["state"])) in ways]
    return bool(back) and is_rather_the_cause(effect, cause) and any(_fits(effect, cause, way) for way in back)


def _without_cycles(graph: nx.DiGraph, links: list[Link], by_id: Mapping[int, Finding]) -> list[Link]:
    """Of findings that explain each other in a circle, the earlier and more specific ones are the causes."""
    import networkx as nx

    order = {number: precedence(finding) for number, finding in by_id.items()}
    dropped: set[tuple[int, int]] = set()
    for circle in [part for part in nx.strongly_connected_components(graph) if len(part) > 1]:
        inside = [(a, b) for a in circle for b in graph.successors(a) if b in circle]
        dropped.update((a, b) for a, b in inside if order[a] > order[b])
    graph.remove_edges_from(dropped)
    kept = [link for link in links if (link.cause, link.effect) not in dropped]
    return sorted(kept, key=lambda link: (order[link.cause], order[link.effect]))


def precedence(finding: Finding) -> Order:
    """Smaller comes first as a cause: causes before symptoms, then earlier, then the more specific state."""
    role = {"cause": 0, "symptom": 1, "performance": 2}[finding.role]
    depth = min((_ORDER[c["state"]] for c in finding.causes), default=len(_ORDER))
    explained = 1 if finding.requires else 0
    return (role, explained, float(finding.ts_ns or 0), -depth, finding.id)


def is_rather_the_cause(one: Finding, other: Finding) -> bool:
    """Of two that could each explain the other. Times decide only where the clocks can tell them apart."""
    mine, its = precedence(one), precedence(other)
    if mine[:2] != its[:2]:
        return mine[:2] < its[:2]
    if one.is_after(other) or other.is_after(one):
        return other.is_after(one)
    return (mine[3], mine[2], mine[4]) < (its[3], its[2], its[4])


def order_of_time(finding: Finding) -> tuple[int, int, int, int]:
    """An order for what must stand in one; times of several timelines cannot be mixed, so one goes before the other."""
    first_line = finding.evidence[0].line or 0 if finding.evidence else 0
    timeline = _TIMELINES.get(finding.timeline or "", len(_TIMELINES))
    return (int(finding.ts_ns is None), timeline, finding.ts_ns or first_line, finding.id)
