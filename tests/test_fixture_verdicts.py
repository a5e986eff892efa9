"""What the whole analysis says of jobs that really ran: an accepted root, never a rejected one, and none for a twin.

Each page is opened as a reviewer does, where there is a browser: the analysis that this takes has just been made. What
it asks for and complains of, and how words and drawings lie in a wide and a narrow window is looked at on each; without
scripts, by keyboard and on paper on one of those with the same sections and drawings; with axe-core in light and dark,
Tab through all of it and as a PDF where it has a section or drawing that no page before had.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Page, browser
from page_checks import faults
from support import ROOT

from forensics.pipeline import analyze
from forensics.report import pictures

FIXTURES = ROOT / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.toml"))
# Faults that what is on record does not tell, or for which there is no rule yet: here nothing must be claimed.
UNTOLD: set[str] = set()
# Every kind of picture that a job without a GPU leaves evidence for, by a job whose page shows it. No job here captured
# a CUDA graph or printed how its GPUs reach each other: those two are drawn from made-up cases only.
SHOWS = {
    "step-217": {pictures.Provenance, pictures.LastSteps, pictures.ThresholdBoard, pictures.GridView},
    "memory-fragmentation": {pictures.MemoryTimeline, pictures.SegmentMap},
    "missing-rank": {pictures.WaitGraph},
    "distributed-half-loaded": {pictures.DeviceMap},
    "memory-kept-predictions": {pictures.ReferenceChains},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page | None]:
    if CHROMIUM is None:
        yield None
        return
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared by the workers of one run."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "read-in-full.txt"


def label_of(name: str) -> dict[str, Any]:
    return tomllib.loads((FIXTURES / name / "expected.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_over_a_job_that_really_ran_is_that_of_its_label(
    name: str, tmp_path: Path, page: Page | None, read: Path
) -> None:
    label = label_of(name)
    result = analyze(FIXTURES / name / "artifacts", tmp_path / "out")
    verdict = result.verdict
    assert SHOWS.get(name, set()) <= {type(picture) for picture in result.report.pictures}
    if page is not None:
        assert faults(page, tmp_path / "out" / "report.html", read) == []
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
