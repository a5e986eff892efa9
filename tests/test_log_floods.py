"""Logs full of the same message: bounded, counted exactly, and nothing else is lost among it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import MemorySink, load
from test_log_columns import everything

from forensics.formats import _log_lines, _log_rows, _log_sequences, _log_session, log
from forensics.formats._log_quiet import Quiet, Sorted

FLOODS = [
    "step {n} loss nan grad_norm 1.5",
    "[rank{r}]: step {n} loss nan done",
    "2026-03-01 10:00:{s:02d},000 ERROR loader: shard {n} is unwell",
    "[rank{r}] ERROR loader: shard {n} is unwell",
    "NVRM: Xid (PCI:0000:3b:00): 13, pid={n}, x",
]


TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line {n}, in main',
    "    loss = step(batch)",
    "OSError: [Errno {e}] shard {n} is unwell",
]
KINDS = [
    [f"[rank{{r}}]: {line}" for line in TRACEBACK],
    [f"[rank{{r}}]: {line}" for line in TRACEBACK[:-1]]
    + ["[rank{r}]: ValueError: worker {n} exited with exit code {e}"],
    TRACEBACK,
    ["2026-03-01 10:00:{s:02d},000 " + line for line in TRACEBACK],
    ["2026-03-01 10:00:{s:02d},000 RuntimeError: worker {n} exited with exit code {e}"],
    ["[rank{r}]: RuntimeError: odd {n}", "[rank{r}]:   goes on {n}"],
    ["[rank{r}]: During handling of the above exception, another exception occurred:", ""],
    ["2026-03-01 10:00:{s:02d},000 ERROR loader: shard {n} is unwell"],
    ["[rank{r}] ERROR loader: shard {n} is unwell, retrying"],
    ["  at line {n}", "This is all that is known of {n}"],
    ["[rank{r}] step {n} loss 2.{n}"],
    ["NVRM: Xid (PCI:0000:3b:00): {e}, pid={n}, x"],
    ["nothing of note {n}"],
]


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (_log_rows, "MAX_SAME", 20), (_log_rows, "MAX_OF_ALL", 60), (_log_rows, "MAX_OF_EACH", 3),
        (_log_session, "_MANY_LEFT", 30), (_log_sequences, "_MANY", 4), (_log_lines, "LAST_BYTES", 0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)


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
    assert sorted(row["line"] for row in rows) == list(range(1, 21 * n_procs + 1))
    (warning,) = [warning for warning in sink.warnings if warning["code"] == "too-many-events"]
    assert warning["message"].startswith(f"{1000 - 21 * n_procs} ")
    repeated = [json.loads(row["fields"]) for row in rows if "n_repeats" in (row["fields"] or "")]
    assert sum(row["n_repeats"] for row in repeated) == 1000 - 20 * n_procs
    assert sorted(row["last_line"] for row in repeated) == list(range(1001 - n_procs, 1001))


@pytest.mark.parametrize("form", FLOODS)
def test_what_ends_a_log_is_kept_like_what_begins_it(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = flood(form)
    monkeypatch.setattr(_log_lines, "LAST_BYTES", sum(len(line) + 1 for line in lines[-15:]))
    assert {row["line"] for row in read(tmp_path, lines).rows("log_event")} >= set(range(986, 1001))


def test_a_flood_of_one_xid_hides_no_other_of_another_gpu(tmp_path: Path) -> None:
    lines = flood(FLOODS[-1])
    lines[700] = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    lines[800] = "NVRM: Xid (PCI:0000:9a:00): 13, pid=7, x"
    assert {701, 801} < {row["line"] for row in read(tmp_path, lines).rows("log_event")}


def test_a_flood_of_one_exception_hides_no_other(tmp_path: Path) -> None:
    lines = [line.format(n=n, e=5) for n in range(300) for line in TRACEBACK]
    lines[803] = "KeyError: 'odd'"
    rows = read(tmp_path, lines).rows("log_event")
    assert [row["line"] for row in rows if row["exception"] == "KeyError"] == [804]
    assert len(rows) == 22


def some_floods(seed: int) -> list[str]:
    """Exceptions and messages of several processes, their lines mixed or not."""
    draw = random.Random(seed)
    kinds = draw.sample(KINDS, draw.choice((1, 2, 3, 5)))
    n_ranks = draw.choice((1, 2, 5))
    lines: list[str] = []
    for n in range(draw.choice((30, 150))):
        form = draw.choice(kinds)
        ranks = list(range(n_ranks)) if draw.random() < 0.7 else [draw.randrange(n_ranks)]
        known = {"n": n, "e": draw.choice((5, 5, 5, 28, 137)), "s": n % 60}
        whole = draw.random() < 0.3
        for r in ranks if whole else [-1]:
            lines += [line.format(r=who, **known) for line in form for who in ([r] if whole else ranks)]
        if draw.random() < 0.02:
            del lines[-1]
        if draw.random() < 0.02:
            lines += [f"quiet {k}" for k in range(draw.choice((3, 300, 500)))]
    return lines


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 32), st.sampled_from((3000, 20_000, 1 << 20)), st.sampled_from((0, 700)))
def test_what_is_passed_over_is_counted_like_what_is_taken(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, seed: int, block: int, last: int
) -> None:
    folder = tmp_path_factory.mktemp("t")
    with monkeypatch.context() as patch:
        patch.setattr(_log_lines, "BLOCK_BYTES", block)
        patch.setattr(_log_lines, "LAST_BYTES", last)
        passed = everything(read(folder, some_floods(seed)))
        patch.setattr(Quiet, "sort", lambda self, block, notable: Sorted(notable, set(), {}, {}))
        assert passed == everything(read(folder, some_floods(seed)))


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
