"""Memory rules against snapshots of the real allocator whose truth is known: right, or silent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ARTIFACTS, needs_artifacts

from forensics.pipeline import analyze

pytestmark = needs_artifacts

# What each known truth may be called. Truths that no rule of this family knows have to be left open.
RIGHT = {
    "fragmentation": {"memory-fragmentation"},
    "capacity": {"memory-capacity"},
    "limit": {"memory-capacity"},
    "other-process": {"memory-other-process"},
    "leak": {"memory-leak", "memory-retained-graph"},
    "skew": {"memory-rank-skew"},
    "exception-holds": {"memory-exception-refs"},
    "private-pool": {"memory-private-pool"},
    "hoarding": {"memory-cache-hoard"},
    "cross-stream": {"memory-cache-hoard"},
}
# Whose stack the truth names, where the rule means the same: of fragmentation it names who asked as well.
NAMES_CULPRIT = set(RIGHT) - {"fragmentation"}
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
    if right is None:
        assert named == []
        assert verdict.status == "not-established"
        return
    assert len(named) == 1
    assert set(named) <= right
    culprits = [c["function"] for c in truth["culprits"]]  # type: ignore[attr-defined]
    if culprits and truth["verdict"] in NAMES_CULPRIT:
        place = str(verdict.root_causes[0].facts["where_in_code"])
        assert place.partition(" ")[0] in culprits


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
