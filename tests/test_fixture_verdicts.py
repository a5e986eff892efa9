"""What the whole analysis says of jobs that really ran: an accepted root, never a rejected one, and none for a twin."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from forensics.pipeline import analyze

pytestmark = pytest.mark.sweep

FIXTURES = ROOT / "fixtures"
NAMES = sorted(path.parent.name for path in FIXTURES.glob("*/expected.toml"))
# Faults that what is on record does not tell, or for which there is no rule yet: here nothing must be claimed.
UNTOLD: set[str] = set()


def label_of(name: str) -> dict[str, Any]:
    return tomllib.loads((FIXTURES / name / "expected.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_over_a_job_that_really_ran_is_that_of_its_label(name: str, tmp_path: Path) -> None:
    label = label_of(name)
    verdict = analyze(FIXTURES / name / "artifacts", tmp_path / "out").verdict
    roots = [finding.rule for finding in verdict.root_causes]
    assert not set(roots) & set(label["reject"])
    if label["healthy"] or name in UNTOLD:
        assert roots == []
        return
    assert roots[:1] and roots[0] in label["accept"]
    step = verdict.root_causes[0].step
    assert step is None or step >= label.get("culprit_step", 0) - 1
