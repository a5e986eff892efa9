"""Logs full of the same message: bounded, counted exactly, and nothing else is lost among it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.formats import _log_rows, _log_session, log

FLOODS = [
    "step {n} loss nan grad_norm 1.5",
    "[rank{r}]: step {n} loss nan done",
    "2026-03-01 10:00:{s:02d},000 ERROR loader: shard {n} is unwell",
    "[rank{r}] ERROR loader: shard {n} is unwell",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid={n}, x",
]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_log_rows, "MAX_SAME", 20)
    monkeypatch.setattr(_log_session, "_MANY_LEFT", 30)


def read(tmp_path: Path, lines: list[str]) -> MemorySink:
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines) + "\n")
    return load(log, path)


def flood(form: str, n_lines: int = 1000) -> list[str]:
    return [form.format(n=n, r=n % 2, s=n % 60) for n in range(n_lines)]


@pytest.mark.parametrize("form", FLOODS)
def test_a_flood_keeps_the_first_of_each_process_and_counts_the_others(tmp_path: Path, form: str) -> None:
    sink = read(tmp_path, flood(form))
    rows = sink.rows("log_event")
    n_procs = 2 if "{r}" in form else 1
    assert [row["line"] for row in rows] == list(range(1, 20 * n_procs + 1))
    (warning,) = [warning for warning in sink.warnings if warning["code"] == "too-many-events"]
    assert warning["message"].startswith(f"{1000 - 20 * n_procs} ")


@pytest.mark.parametrize("form", FLOODS[:2])
def test_the_numbers_of_a_flood_are_all_read(tmp_path: Path, form: str) -> None:
    steps = [row["step"] for row in read(tmp_path, flood(form)).rows("sample") if row["name"] == "loss"]
    assert steps == list(range(1000))


@pytest.mark.parametrize("form", FLOODS)
def test_what_else_is_said_in_a_flood_is_found(tmp_path: Path, form: str) -> None:
    lines = flood(form)
    lines[600] = "RuntimeError: CUDA error: an illegal memory access was encountered"
    lines[700] = 'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: odd'
    lines[900] = "Training finished"
    sink = read(tmp_path, lines)
    late = [(row["line"], row["exception"], row["signature"]) for row in sink.rows("log_event") if row["line"] > 200]
    assert (601, "RuntimeError") in [row[:2] for row in late]
    assert [row[:2] for row in late if row[1] == "ValueError"] == [(703, "ValueError")]
    assert (903, None, "job-completed") in late


def test_lines_that_only_look_notable_are_read_for_their_numbers(tmp_path: Path) -> None:
    sink = read(tmp_path, [f"[rank{n % 3}]: step {n} done, loss 0.{n}" for n in range(500)] + ["[rank7]: all done ok"])
    assert [row["step"] for row in sink.rows("sample") if row["name"] == "loss"] == list(range(500))
    assert {known["rank"] for known in sink.procs.values()} == {0, 1, 2, 7}
