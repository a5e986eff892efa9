"""What the labels of the fixtures claim stands in the artifacts: checked without the analyzer."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, fixture_program

FIXTURES = ROOT / "fixtures"


check = fixture_program("check")
JOBS: dict[str, dict[str, Any]] = fixture_program("make").all_jobs()
CLAIMED = sorted(
    path.parent.name for path in FIXTURES.glob("*/expected.toml") if "[[claim]]" in path.read_text("utf-8")
)


@pytest.mark.parametrize("name", CLAIMED)
def test_the_artifacts_bear_out_every_claim_of_the_label(name: str) -> None:
    assert list(check.problems(name)) == []


def test_every_small_program_has_claims_on_both_sides() -> None:
    programs = FIXTURES / "programs"
    small = {name for name, job in JOBS.items() if "import Job" in (programs / job["program"]).read_text()}
    assert len(small) >= 60
    assert small <= set(CLAIMED)


def test_the_manifest_says_with_what_each_claimed_fixture_was_made() -> None:
    manifest = tomllib.loads((FIXTURES / "MANIFEST.toml").read_text("utf-8"))
    for name in CLAIMED:
        facts = manifest[name]
        assert facts["command"] == JOBS[name]["script"].strip()
        assert facts["program"] == JOBS[name]["program"]
        assert all(facts[key] for key in ("date", "python", "torch"))


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        ({"line": "^step 3$"}, True),
        ({"line": "^step 4$"}, False),
        ({"line": "step", "n": 3}, False),
        ({"where": {"step": 1, "loss": "not finite"}}, True),
        ({"where": {"step": 0, "loss": "not finite"}}, False),
        ({"where": {"loss": "< 3"}, "n": 1}, True),
        ({"where": {"role": "parameter"}, "constant": "checksum"}, True),
        ({"where": {"role": "parameter"}, "varies": "checksum"}, False),
        ({"birth": {"op": "aten::log", "step": 1}}, True),
        ({"birth": {"op": "aten::mul"}}, False),
        ({"nan_birth": {"op": "aten::mul"}}, True),
        ({"other": "other/artifacts/rows.jsonl", "field": "loss", "parts": 0}, True),
        ({"other": "other/artifacts/rows.jsonl", "field": "loss", "parts": -1}, False),
        ({"other": "other/artifacts/rows.jsonl", "where": {"step": 0}, "field": "loss", "times": 2.0}, True),
        ({"other": "other/artifacts/rows.jsonl", "where": {"step": 0}, "field": "loss", "times": 4.0}, False),
        ({"file": "absent.log", "line": "x", "n": 0}, False),
    ],
)
def test_a_claim_that_does_not_hold_is_found(
    claim: dict[str, Any], holds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "FIXTURES", tmp_path)
    place = {"step": 1, "n_nan": 0, "n_inf": 0}
    rows: list[dict[str, Any]] = [
        {"format": "forensics.steps/1"},
        {"step": 0, "loss": 2.0},
        {"step": 1, "loss": float("nan")},
        *({"step": step, "role": "parameter", "checksum": 5} for step in range(3)),
        place | {"order": 0, "op": "aten::log", "role": "input"},
        place | {"order": 0, "op": "aten::log", "role": "output", "n_inf": 1},
        place | {"order": 1, "op": "aten::mul", "role": "input", "n_inf": 1},
        place | {"order": 1, "op": "aten::mul", "role": "output", "n_nan": 1},
    ]
    for name, factor in (("job", 1.0), ("other", 0.5)):
        folder = tmp_path / name / "artifacts"
        folder.mkdir(parents=True)
        scaled = [row | {"loss": row["loss"] * factor} if "loss" in row else row for row in rows]
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scaled))
        (folder / "job.log").write_text("step 2\nstep 3\n")
    file = claim.get("file", "job.log" if "line" in claim else "rows.jsonl")
    body = "".join(f"{key} = {toml(value)}\n" for key, value in (claim | {"file": file}).items())
    (tmp_path / "job" / "expected.toml").write_text(f"[[claim]]\n{body}")
    assert (list(check.problems("job")) == []) is holds


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(part)}" for key, part in value.items()) + " }"
    return json.dumps(value)
