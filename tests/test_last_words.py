"""A log that ends in a traceback is not outvoted by an exit code, which may be that of another command."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.pipeline import analyze

STEPS = "2026-03-01 10:00:00 INFO step 1 loss 2.1\n2026-03-01 10:00:05 INFO step 2 loss 2.0\n"
CRASH = """Traceback (most recent call last):
  File "/job/train.py", line 40, in <module>
    main()
  File "/job/train.py", line 33, in main
    h = lin(x)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)
"""


@pytest.mark.parametrize(
    ("files", "status"),
    [
        ({"train.log": STEPS + CRASH}, "not-established"),
        ({"train.log": STEPS + CRASH + "\n\n"}, "not-established"),
        ({"train.log": STEPS + CRASH + "2026-03-01 10:00:09 INFO evaluation skipped\n" + STEPS}, "healthy"),
        ({"stdout.log": STEPS, "stderr.log": CRASH}, "healthy"),  # what stdout says last came when?
    ],
)
def test_a_traceback_at_the_end_of_a_log_stands_against_exit_code_0(
    files: dict[str, str], status: str, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "exit_code.txt").write_text("0\n")
    for name, text in files.items():
        (job / name).write_text(text)
    assert analyze(job, tmp_path / "out").verdict.status == status


@pytest.mark.parametrize("name", ["train.log", "stderr.log"])
def test_weak_evidence_of_another_cause_does_not_stand_for_an_error_that_no_rule_explains(
    name: str, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    job.mkdir()
    steps = "".join(f"2026-03-01 10:00:0{n} INFO step {n} loss {'nan' if n > 1 else 0.5}\n" for n in range(4))
    (job / "stdout.log").write_text(steps)
    (job / name).write_text(steps + CRASH if name == "train.log" else CRASH)
    verdict = analyze(job, tmp_path / "out").verdict
    assert (verdict.status, list(verdict.root_causes)) == ("not-established", [])
    assert "mat1 and mat2 shapes" in verdict.sentence
    assert any("not finite" in finding.message for finding in verdict.others)


def test_weak_evidence_that_the_last_error_is_itself_stays_a_cause(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    nan = CRASH.replace(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x8 and 16x2)", "ValueError: Loss is nan"
    )
    (job / "train.log").write_text("".join(f"step {n} loss {'nan' if n > 1 else 0.5}\n" for n in range(4)) + nan)
    verdict = analyze(job, tmp_path / "out").verdict
    assert [finding.rule for finding in verdict.root_causes] == ["numerics-nan-provenance"]


def test_an_error_is_explained_by_what_explains_the_one_that_it_came_out_of(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "launch.log").write_text(
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to (n0, 1234).\n"
        "Traceback (most recent call last):\n"
        '  File "/env/torch/distributed/c10d_rendezvous_backend.py", line 155, in _create_tcp_store\n'
        "    store = TCPStore(\n"
        "TimeoutError: The client socket has timed out after 60s while trying to connect to (n0, 1234).\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\n"
        '  File "/env/torch/distributed/c10d_rendezvous_backend.py", line 177, in _create_tcp_store\n'
        "    raise RendezvousConnectionError(\n"
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: "
        "The connection to the C10d store has failed.\n"
    )
    verdict = analyze(job, tmp_path / "out").verdict
    assert [f.rule for f in verdict.root_causes] == ["distributed-config"]


def test_an_error_that_the_job_went_on_after_is_told_of_a_healthy_job(tmp_path: Path) -> None:
    oom = "CUDA out of memory. Tried to allocate 2.00 GiB."
    (tmp_path / "train.log").write_text(
        f"{STEPS}2026-03-01 10:00:06 WARNING caught: {oom}; skipping batch\n"
        "2026-03-01 10:00:09 INFO step 3 loss 1.9\n2026-03-01 10:00:10 INFO Training completed successfully\n"
    )
    verdict = analyze(tmp_path / "train.log", tmp_path / "out").verdict
    assert verdict.status == "healthy"
    assert f'went on after an error, "caught: {oom}' in verdict.sentence and "(train.log:3)" in verdict.sentence


def test_an_error_without_a_cause_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(STEPS + CRASH.replace("4x8", "4x8 " + "and so on " * 60))
    said = " ".join(analyze(tmp_path / "train.log", tmp_path / "out").verdict.reasons)
    assert said.count("mat1 and mat2") == 1 and said.endswith("The job failed with it.")
