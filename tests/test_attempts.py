"""Lives of a job told apart inside one log, and what follows from them for the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest

from forensics.assembly import assemble_case
from forensics.case import open_for_rules
from forensics.discovery import discover
from forensics.ingest import ingest
from forensics.pipeline import Analysis, analyze

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    " of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.05 GiB memory in use. Of the"
    " allocated memory 76.90 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated."
)


def traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/job/train.py", line 9, in main\n    step()\n{error}\n'


def steps(first: int, last: int, scale: float = 1.0) -> str:
    return "".join(f"step {n} loss {scale * (3.0 - 0.001 * n):.4f}\n" for n in range(first, last))


def write(tmp_path: Path, files: Mapping[str, str]) -> Path:
    folder = tmp_path / "artifacts"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def build(tmp_path: Path, files: Mapping[str, str]) -> duckdb.DuckDBPyConnection:
    loaded = ingest(discover(write(tmp_path, files), tmp_path / "work"), tmp_path / "cache")
    assemble_case(loaded, tmp_path / "case.duckdb")
    return open_for_rules(tmp_path / "case.duckdb")


def lives(con: duckdb.DuckDBPyConnection) -> list[tuple[int, int, int]]:
    """Attempt, first and last step of each."""
    return con.execute(
        "SELECT p.attempt, min(s.step), max(s.step) FROM sample AS s JOIN proc AS p ON p.id = s.proc_id"
        " GROUP BY p.attempt ORDER BY p.attempt"
    ).fetchall()


RESTARTED = {
    "torchrun says so": (
        steps(0, 60) + traceback("ValueError: no rows in shard 7") + "[default] Worker group FAILED. 3/3 attempts left;"
        " will restart worker group\n[default] Stopping worker group\nRestarting worker group\n" + steps(0, 30)
    ),
    "the scheduler puts the job back into the queue": (
        steps(0, 60)
        + "slurmstepd: error: *** JOB 41 ON node7 CANCELLED AT 2026-11-29T11:41:45 DUE TO JOB REQUEUE ***\n"
        + steps(0, 30)
    ),
    "it loads a checkpoint and falls back": (
        steps(0, 60) + traceback(OOM) + "=> loaded checkpoint 'out/checkpoint.pth.tar' (epoch 3)\n" + steps(40, 70)
    ),
    "it starts over after a crash": (
        steps(0, 60) + "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
        '  File "/job/train.py", line 9 in main\nSegmentation fault (core dumped)\n' + steps(0, 30)
    ),
    "it joins its communicator again": (
        "h1:70:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 - Init START\n" + steps(0, 60)
        + traceback("RuntimeError: NCCL communicator was aborted on rank 0.")
        + "h1:88:9 [0] NCCL INFO comm 0x2 rank 0 nranks 2 cudaDev 0 busId 1 - Init START\n" + steps(40, 70)
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", RESTARTED.values(), ids=RESTARTED.keys())
def test_a_restart_begins_another_attempt(tmp_path: Path, text: str) -> None:
    con = build(tmp_path, {"train.log": text})
    found = lives(con)
    assert [life[0] for life in found] == [0, 1]
    assert found[0][2] == 59 and found[1][1] in {0, 40}
    origin = con.execute("SELECT DISTINCT attempt_origin FROM proc WHERE attempt = 1").fetchall()
    assert origin == [("content",)]


NOT_RESTARTED = {
    "steps start over with every epoch": steps(0, 60) + "epoch 2\n" + steps(0, 60, 0.9),
    "an evaluation counts from one": steps(0, 60) + "Evaluating\n" + steps(1, 20, 0.8) + steps(60, 80),
    "an error that was handled at the end of an epoch": (
        steps(0, 60) + traceback("OSError: shard 7 is not readable") + "skipping it, continuing\n" + steps(0, 60)
    ),
    "an error at the end of an epoch without a new start": (
        steps(0, 60) + traceback("ValueError: report was not written") + steps(0, 60)
    ),
    "a checkpoint is loaded without a failure before": (
        steps(0, 60) + "=> loaded checkpoint 'best.pth.tar' (epoch 3)\n" + steps(1, 20)
    ),
    "communicators are made for one group after another": (
        "h1:70:9 [0] NCCL INFO comm 0x1 rank 0 nranks 2 cudaDev 0 busId 1 - Init START\n" + steps(0, 10)
        + traceback("ValueError: no rows in shard 7")
        + "h1:70:9 [0] NCCL INFO comm 0x2 rank 0 nranks 4 cudaDev 0 busId 1 - Init START\n" + steps(10, 30)
    ),
    "the launcher restarts nothing any more": (
        steps(0, 60) + traceback("ValueError: no rows in shard 7")
        + "[default] Worker group FAILED. 1/3 attempts left; will restart worker group\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", NOT_RESTARTED.values(), ids=NOT_RESTARTED.keys())
def test_what_only_looks_like_a_restart_is_none(tmp_path: Path, text: str) -> None:
    assert {life[0] for life in lives(build(tmp_path, {"train.log": text}))} == {0}


def test_agents_of_several_nodes_tell_of_one_restart(tmp_path: Path) -> None:
    left = "[default] Worker group FAILED. {n}/3 attempts left; will restart worker group\nRestarting worker group\n"
    failed = traceback("ValueError: no rows in shard 7")
    text = steps(0, 9) + failed + left.format(n=3) + failed + left.format(n=3) + steps(0, 8) + failed
    text += left.format(n=2) * 2 + steps(0, 7)
    assert lives(build(tmp_path, {"train.log": text})) == [(0, 0, 8), (1, 0, 7), (2, 0, 6)]


def test_a_life_in_the_log_joins_the_folder_of_its_attempt(tmp_path: Path) -> None:
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    con = build(
        tmp_path,
        {
            "all.log": "[rank0]: step 1 loss 0.51\n" + restart + "[rank0]: step 1 loss 0.52\n",
            "run/attempt_0/0/stderr.log": traceback("ValueError: no rows in shard 7"),
            "run/attempt_1/0/stderr.log": traceback(OOM),
        },
    )
    ranks = con.execute("SELECT attempt, rank FROM proc WHERE rank IS NOT NULL ORDER BY ALL").fetchall()
    assert ranks == [(0, 0), (1, 0)]


def roots(result: Analysis) -> list[tuple[str, int | None]]:
    return [(finding.rule, finding.attempt) for finding in result.verdict.root_causes]


def test_the_last_attempt_decides_and_what_it_recovered_from_is_told(tmp_path: Path) -> None:
    text = steps(0, 60) + traceback(OOM) + "Restarting worker group\n" + steps(0, 60) + "Training completed.\n"
    result = analyze(write(tmp_path, {"train.log": text, "exit_code.txt": "0\n"}), tmp_path / "out")
    assert result.verdict.status == "healthy"
    told = [f for f in result.findings if f.rule.startswith("memory-")]
    assert told
    assert all(f.severity in {"medium", "info"} and "survived" in f.facts for f in told)


def test_a_failure_of_another_kind_in_the_last_attempt_is_the_root(tmp_path: Path) -> None:
    index = "RuntimeError: CUDA error: an illegal memory access was encountered"
    text = steps(0, 60) + traceback(OOM) + "Restarting worker group\n" + steps(0, 60) + traceback(index)
    result = analyze(write(tmp_path, {"train.log": text}), tmp_path / "out")
    assert {attempt for _, attempt in roots(result)} == {1}
    assert any(f.attempt == 0 and f.rule.startswith("memory-") for f in result.findings)


def test_the_same_failure_in_every_attempt_is_one_cause(tmp_path: Path) -> None:
    text = steps(0, 60) + traceback(OOM) + "Restarting worker group\n" + steps(0, 60) + traceback(OOM)
    result = analyze(write(tmp_path, {"train.log": text}), tmp_path / "out")
    assert result.verdict.status == "root-cause"
    assert len(result.verdict.root_causes) == 1


def test_a_disk_that_fills_up_in_one_attempt_explains_the_next(tmp_path: Path) -> None:
    full = "OSError: [Errno 28] No space left on device: '/ckpt/step-60.pt'"
    later = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError"
    text = steps(0, 60) + traceback(full) + "Restarting worker group\n" + steps(0, 9) + traceback(full) + later
    result = analyze(write(tmp_path, {"train.log": text}), tmp_path / "out")
    assert {rule for rule, _ in roots(result)} == {"host-disk"}


def test_runs_side_by_side_are_no_attempts_that_follow_each_other(tmp_path: Path) -> None:
    done = steps(0, 60) + "Training completed.\n"
    result = analyze(
        write(tmp_path, {"run1/a.log": steps(0, 9) + traceback(OOM), "run2/a.log": done}), tmp_path / "out"
    )
    assert roots(result) == [("memory-capacity", 1)]


def test_attempts_in_folders_follow_each_other(tmp_path: Path) -> None:
    done = steps(0, 60) + "Training completed.\n"
    files = {"attempt_0/0/stderr.log": steps(0, 9) + traceback(OOM), "attempt_1/0/stderr.log": done}
    result = analyze(write(tmp_path, files), tmp_path / "out")
    assert result.verdict.status == "healthy"
    assert any(f.attempt == 0 and f.severity == "medium" for f in result.findings)


def stamped(first: int, last: int, minute: int) -> str:
    return "".join(
        f"2026-11-29T12:{minute:02d}:{n % 60:02d}Z INFO step {n} loss {3 - 0.001 * n:.4f}\n" for n in range(first, last)
    )


def test_an_artifact_without_an_attempt_belongs_to_that_in_which_it_was_written(tmp_path: Path) -> None:
    log = (
        stamped(0, 50, 1)
        + traceback("ValueError: no rows in shard 7")
        + "Restarting worker group\n"
        + stamped(0, 50, 30)
    )
    metrics = "".join(
        f'{{"step": {n}, "time": "2026-11-29T12:{minute:02d}:{n:02d}Z", "lr": 0.{n + 11}}}\n'
        for minute in (1, 30)
        for n in range(9)
    )
    late = "2026-11-29T12:30:20Z ERROR the queue is empty\n2026-11-29T12:30:21Z ERROR the queue is empty\n"
    con = build(tmp_path, {"train.log": log, "metrics.jsonl": metrics, "monitor.log": late})
    query = """
        SELECT DISTINCT a.path, p.attempt, e.at FROM (
            SELECT artifact_id, proc_id, 'sample' AS at FROM sample UNION ALL
            SELECT artifact_id, proc_id, 'event' FROM log_event
        ) AS e JOIN proc AS p ON p.id = e.proc_id JOIN artifact AS a ON a.id = e.artifact_id
        WHERE a.path <> 'train.log' ORDER BY ALL"""
    assert con.execute(query).fetchall() == [
        ("metrics.jsonl", 0, "sample"), ("metrics.jsonl", 1, "sample"), ("monitor.log", 1, "event"),
    ]  # fmt: skip


def test_metrics_without_times_fall_back_as_often_as_the_job_was_started_again(tmp_path: Path) -> None:
    log = steps(0, 60) + traceback("ValueError: no rows in shard 7") + "Restarting worker group\n" + steps(0, 60)
    metrics = "".join(f'{{"step": {n}, "lr": 0.{n + 11}}}\n' for n in [*range(0, 60, 10), *range(0, 30, 10)])
    con = build(tmp_path, {"train.log": log, "metrics.jsonl": metrics})
    query = """
        SELECT p.attempt, max(s.step) FROM sample AS s JOIN proc AS p ON p.id = s.proc_id
        JOIN artifact AS a ON a.id = s.artifact_id WHERE a.path = 'metrics.jsonl' GROUP BY 1 ORDER BY 1"""
    assert con.execute(query).fetchall() == [(0, 50), (1, 20)]


STOPPED = "slurmstepd: error: *** JOB 501 ON n12 CANCELLED AT 2026-04-01T01:39:30 DUE TO PREEMPTION ***\n"


def test_a_log_that_goes_on_where_another_was_stopped_is_its_next_life(tmp_path: Path) -> None:
    files = {
        "slurm-501.out": steps(0, 40) + STOPPED,
        "slurm-502.out": "resuming from step 30\n" + steps(30, 70) + traceback("OSError: [Errno 5] Input/output error"),
        "slurm-503.out": "resuming from step 60\n" + steps(60, 90) + "training done\n",
    }
    with build(tmp_path, files) as con:
        assert lives(con) == [(0, 0, 39), (1, 30, 69), (2, 60, 89)]


def test_a_job_that_was_preempted_and_went_on_to_its_end_is_healthy(tmp_path: Path) -> None:
    files = {
        "slurm-501.out": steps(0, 40) + STOPPED,
        "slurm-502.out": "resuming from step 30\n" + steps(30, 90) + "training done\n",
    }
    analysis = analyze(write(tmp_path, files), tmp_path / "out")
    assert analysis.verdict.status == "healthy"


@pytest.mark.parametrize(
    "files",
    [
        {"a.log": steps(0, 40) + STOPPED, "b.log": steps(0, 90)},  # another run from the beginning
        {"a.log": steps(0, 40), "b.log": "resuming from step 30\n" + steps(30, 90)},  # nothing stopped the first
        {"a.log": steps(0, 40) + STOPPED, "b.log": "resuming from step 900\n" + steps(900, 990)},  # of another job
        # Two that go on from the same checkpoint: trials, not lives of one job.
        {
            "a.log": steps(0, 40) + STOPPED,
            "b.log": "resuming from step 30\n" + steps(30, 90),
            "c.log": "resuming from step 30\n" + steps(30, 80, 2.0),
        },
    ],
)
def test_logs_beside_each_other_that_are_no_lives_of_one_job(tmp_path: Path, files: Mapping[str, str]) -> None:
    with build(tmp_path, files) as con:
        assert {life[0] for life in lives(con)} == {0}


KILLED = (
    "[Tue Jan 20 03:03:00 2026] Memory cgroup out of memory: Killed process {pid} (python) total-vm:4011212kB,"
    " anon-rss:1048000kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:3012kB oom_score_adj:100\n"
)


def test_what_only_the_kernel_tells_of_some_process_ended_no_job_that_completed(tmp_path: Path) -> None:
    files = {"train.log": steps(0, 90) + "training done\n", "dmesg.txt": KILLED.format(pid=20011)}
    assert analyze(write(tmp_path / "done", files), tmp_path / "done.out").verdict.status == "healthy"
    files = {"train.log": steps(0, 90), "dmesg.txt": KILLED.format(pid=20011)}  # nothing says that this one completed
    assert [f.rule for f in analyze(write(tmp_path / "open", files), tmp_path / "open.out").verdict.root_causes] == [
        "host-oom"
    ]
