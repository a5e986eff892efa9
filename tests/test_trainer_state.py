from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from support import ARTIFACTS, MemorySink, load, needs_artifacts

from forensics.artifact import Source
from forensics.errors import ArtifactError
from forensics.formats import trainer_state

STATE = """{
  "best_metric": null,
  "epoch": 1.0,
  "global_step": 30,
  "is_world_process_zero": true,
  "log_history": [
    {"epoch": 0.3, "grad_norm": 1.25, "learning_rate": 5e-05, "loss": 2.5, "step": 10},
    {"epoch": 0.6, "grad_norm": NaN, "learning_rate": 4e-05, "loss": 0.0, "step": 20},
    {"epoch": 0.6, "eval_loss": Infinity, "eval_runtime": 3.5, "step": 20},
    {"epoch": 1.0, "extra": {"deep": {"key": 7}}, "loss": "1.5", "step": 30},
    {"epoch": 1.0, "train_loss": 1.6, "train_runtime": 60.0, "step": 30}
  ],
  "logging_steps": 10,
  "max_steps": 30,
  "stateful_callbacks": {"TrainerControl": {"args": {"should_training_stop": true}}},
  "trial_params": null
}
"""


def write(tmp_path: Path, text: str | bytes, name: str = "trainer_state.json") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def recognised(path: Path) -> int:
    return trainer_state.recognise(Source(path, path.name).head())


def series(sink: MemorySink, name: str) -> list[tuple[int, float]]:
    return [(row["step"], row["value"]) for row in sink.rows("sample") if row["name"] == name]


def test_every_row_of_the_history_becomes_samples_with_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, STATE)
    assert recognised(path) >= 90
    sink = load(trainer_state, path)
    assert series(sink, "loss") == [(10, 2.5), (20, 0.0), (30, 1.5)]
    assert series(sink, "learning_rate") == [(10, 5e-05), (20, 4e-05)]
    assert math.isnan(series(sink, "grad_norm")[1][1])
    assert series(sink, "eval_loss") == [(20, math.inf)]
    assert series(sink, "extra/deep/key") == [(30, 7.0)]
    assert {row["line"] for row in sink.rows("sample") if row["step"] == 10} == {7}
    assert {row["source"] for row in sink.rows("sample")} == {"metrics"}
    assert [c["capability"] for c in sink.coverage] == ["sample", "fact"]
    assert sink.coverage[0]["complete"] and sink.coverage[0]["n_kept"] == 5
    assert not sink.warnings


def test_the_mean_loss_of_the_run_is_no_loss_of_a_step(tmp_path: Path) -> None:
    sink = load(trainer_state, write(tmp_path, STATE))
    assert series(sink, "train_loss") == [(30, 1.6)]


def test_settings_are_facts_with_their_lines_and_deep_keys(tmp_path: Path) -> None:
    sink = load(trainer_state, write(tmp_path, STATE))
    facts = {fact["key"]: fact for fact in sink.facts}
    assert (facts["max_steps"]["number"], facts["max_steps"]["line"], facts["max_steps"]["scope"]) == (
        30.0,
        14,
        "option",
    )
    assert facts["stateful_callbacks.TrainerControl.args.should_training_stop"]["value"] == "true"
    assert sink.procs[0]["rank"] == 0


def test_a_file_cut_anywhere_keeps_its_complete_rows(tmp_path: Path) -> None:
    whole = len(load(trainer_state, write(tmp_path, STATE)).rows("sample"))
    ends_of_rows = [match.end() for match in re.finditer(r"^    \{.*\}", STATE, re.MULTILINE)]
    assert len(ends_of_rows) == 5
    for end in range(150, len(STATE) - 2, 13):
        sink = load(trainer_state, write(tmp_path, STATE[:end]))
        rows = sink.rows("sample")
        n_complete = sum(end >= at for at in ends_of_rows)
        assert len({(row["line"]) for row in rows}) == n_complete
        assert len(rows) <= whole
        assert sink.quality == "partial"
        assert sink.warnings[0]["code"] == "truncated"
        assert not any(c["complete"] for c in sink.coverage)


def test_a_cut_file_is_still_recognised(tmp_path: Path) -> None:
    for end in (120, 300, 500):
        assert recognised(write(tmp_path, STATE[:end])) >= 70


def test_a_damaged_row_costs_only_itself(tmp_path: Path) -> None:
    sink = load(trainer_state, write(tmp_path, STATE.replace('"loss": 0.0, "step": 20}', '"loss": 0.')))
    assert series(sink, "loss") == [(10, 2.5), (30, 1.5)]
    assert sink.warnings[0]["code"] == "bad-json"
    assert sink.warnings[0]["line"] == 8
    assert any(fact["key"] == "max_steps" for fact in sink.facts)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"log_history": 5}',
        '{"log_history": [1, "x", null, [], {"step": "x", "loss": []}]}',
        '{"log_history": [{"step": 1e400, "loss": 1' + "0" * 400 + "}]}",
        '{"global_step": ' + "[" * 100_000,
        '{"log_history": [' + "{" * 100_000,
        b"\xff\xfe\x00\xd8{",
        '{"global_step": 1, "x\\ud800": "\\udfff\\u0000"}',
    ],
)
def test_hostile_files_raise_nothing_but_the_agreed_error(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, text)
    recognised(path)
    try:
        sink = load(trainer_state, path)
    except ArtifactError:
        return
    for fact in sink.facts:
        json.dumps(fact).encode("utf-8")
        fact["value"].encode("utf-8")


def test_other_json_is_not_claimed(tmp_path: Path) -> None:
    for text in (
        '{"max_steps": 3}',
        '{"traceEvents": []}',
        '{"message": {"message": "x"}}',
        "plain",
        '[{"log_history": 1}]',
    ):
        assert recognised(write(tmp_path, text)) == 0


@needs_artifacts
def test_a_real_state_gives_every_row() -> None:
    path = ARTIFACTS / "crash_log" / "trainer_state_viz__trainer_state.json"
    document = json.loads(path.read_text())
    sink = load(trainer_state, path)
    assert sink.coverage[0]["n_kept"] == len(document["log_history"])
    expected = [(row["step"], row["loss"]) for row in document["log_history"] if "loss" in row]
    assert series(sink, "loss") == expected
    lines = path.read_text().split("\n")
    assert all(lines[row["line"] - 1].strip().startswith("{") for row in sink.rows("sample"))
    assert not sink.warnings
