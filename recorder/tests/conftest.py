"""Runs training scripts as users do: in a process of their own, on the recorder of this checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

RECORDER = Path(__file__).resolve().parent.parent

PREAMBLE = """
import os, signal, sys, time
import forensics_recorder as fr
"""
TORCH = """
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
"""

Run = Callable[..., "Recorded"]


class Recorded:
    """What a script left: its process and the files of each rank."""

    def __init__(self, out: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.out = out
        self.code = done.returncode
        self.stderr = done.stderr
        self.stdout = done.stdout

    def folder(self, rank: int = 0, attempt: int = 0) -> Path:
        return self.out / f"attempt_{attempt}" / f"rank_{rank}"

    def lines(self, stem: str, rank: int = 0) -> list[dict[str, Any]]:
        """All lines of a file but its header; a last line that is cut counts as none."""
        path = self.folder(rank) / f"{stem}.jsonl"
        texts = path.read_text().split("\n")[1:-1] if path.exists() else []
        return [json.loads(text) for text in texts]

    def end(self, rank: int = 0) -> dict[str, Any] | None:
        path = self.folder(rank) / "end.json"
        return json.loads(path.read_text()) if path.exists() else None


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run_script(script: str, *, timeout: float = 120, launcher: tuple[str, ...] = ()) -> Recorded:
        path, out = tmp_path / "train.py", tmp_path / "out"
        path.write_text(PREAMBLE + f"OUT = {str(out)!r}\n" + textwrap.dedent(script))
        known = {**os.environ, "PYTHONPATH": str(RECORDER), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, *launcher, str(path)]
        done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=timeout, cwd=tmp_path)
        return Recorded(out, done)

    return run_script
