"""What the whole analysis says of jobs that failed by gradients or numerics: an accepted root, never a rejected one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support import ROOT

from forensics.pipeline import analyze

FIXTURES = ROOT / "fixtures"
FAMILIES = ("gradients-", "numerics-", "adapters-frozen", "distributed-nan-on-one-rank")
NAMES = sorted(
    path.name
    for path in FIXTURES.iterdir()
    if path.name.startswith(FAMILIES) and not path.name.endswith("-healthy") and (path / "expected.toml").is_file()
)
# Faults that what is on record does not tell: the divisor of a loss, and a state that memory rules are for.
UNTOLD = {"gradients-undivided-loss", "gradients-kept-state"}


@pytest.mark.parametrize("name", NAMES)
def test_the_root_cause_of_a_real_job_is_an_accepted_one(name: str, tmp_path: Path) -> None:
    label = tomllib.loads((FIXTURES / name / "expected.toml").read_text(encoding="utf-8"))
    verdict = analyze(FIXTURES / name / "artifacts", tmp_path / "out").verdict
    roots = [finding.rule for finding in verdict.root_causes]
    assert not set(roots) & set(label["reject"])
    if name in UNTOLD and not roots:
        return
    assert roots[0] in label["accept"]
    step = verdict.root_causes[0].step
    assert step is None or step >= label.get("culprit_step", 0) - 1
