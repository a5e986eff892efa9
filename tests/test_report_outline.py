"""The order in which findings are read."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import report_demo as demo

from forensics.report.outline import ALIKE, DEPTH, FULL, SHORT, Branch, Outline, outline
from forensics.report.view import FindingView

BASE = demo.findings()[3]


def made(ident: int, role: str = "other", cause: int | None = None, rule: str = "") -> FindingView:
    return replace(BASE, id=ident, role=role, explained_by=cause, rule=rule or f"rule-{ident}")


def ids(branches: list[Branch]) -> list[object]:
    return [[b.finding.id, ids(b.children)] if b.children else b.finding.id for b in branches]


def count(read: Outline) -> int:
    def below(branches: list[Branch]) -> int:
        return sum(1 + len(b.alike) + b.n_alike_hidden + below(b.children) for b in branches)

    return sum(below(group.branches) for group in read.groups) + len(read.further) + read.n_hidden


def test_causes_come_first_and_consequences_stand_under_them() -> None:
    read = outline([made(1), made(2, "consequence", 3), made(3, "root"), made(4, "consequence", 2)])
    assert [(group.role, ids(group.branches)) for group in read.groups] == [("root", [[3, [[2, [4]]]]]), ("other", [1])]


def test_a_consequence_of_an_unknown_cause_is_still_shown() -> None:
    [group] = outline([made(1, "consequence", 99)]).groups
    assert group.heading == "Consequences whose cause is not known"


def test_findings_that_explain_each_other_are_all_shown() -> None:
    read = outline([made(1, "other", 2), made(2, "other", 1), made(3, "consequence", 1), made(4, "other", 4)])
    assert count(read) == 4


def test_many_findings_of_one_rule_under_one_cause_are_listed_short() -> None:
    read = outline([made(0, "root"), *(made(i, "consequence", 0, "timeout") for i in range(1, 400))])
    [branch] = read.groups[0].branches[0].children
    assert len(branch.alike) == ALIKE
    assert branch.n_alike_hidden == 398 - ALIKE


def test_roots_are_never_folded_into_each_other() -> None:
    [group] = outline([made(i, "root", None, "same") for i in range(3)]).groups
    assert ids(group.branches) == [0, 1, 2]
    assert group.heading == "Root causes"


def test_a_long_chain_of_consequences_does_not_nest_without_end() -> None:
    read = outline([made(0, "root"), *(made(i, "consequence", i - 1) for i in range(1, 3_000))])

    def depth(branches: list[Branch]) -> int:
        return 1 + max((depth(b.children) for b in branches), default=0) if branches else 0

    assert depth(read.groups[0].branches) == DEPTH
    assert count(read) == 3_000


@pytest.mark.parametrize("seed", range(8))
def test_every_finding_is_shown_listed_or_counted_exactly_once(seed: int) -> None:
    chance = random.Random(seed)
    n = chance.choice([5, 50, 500, 2_000])
    findings = [
        made(i, chance.choice(["root", "consequence", "other", "independent", "strange"]),
             chance.choice([None, chance.randrange(n), max(0, i - 1)]), f"rule-{chance.randrange(n // 4 + 1)}")
        for i in range(n)
    ]  # fmt: skip
    read = outline(findings)
    assert count(read) == n
    assert sum(len(group.branches) for group in read.groups) <= FULL
    assert len(read.further) <= SHORT
