"""What the whole analysis says of jobs that really ran: an accepted root, never a rejected one, and none for a twin.

Each page is opened as a reviewer does, where there is a browser: the analyses that this takes have just been made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import AXE, CHROMIUM, Page, browser
from support import ROOT

from forensics.pipeline import analyze

FIXTURES = ROOT / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.toml"))
# Faults that what is on record does not tell, or for which there is no rule yet: here nothing must be claimed.
UNTOLD: set[str] = set()
# With pictures of different kinds, or none.
READ_BY_AXE = {
    "distributed-nan-on-one-rank",
    "gradients-vanishing",
    "memory-pinned-segments",
    "missing-rank",
    "process-dumps",
    "serving-small-pool",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page | None]:
    if CHROMIUM is None:
        yield None
        return
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


def label_of(name: str) -> dict[str, Any]:
    return tomllib.loads((FIXTURES / name / "expected.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_over_a_job_that_really_ran_is_that_of_its_label(
    name: str, tmp_path: Path, page: Page | None
) -> None:
    label = label_of(name)
    verdict = analyze(FIXTURES / name / "artifacts", tmp_path / "out").verdict
    if page is not None:
        assert page.faults(tmp_path / "out" / "report.html") == []
        assert AXE is None or name not in READ_BY_AXE or page.axe() == []
    assert [rule.rule for rule in verdict.not_checked if rule.missing == "rule-fault"] == []
    roots = [finding.rule for finding in verdict.root_causes]
    if label.get("told_only", False):  # no failure, so no root: among the findings it has to stand all the same
        assert roots == []
        assert {finding.rule for finding in verdict.others} & set(label["accept"])
        return
    assert not set(roots) & set(label["reject"])
    if label["healthy"] or name in UNTOLD:
        assert roots == []
        return
    assert roots[:1] and roots[0] in label["accept"]
    step = verdict.root_causes[0].step
    assert step is None or step >= label.get("culprit_step", 0) - 1
