"""Errors that no rule knows: programs are really run, and the verdict says where they first show."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import forensics

LIBRARY = """\
class ShardGapped(RuntimeError):
    pass

def decode(n):
    if n == 3:
        raise ShardGapped(f"manifest of shard {n} skips records")

def fetch(n):
    decode(n)
"""
PROGRAM = "import lib\nfor step in range(9):\n    print(f'step {step} loss 1.0', flush=True)\n    lib.fetch(step)\n"
NATIVE = """\
#include <cstdio>
#include <stdexcept>
struct RingGone : std::runtime_error { using std::runtime_error::runtime_error; };
int main() { std::printf("step 1 loss 1.0\\n"); std::fflush(stdout); throw RingGone("slot 5 is not mapped"); }
"""


def sentence(tmp_path: Path, command: list[str], cwd: Path) -> str:
    folder = tmp_path / "job"
    folder.mkdir()
    with (folder / "job.log").open("wb") as out:
        assert subprocess.run(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, check=False).returncode
    return forensics.analyze(folder, out=tmp_path / "out").report.verdict.sentence


def test_an_exception_of_a_library_names_its_innermost_frame(tmp_path: Path) -> None:
    (tmp_path / "lib.py").write_text(LIBRARY)
    (tmp_path / "train.py").write_text(PROGRAM)
    said = sentence(tmp_path, [sys.executable, "train.py"], tmp_path)
    assert "lib.ShardGapped: manifest of shard 3 skips records, in decode (" in said and "lib.py:6)" in said


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_an_exception_of_native_code_is_located(tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text(NATIVE)
    subprocess.run(["g++", "-o", "x", "x.cpp"], cwd=tmp_path, check=True)
    said = sentence(tmp_path, ["./x"], tmp_path)
    assert "job.log:2: terminate called after throwing an instance of 'RingGone'" in said and "slot 5" in said


def test_a_script_without_its_program_is_located(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo preparing\nwarpctl-sync --all\nexit $?\n")
    said = sentence(tmp_path, ["bash", "run.sh"], tmp_path)
    assert "job.log:2: run.sh: line 2: warpctl-sync: command not found" in said
