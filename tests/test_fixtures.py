"""The fixtures are complete, small and free of the machine that made them."""

from __future__ import annotations

import gzip
import tomllib
from pathlib import Path

import pytest
from support import ROOT, fixture_program

FIXTURES = ROOT / "fixtures"
NAMES = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir() and path.name != "programs")
REQUIRED = {
    "id": str,
    "source": str,
    "title": str,
    "class": str,
    "split": str,
    "healthy": bool,
    "accept": list,
    "consequence": list,
    "reject": list,
    "reason": str,
    "strength": str,
    "difficulty": int,
    "reach": str,
    "text": str,
    "numbers": str,
}
JOBS = fixture_program("make").all_jobs()
MACHINE_PATHS = (str(ROOT).encode(), b"/root", b"/home/")


def label_of(name: str) -> dict[str, object]:
    return tomllib.loads((FIXTURES / name / "expected.toml").read_text(encoding="utf-8"))


def artifacts_of(name: str) -> list[Path]:
    return sorted(path for path in (FIXTURES / name / "artifacts").rglob("*") if path.is_file())


def size_of(names: list[str]) -> int:
    return sum(path.stat().st_size for name in names for path in artifacts_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_has_artifacts_and_a_complete_label(name: str) -> None:
    label = label_of(name)
    assert {field: type(label.get(field)) for field in REQUIRED} == REQUIRED
    assert label["id"] == name
    assert any(path.stat().st_size for path in artifacts_of(name))
    assert bool(label["accept"]) is not label["healthy"]
    assert not set(label["accept"]) & {*label["consequence"], *label["reject"]}


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_names_a_program_that_exists(name: str) -> None:
    assert (ROOT / str(label_of(name)["source"])).is_file()


@pytest.mark.parametrize("name", NAMES)
def test_no_artifact_holds_a_path_of_the_machine(name: str) -> None:
    for path in artifacts_of(name):
        data = path.read_bytes()
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        assert not [place for place in MACHINE_PATHS if place in data], path


@pytest.mark.parametrize("name", NAMES)
def test_a_fixture_can_be_made_anew_and_is_described(name: str) -> None:
    assert (FIXTURES / "programs" / JOBS[name]["program"]).samefile(ROOT / str(label_of(name)["source"]))
    assert f"`{name}`" in (FIXTURES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-healthy")])
def test_a_failing_fixture_has_a_healthy_twin_by_the_same_program(name: str) -> None:
    twin = f"{name}-healthy" if f"{name}-healthy" in NAMES else f"{name.partition('-')[0]}-healthy"
    assert label_of(twin)["healthy"]
    assert not label_of(name)["healthy"]


def test_all_fixtures_together_stay_small() -> None:
    assert size_of(NAMES) < 12_000_000
    assert size_of(["step-217", "step-217-healthy"]) < 3_000_000
