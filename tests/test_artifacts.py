"""Folders of real artifacts, as a user would point at them: nothing fails, and what is not known is said to be so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ARTIFACTS, needs_artifacts

from forensics.pipeline import analyze

pytestmark = needs_artifacts
KINDS = (
    sorted(p.name for p in ARTIFACTS.iterdir() if p.is_dir() and p.name not in {"truth", "allocator"})
    if ARTIFACTS.is_dir()
    else []
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_kind_is_listed_as_loaded_partly_loaded_or_unknown(kind: str, tmp_path: Path) -> None:
    analyze(ARTIFACTS / kind, tmp_path)
    report = json.loads((tmp_path / "report.json").read_bytes())
    files = {p.relative_to(ARTIFACTS / kind).as_posix() for p in (ARTIFACTS / kind).rglob("*") if p.is_file()}
    listed = {a["path"].split("!")[0]: a for a in report["artifacts"]}
    assert set(listed) == files
    assert {a["quality"] for a in report["artifacts"]} <= {"complete", "repaired", "partial", "unknown", "empty"}
    assert all(a["warnings"] for a in report["artifacts"] if a["quality"] in {"repaired", "partial"})
    assert not [w for w in report["warnings"] if "failed:" in w["message"]]


@pytest.mark.parametrize("kind", ["chrome_trace", "memory_snapshot", "crash_log"])
def test_the_first_formats_leave_only_look_alikes_unknown(kind: str, tmp_path: Path) -> None:
    analyze(ARTIFACTS / kind, tmp_path)
    report = json.loads((tmp_path / "report.json").read_bytes())
    unknown = {a["path"] for a in report["artifacts"] if a["quality"] == "unknown"}
    look_alikes = {
        "kineto__profile_Cloud-TPU_10.240.1.50.overview_page.json",  # a page of TensorBoard
        "tracelens__._huvideo_traces_rank_0_step_3.json",  # AppleDouble
    }
    assert unknown <= look_alikes
