"""Temporary folders of runs that were killed are removed by the next run; those of living ones stay."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT

from forensics.leftovers import remove_leftovers, temporary_folder
from forensics.pipeline import analyze

_OLD_NS = 1_600_000_000_000_000_000


def _left_by_a_killed_process(prefix: str, where: Path) -> Path:
    code = (
        "import sys; from pathlib import Path; from forensics.leftovers import temporary_folder\n"
        "print(temporary_folder(sys.argv[1], Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, prefix, str(where)]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def test_what_a_killed_run_left_is_removed_and_what_a_living_one_uses_is_kept(tmp_path: Path) -> None:
    dead, living = _left_by_a_killed_process("work-", tmp_path), temporary_folder("work-", tmp_path)
    other = tmp_path / f"work-00000000-{os.getpid()}-x"  # of another machine, which may be at work
    other.mkdir()
    remove_leftovers("work-", tmp_path)
    assert not dead.exists() and living.exists() and other.exists()


def test_what_another_machine_left_is_removed_after_a_day(tmp_path: Path) -> None:
    other = tmp_path / "work-00000000-1-x"
    other.mkdir()
    os.utime(other, ns=(_OLD_NS, _OLD_NS))
    remove_leftovers("work-", tmp_path)
    assert not other.exists()


def test_an_analysis_cleans_up_after_a_killed_one(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "cache").mkdir(parents=True)
    left = [_left_by_a_killed_process(".building-", out), _left_by_a_killed_process("loading-", out / "cache")]
    analyze(ROOT / "fixtures" / "step-217" / "artifacts", out)
    assert not any(path.exists() for path in left)
