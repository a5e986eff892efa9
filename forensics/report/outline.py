"""Puts findings in the order in which they are read: causes first, consequences under their cause, bounded.

Nothing is dropped without a count: what does not fit is listed short (`further`) or counted (`n_hidden`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from forensics.report.view import FindingView

FULL = 60  # findings shown with all they have
SHORT = 300  # further findings shown as one row each
ALIKE = 100  # rows of one rule under one cause
DEPTH = 4  # consequences of consequences; deeper ones stand on the last level

_HEADINGS = {
    "root": "Root cause",
    "independent": "Independent causes",
    "other": "Other findings",
    "consequence": "Consequences whose cause is not known",
}


@dataclass
class Branch:
    """A finding with the consequences that it explains; `alike`: siblings of the same rule, listed short."""

    finding: FindingView
    children: list[Branch] = field(default_factory=list)
    alike: list[FindingView] = field(default_factory=list)
    n_alike_hidden: int = 0


@dataclass
class Group:
    role: str
    heading: str
    branches: list[Branch]


@dataclass
class Outline:
    groups: list[Group]
    further: list[FindingView]
    n_hidden: int


def outline(findings: Iterable[FindingView]) -> Outline:
    builder = _Builder(list(findings))
    return builder.build()


class _Builder:
    def __init__(self, findings: list[FindingView]) -> None:
        self._findings = findings
        by_id = {f.id: f for f in findings}
        self._children: dict[int, list[FindingView]] = {}
        self._tops: list[FindingView] = []
        reaching = _reaching_a_top(by_id)
        for finding in findings:
            if finding.explained_by in by_id and finding.explained_by is not None and finding.id in reaching:
                self._children.setdefault(finding.explained_by, []).append(finding)
            else:
                self._tops.append(finding)
        self._room = FULL
        self._further: list[FindingView] = []
        self._n_short = 0

    def build(self) -> Outline:
        groups = []
        for role, heading in _HEADINGS.items():
            members = [f for f in self._tops if (f.role if f.role in _HEADINGS else "other") == role]
            branches = self._branches(members, 1)
            if branches:
                groups.append(Group(role, _heading(role, heading, len(members)), branches))
        shown = self._further[: max(0, SHORT - self._n_short)]
        return Outline(groups, shown, len(self._further) - len(shown))

    def _branches(self, members: list[FindingView], depth: int) -> list[Branch]:
        branches: list[Branch] = []
        first_of: dict[tuple[str, str], Branch] = {}
        for finding in members:
            twin = first_of.get((finding.rule, finding.title))
            leaf = not self._children.get(finding.id)
            if twin is not None and leaf and finding.role != "root":
                self._add_alike(twin, finding)
            elif self._room > 0:
                self._room -= 1
                branch = Branch(finding)
                branches.append(branch)
                first_of.setdefault((finding.rule, finding.title), branch)
            else:
                self._further.extend([finding, *self._descendants(finding)])
        for branch in branches:
            if depth + 1 < DEPTH:
                below = self._children.get(branch.finding.id, [])
            else:
                below = self._descendants(branch.finding)
                for deep in below:
                    self._children.pop(deep.id, None)
            branch.children = self._branches(below, depth + 1) if below else []
        return branches

    def _add_alike(self, branch: Branch, finding: FindingView) -> None:
        if len(branch.alike) < ALIKE and self._n_short < SHORT:
            branch.alike.append(finding)
            self._n_short += 1
        else:
            branch.n_alike_hidden += 1

    def _descendants(self, finding: FindingView) -> list[FindingView]:
        found: list[FindingView] = []
        waiting = deque(self._children.get(finding.id, []))
        while waiting:
            child = waiting.popleft()
            found.append(child)
            waiting.extend(self._children.get(child.id, []))
        return found


def _reaching_a_top(by_id: dict[int, FindingView]) -> set[int]:
    """Ids of the findings whose way up ends; a cycle of explanations would otherwise show none of its members."""
    reaching: set[int] = set()
    for start in by_id:
        way: list[int] = []
        on_way: set[int] = set()
        above: int | None = start
        while above is not None and above in by_id and above not in reaching and above not in on_way:
            way.append(above)
            on_way.add(above)
            above = by_id[above].explained_by
        if above not in on_way:
            reaching.update(way)
    return reaching


def _heading(role: str, heading: str, n: int) -> str:
    if role == "root" and n > 1:
        return "Root causes"
    if role == "independent" and n == 1:
        return "Independent cause"
    return heading
