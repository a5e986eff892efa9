"""`forensics diff`: where a good and a failed run part first, and what else differs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from stored_states import safetensors
from support import ROOT

from forensics.assembly import assemble_case
from forensics.case import create_case
from forensics.cli import main
from forensics.comparison import Comparison, compare
from forensics.comparison_text import to_json, to_markdown, to_text
from forensics.discovery import discover
from forensics.errors import CaseError
from forensics.ingest import ingest

Compare = Callable[[dict[str, str], dict[str, str]], Comparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compare:
    """Compares two jobs given as texts of files."""

    def made(*jobs: dict[str, str]) -> Comparison:
        for name, files in zip(("good", "failed"), jobs, strict=True):
            for file, text in files.items():
                (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / name / file).write_text(text)
            (tmp_path / f"{name}.out").mkdir()
            loaded = ingest(discover(tmp_path / name, tmp_path / "work"), tmp_path / "cache")
            assemble_case(loaded, tmp_path / f"{name}.out" / "case.duckdb")
        return compare(tmp_path / "good.out", tmp_path / "failed.out")

    return made


def metrics(values: list[float | None], **more: float) -> str:
    rows = [{"step": step, "loss": value, "step_time": 0.1 * step, **more} for step, value in enumerate(values)]
    return "".join(json.dumps(row) + "\n" for row in rows).replace("null", "NaN")


def test_a_job_that_really_failed_parts_from_its_twin_where_its_label_says(tmp_path: Path) -> None:
    for run in ("step-217", "step-217-healthy"):
        loaded = ingest(discover(ROOT / "fixtures" / run / "artifacts", tmp_path / "work"), tmp_path / "cache")
        assemble_case(loaded, tmp_path / f"{run}.duckdb")
    found = compare(tmp_path / "step-217-healthy.duckdb", tmp_path / "step-217.duckdb")
    assert found.first is not None
    assert (found.first.rank, found.first.step, found.first.what) == (1, 217, "loss")
    assert (found.first.good, found.first.failed) == ("0.5402295", "nan")


def test_the_first_step_that_differs_is_named_before_later_and_larger_ones(compared: Compare) -> None:
    found = compared(
        {"metrics.jsonl": metrics([3.0, 2.0, 1.5, 1.2]), "config.json": '{"lr": 0.1, "layers": 4}'},
        {"metrics.jsonl": metrics([3.0, 2.0, 1.5001, None]), "config.json": '{"lr": 0.2, "layers": 4}'},
    )
    assert found.first is not None
    assert (found.first.step, found.first.what, found.first.good, found.first.failed) == (2, "loss", "1.5", "1.5001")
    assert found.first_in == "metrics by step"
    settings = found.sections[0]
    assert [(d.what, d.good, d.failed) for d in settings.differences] == [("option lr", "0.1", "0.2")]


def test_runs_that_are_alike_have_no_divergence_whatever_their_clocks_say(compared: Compare) -> None:
    good = {"metrics.jsonl": metrics([3.0, 2.0], samples_per_second=10.0)}
    found = compared(good, {"metrics.jsonl": metrics([3.0, 2.0], samples_per_second=11.0)})
    assert found.first is None
    assert not any(section.n_all for section in found.sections)
    assert "None: what both runs recorded is alike." in to_text(found)


def test_a_run_that_ends_early_parts_at_the_step_it_did_not_do(compared: Compare) -> None:
    found = compared({"metrics.jsonl": metrics([3.0, 2.0, 1.0])}, {"metrics.jsonl": metrics([3.0, 2.0])})
    assert found.first is not None
    assert (found.first.what, found.first.step, found.first.good, found.first.failed) == ("last step", 2, "2", "1")


def test_findings_of_one_run_alone_are_told_those_of_the_failed_run_first_by_severity(tmp_path: Path) -> None:
    of = {
        "good": [("efficiency-copies", "high", 0, None, "copies"), ("memory-leak", "high", 0, 7, "grows")],
        "failed": [
            ("numerics-init", "info", 0, 1, "wide"), ("numerics-init", "medium", 0, 2, "wider"),
            ("memory-leak", "high", 0, 9, "grows more"),
            ("memory-leak", "high", 1, 8, "grows too"), ("host-oom", "critical", None, 12, "no memory left"),
        ],
    }  # fmt: skip
    for run, findings in of.items():
        con = create_case(tmp_path / f"{run}.duckdb")
        con.executemany(
            "INSERT INTO finding (id, rule, variant, severity, strength, rank, step, message, fingerprint)"
            " VALUES (?, ?, 'v', ?, 'strong', ?, ?, ?, '')",
            [(n, rule, severity, *rest) for n, (rule, severity, *rest) in enumerate(findings)],
        )
        con.execute("CHECKPOINT")
        con.close()
    found = compare(tmp_path / "good.duckdb", tmp_path / "failed.duckdb")
    (section,) = [section for section in found.sections if section.name == "findings"]
    # What both have on one rank is no difference, whatever its step and words.
    assert [(d.what, d.rank, d.step, d.good, d.failed) for d in section.differences] == [
        ("critical host-oom", None, 12, None, "no memory left"),
        ("high memory-leak", 1, 8, None, "grows too"),
        ("medium numerics-init", 0, 1, None, "wide"),
        ("high efficiency-copies", 0, None, "copies", None),
    ]
    assert section.n_all == 4
    assert found.first is None  # a finding says what a rule thinks of a run, not where the runs part
    assert "FINDINGS" in to_text(found)


def test_stored_tensors_and_compilations_that_differ_are_told(tmp_path: Path) -> None:
    ones = np.ones((2, 3), np.float32)
    for run, factor in (("good", 1.0), ("failed", 1.5)):
        job = tmp_path / run
        state = {"same": ones, "rounded": ones * np.float32(1 + 3e-7 * factor), "moved": ones * factor, "cast": ones}
        state |= {"nan": ones * np.nan if run == "failed" else ones}
        state["cast"] = ones.astype(np.float16) if run == "failed" else ones
        safetensors(job / "checkpoint-20" / "model.safetensors", state)
        guards = "".join(
            f"[rank0]:V1118 11:41:39.5 7 torch/_dynamo/guards.py:2] [0/{n}] [__recompiles] Recompiling function f in"
            f" /job/train.py:4\n[rank0]:V1118 11:41:39.5 7 torch/_dynamo/guards.py:2] [0/{n}] [__recompiles]     -"
            f" 0/0: tensor 'x' size mismatch at index 0. expected 4, actual {4 + n}\n"
            for n in range(1, 2 if run == "good" else 4)
        )
        (job / "stderr.log").write_text(guards)
        loaded = ingest(discover(job, tmp_path / "work"), tmp_path / "cache")
        assemble_case(loaded, tmp_path / f"{run}.duckdb")
    found = compare(tmp_path / "good.duckdb", tmp_path / "failed.duckdb")
    sections = {section.name: section.differences for section in found.sections}
    assert [d.what.rpartition(" ")[2] for d in sections["stored tensors"]] == ["nan", "cast", "moved"]
    assert found.first is not None
    assert (found.first.what, found.first.step) == ("checkpoint-20/model.safetensors: nan", 20)
    assert sections["stored tensors"][2].failed == "float32 [2,3], norm 3.674235, 0 not finite"
    recompiled = [d for d in sections["compilations"] if d.what == "recompile of f"]
    assert [(d.good, d.failed) for d in recompiled] == [("1 times, 0.000 s", "3 times, 0.000 s")]


def test_the_first_divergence_says_whose_it_is_or_that_nothing_tells(tmp_path: Path, compared: Compare) -> None:
    found = compared({"metrics.jsonl": metrics([3.0, 2.0])}, {"metrics.jsonl": metrics([3.0, 2.5])})
    assert "step 1: loss (metrics by step; of which rank is not recorded)" in to_text(found)


def test_operators_of_one_rank_are_held_against_those_of_the_same_rank(tmp_path: Path) -> None:
    for run, n_calls in (("good", 2), ("failed", 5)):
        con = create_case(tmp_path / f"{run}.duckdb")
        con.execute("INSERT INTO string VALUES (1, 'aten::log')")
        calls = [(row, rank) for rank, n in ((0, 2), (1, n_calls)) for row in range(10 * rank, 10 * rank + n)]
        con.executemany(
            "INSERT INTO slice (artifact_id, row, rank, ts_ns, kind, name_id, dur_ns)"
            " VALUES (0, ?, ?, 1, 'cpu_op', 1, 5)",
            [list(call) for call in calls],
        )
        con.execute("CHECKPOINT")
        con.close()
    found = compare(tmp_path / "good.duckdb", tmp_path / "failed.duckdb")
    (section,) = [section for section in found.sections if section.name == "operators and kernels"]
    assert [(d.rank, d.what, d.good, d.failed) for d in section.differences] == [
        (1, "cpu_op aten::log", "2 calls, 0.000 ms", "5 calls, 0.000 ms")
    ]
    assert found.first is not None and found.first.rank == 1


def test_output_is_bounded_masked_and_escaped(compared: Compare) -> None:
    many = {f"option_{n}": n for n in range(40)}
    good = json.dumps({**many, "note_text": "<b>|`x", "hf_token": "hf_abcdefghijklmnopqrstuvwxyz0123456789"})
    failed = json.dumps(
        {name: value + 1 for name, value in many.items()} | {"note_text": "y", "hf_token": "none-at-all"}
    )
    found = compared({"config.json": good}, {"config.json": failed})
    text = to_text(found)
    assert "SETTINGS AND ENVIRONMENT (FIRST 20 OF 4" in text
    for shown in (text, to_markdown(found), to_json(found)):
        assert "hf_abc" not in shown
        assert "none-at-all" not in shown
    assert json.loads(to_json(found))["sections"][0]["n_all"] >= 41
    assert "<b>|" not in to_markdown(found)


def test_what_is_no_case_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaseError, match="not found"):
        compare(tmp_path, tmp_path)
    (tmp_path / "case.duckdb").write_text("no database")
    with pytest.raises(SystemExit) as ended:
        main(["diff", str(tmp_path), str(tmp_path)])
    assert ended.value.code == 2
    assert "cannot be opened" in capsys.readouterr().err
