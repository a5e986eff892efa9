"""Failed jobs whose logs name no error: the line that is unlike all others is shown, as weak as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

import forensics
from forensics.finding import Verdict

STEPS = "".join(f"step {n} loss {3 - n / 100:.4f} lr {n * 1e-6:.1e}\n" for n in range(150))
BARS = "".join(f"Epoch 1: {n:3d}%|{'█' * (n // 20)}| {n}/100 [00:{n % 60:02d}<00:10, 7.{n}it/s]\n" for n in range(100))
GREEK = ("alpha", "beta", "gamma", "delta", "rho", "phi")
ODD = "halo buffers of neighbour 7 were swapped out by the fabric\n"


def verdict(tmp_path: Path, text: str, code: int | None = 1, **more: str) -> Verdict:
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "rank_3.log").write_text(text)
    for name, content in more.items():
        (folder / f"{name}.log").write_text(content)
    if code is not None:
        (folder / "exit_code.txt").write_text(f"{code}\n")
    return forensics.analyze(folder, out=tmp_path / "out").verdict


@pytest.mark.parametrize("lines", [STEPS, BARS])
def test_the_only_line_of_its_kind_near_the_end_is_where_to_look(tmp_path: Path, lines: str) -> None:
    parts = lines.splitlines(keepends=True)
    found = verdict(tmp_path, "loading the model\n" + "".join(parts[:-20]) + ODD + "".join(parts[-20:]))
    assert (found.status, len(found.root_causes)) == ("not-established", 0)
    assert found.earliest is not None and found.earliest.weak and found.earliest.rank == 3
    assert found.earliest.evidence.line == len(parts) - 18
    assert "halo buffers" in found.reasons[-1] and "an indication of where to look, not a cause" in found.reasons[-1]
    assert found.reasons[0].startswith("The job failed: exit code 1")


@pytest.mark.parametrize("code", [0, None])
def test_a_job_that_is_not_known_to_have_failed_has_no_such_line(tmp_path: Path, code: int | None) -> None:
    assert verdict(tmp_path, STEPS + ODD + STEPS[-400:], code).earliest is None


@pytest.mark.parametrize(
    "text",
    [
        ODD + STEPS,  # at the beginning, as a start says many things once
        STEPS[:400] + ODD,  # of a short log
        STEPS + "".join(f"{word} of the last stage came to rest\n" for word in GREEK),
        STEPS,
        STEPS + "done\n",
        "".join(f"{'abcdefghij'[n // 10]}{'klmnopqrst'[n % 10]} tells something of its own\n" for n in range(100)),
    ],
)
def test_a_log_in_which_nothing_is_rare_near_the_end_names_no_line(tmp_path: Path, text: str) -> None:
    assert verdict(tmp_path, text).earliest is None


def test_an_error_that_is_known_goes_before(tmp_path: Path) -> None:
    found = verdict(tmp_path, STEPS + ODD + STEPS[-400:] + "ERROR the loader gave up\n")
    assert found.earliest is not None and not found.earliest.weak
    assert "halo" not in " ".join(found.reasons)
