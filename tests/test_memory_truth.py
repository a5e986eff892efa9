"""Memory rules against snapshots of the real allocator whose truth is known: right, or silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ARTIFACTS, needs_artifacts

from forensics.pipeline import analyze

pytestmark = needs_artifacts

# What each known truth may be called today. Truths that no rule knows yet have to be left open.
RIGHT = {
    "fragmentation": "memory-fragmentation",
    "capacity": "memory-capacity",
    "other-process": "memory-other-process",
}
SNAPSHOTS = sorted((ARTIFACTS / "allocator").glob("*.pickle")) if ARTIFACTS.is_dir() else []


def truth_of(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((ARTIFACTS / "truth" / "allocator" / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize("path", [p for p in SNAPSHOTS if not p.name.startswith("grid_")], ids=lambda p: p.stem)
def test_the_verdict_on_a_snapshot_is_right_or_left_open(path: Path, tmp_path: Path) -> None:
    truth = truth_of(path.stem)
    verdict = analyze(path, tmp_path).verdict
    named = [f.rule for f in verdict.root_causes]
    right = RIGHT.get(str(truth["verdict"]))
    if truth["oom"] and right:
        assert named == [right]
    else:
        assert named == []
        assert verdict.status == "not-established"


@pytest.mark.parametrize("workload", ["kv", "pins", "train"])
def test_fragmentation_is_claimed_only_where_expandable_segments_made_the_workload_fit(
    workload: str, tmp_path: Path
) -> None:
    name = f"grid_{workload}__default__tight"
    named = [f.rule for f in analyze(ARTIFACTS / "allocator" / f"{name}.pickle", tmp_path).verdict.root_causes]
    expandable = truth_of(f"grid_{workload}__expandable__tight")
    if named:
        assert named == ["memory-fragmentation"]
        assert not expandable["oom"]
