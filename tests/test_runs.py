"""Runs of one program beside each other are told apart; ranks, hosts, epochs and restarts are not taken for runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from test_attempts import build

from forensics.models.processes import Mention
from forensics.models.runs import Lying, Series, tell_runs_apart
from forensics.pipeline import analyze

START = 1_796_000_000


def recorded(rank: int, pid: int, *, first: int = 0, at: int = 0, attempt: int = 0, scale: float = 1.0) -> str:
    """Twelve steps as a recorder writes them, a second each, from `at` seconds on."""
    header = {"format": "forensics.steps/1", "rank": rank, "world_size": 2, "host": "node-0", "pid": pid}
    lines = [{**header, "attempt": attempt}]
    lines += [{"step": first + n, "time": START + at + n, "loss": scale / (1 + first + n)} for n in range(12)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def printed(first: int = 0, at: int = 0) -> str:
    return "".join(
        json.dumps({"time": START + at + n, "step": first + n, "loss": 1.0 / (1 + n)}) + "\n" for n in range(12)
    )


def told_apart(tmp_path: Path, files: Mapping[str, str]) -> dict[str, int]:
    """Attempt of the process of each file's samples, where the case has any run; empty where it has none."""
    con = build(tmp_path, files)
    rows = con.execute(
        "SELECT DISTINCT a.path, p.attempt FROM sample AS s JOIN artifact AS a ON a.id = s.artifact_id"
        " JOIN proc AS p ON p.id = s.proc_id ORDER BY ALL"
    ).fetchall()
    runs = con.execute("SELECT count(DISTINCT run) FROM artifact").fetchall()[0][0]
    con.close()
    return dict(rows) if runs else {}


def test_recorders_of_other_processes_for_one_rank_are_runs_of_their_own(tmp_path: Path) -> None:
    pids = {("a", 0): 10, ("a", 1): 11, ("b", 0): 20, ("b", 1): 21}
    files = {f"{name}/rank_{rank}/steps.jsonl": recorded(rank, pid) for (name, rank), pid in pids.items()}
    assert told_apart(tmp_path, files) == {
        "a/rank_0/steps.jsonl": 0, "a/rank_1/steps.jsonl": 0, "b/rank_0/steps.jsonl": 1, "b/rank_1/steps.jsonl": 1,
    }  # fmt: skip


def test_files_of_one_name_that_count_the_same_steps_later_are_runs(tmp_path: Path) -> None:
    files = {"before/metrics.jsonl": printed(), "after/metrics.jsonl": printed(at=600)}
    assert told_apart(tmp_path, files) == {"before/metrics.jsonl": 0, "after/metrics.jsonl": 1}


def state(scale: float, last: int = 10) -> str:
    history = [{"step": n, "epoch": n / 10, "loss": scale / n} for n in range(1, last + 1)]
    return json.dumps({"global_step": last, "epoch": 1.0, "log_history": history})


def test_states_of_trainers_with_other_values_for_the_same_steps_are_of_runs(tmp_path: Path) -> None:
    files = {"lora-r8/trainer_state.json": state(2.0), "lora-r16/trainer_state.json": state(3.0)}
    assert told_apart(tmp_path, files) == {"lora-r8/trainer_state.json": 0, "lora-r16/trainer_state.json": 1}


def test_lives_of_a_run_stay_apart_within_it(tmp_path: Path) -> None:
    files = {
        "old/attempt_0/steps.jsonl": recorded(0, 7),
        "old/attempt_1/steps.jsonl": recorded(0, 8, first=9, at=60, attempt=1),
        "new/attempt_0/steps.jsonl": recorded(0, 9, at=900),
    }  # fmt: skip
    assert told_apart(tmp_path, files) == {
        "old/attempt_0/steps.jsonl": 0, "old/attempt_1/steps.jsonl": 1, "new/attempt_0/steps.jsonl": 2,
    }  # fmt: skip


ONE_JOB = {
    "ranks": {f"rank_{rank}/steps.jsonl": recorded(rank, 10 + rank) for rank in (0, 1)},
    "hosts with ranks of their own": {f"gpu{n}-a/steps.jsonl": recorded(n, 10) for n in (0, 1)},
    "a restart that the recorder counts": {
        "first/steps.jsonl": recorded(0, 7), "second/steps.jsonl": recorded(0, 8, at=60, attempt=1)
    },
    "a job that goes on in another folder": {
        "job-101/steps.jsonl": recorded(0, 7), "job-102/steps.jsonl": recorded(0, 8, first=9, at=60)
    },
    "hosts without ranks, at one time": {"ada/log.jsonl": printed(), "bob/log.jsonl": printed(at=1)},
    "epochs that count anew": {"epoch_0/log.jsonl": printed(), "epoch_1/log.jsonl": printed(at=60)},
    "training, then evaluation": {"train/log.jsonl": printed(), "eval/log.jsonl": printed(at=60)},
    "states of a trainer that went on elsewhere": {
        "first/trainer_state.json": state(2.0), "second/trainer_state.json": state(2.0, last=20)
    },
    "states of a trainer whose loss is NaN": {
        "first/trainer_state.json": state(2.0).replace("0.5}", "NaN}").replace("1.0}", "NaN}"),
        "second/trainer_state.json": state(2.0, last=20).replace("0.5}", "NaN}").replace("1.0}", "NaN}"),
    },
    "states of a trainer at its checkpoints, of which one was written again": {
        "checkpoint-5/trainer_state.json": state(2.0), "checkpoint-10/trainer_state.json": state(3.0)
    },
    "several files of one process": {"out/steps.jsonl": recorded(0, 7), "logs/steps.jsonl": recorded(0, 7)},
}  # fmt: skip


@pytest.mark.parametrize("files", ONE_JOB.values(), ids=ONE_JOB.keys())
def test_what_is_part_of_one_job_is_no_run(tmp_path: Path, files: Mapping[str, str]) -> None:
    assert told_apart(tmp_path, files) == {}


def test_thousands_of_ranks_are_compared_with_none() -> None:
    def unasked() -> Series:
        pytest.fail("no other folder has files of this rank")

    known = {"attempt": 0, "attempt_origin": "content", "rank_origin": "content", "host": "h"}
    lying = [
        Lying(f"job/r{rank}/steps.jsonl", "recorder_steps", [Mention(rank, 0, {**known, "rank": rank, "pid": rank})],
              unasked)
        for rank in range(4096)
    ]  # fmt: skip
    assert tell_runs_apart(lying)[1] == {}


def test_each_run_has_a_finding_of_its_own_and_no_restart_is_claimed(tmp_path: Path) -> None:
    nan = recorded(0, 8, at=60).replace('"loss": 0.125}', '"loss": NaN}')
    files = {"eager/steps.jsonl": recorded(0, 7), "inductor/steps.jsonl": nan}
    for name, text in files.items():
        (tmp_path / "job" / name).parent.mkdir(parents=True)
        (tmp_path / "job" / name).write_text(text)
    found = analyze(tmp_path / "job", tmp_path / "out")
    assert dict(found.report.job_facts)["Runs"] == "eager, inductor"
    assert "checkpoint-resume-incomplete" not in {finding.rule for finding in found.findings}


def test_runs_with_the_same_losses_keep_their_clocks(tmp_path: Path) -> None:
    con = build(tmp_path, {"a/rank_0/steps.jsonl": recorded(0, 7), "b/rank_0/steps.jsonl": recorded(0, 8, at=60)})
    offsets = con.execute("SELECT run, clock_offset_ns FROM artifact ORDER BY run").fetchall()
    con.close()
    assert offsets == [("a", 0), ("b", 0)]
