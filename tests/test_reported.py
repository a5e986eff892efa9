"""What the whole analysis says of failures that were reported in public: an accepted root, never a rejected one."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from support import ROOT

from forensics.pipeline import analyze

REPORTED = ROOT / "tests" / "reported"
NAMES = sorted(path.parent.name for path in REPORTED.glob("*/expected.toml"))
# A rank that never says that it waits may be slow or gone: without times of its own log nothing must be claimed.
# A table of tensors that a person printed is no format; what their files would tell is not in it.
UNTOLD = {"309-ranks-differ-at-end-of-epoch", "411-draft-model-with-odd-checkpoint"}


@pytest.mark.parametrize("name", NAMES)
def test_the_verdict_over_a_reported_failure_is_that_of_its_label(name: str, tmp_path: Path) -> None:
    label = tomllib.loads((REPORTED / name / "expected.toml").read_text(encoding="utf-8"))
    verdict = analyze(REPORTED / name / "artifacts", tmp_path / "out").verdict
    roots = [finding.rule for finding in verdict.root_causes]
    assert not set(roots) & set(label["reject"])
    if label["healthy"] or name in UNTOLD:
        assert roots == []
        return
    assert roots[:1] and roots[0] in label["accept"]
