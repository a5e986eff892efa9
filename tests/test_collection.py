"""Evidence of living processes, taken without harming them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.cli import main
from forensics.collection import collect
from forensics.errors import ForensicsError
from forensics.investigation import Case
from forensics.pipeline import analyze

pytestmark = pytest.mark.installed

JOB = """
import faulthandler, signal, subprocess, sys, time
if "handled" in sys.argv:
    faulthandler.register(signal.SIGUSR2, open(sys.argv[1], "w"), all_threads=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    known = {**os.environ, "RANK": "3", "WORLD_SIZE": "8", "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz"}
    command = [sys.executable, "-c", JOB, str(tmp_path / "stacks.txt"), "handled"]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        os.killpg(process.pid, signal.SIGKILL)


def test_a_process_and_its_children_are_described_and_live_on(job: subprocess.Popen[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    taken = collect([job.pid], out, samples=1)
    assert job.poll() is None
    folder = out / "rank_3" / f"pid_{job.pid}"
    assert "RANK=3" in (folder / "env.txt").read_text()
    assert "hf_abc" not in (folder / "env.txt").read_text()
    assert "wchan" in (folder / "threads.txt").read_text()
    assert len(list((out / "rank_3").glob("pid_*"))) == 2  # the child counts to its parent's rank
    manifest = json.loads((out / "collected.json").read_text())
    assert len(manifest["taken"]) == len(taken)
    assert all((out / one.path).is_file() for one in taken if one.path)
    assert all(one.note for one in taken if one.path is None)


def test_a_signal_is_sent_only_to_a_process_that_handles_it(job: subprocess.Popen[str], tmp_path: Path) -> None:
    taken = collect([job.pid], tmp_path / "out", samples=1)
    sent = {one.what: one.note for one in taken if one.what.startswith("faulthandler")}
    assert sent[f"faulthandler signal to {job.pid}"].startswith("SIGUSR2 sent")
    assert sorted(note.split(":")[0] for note in sent.values()) == [
        "SIGUSR2 sent", "the process does not handle SIGUSR2; not sent"
    ]  # fmt: skip
    time.sleep(0.2)
    assert "Current thread" in (tmp_path / "stacks.txt").read_text()


def test_what_was_collected_can_be_analyzed(job: subprocess.Popen[str], tmp_path: Path) -> None:
    collect([job.pid], tmp_path / "out", samples=1)
    analyze(tmp_path / "out", tmp_path / "analysis")
    with Case(tmp_path / "analysis") as case:
        assert (3,) in case.query("SELECT rank FROM proc").fetchall()
        known = case.query("SELECT parse_filename(path), format FROM artifact WHERE path LIKE 'rank%'").fetchall()
    assert ("env.txt", "environment") in known
    assert ("command.txt", "environment") in known


def test_a_flight_recorder_with_a_pipe_is_asked_for_a_dump(tmp_path: Path) -> None:
    script = (
        "import os, sys\nos.mkfifo(sys.argv[1] + '5.pipe')\n"
        "end = os.open(sys.argv[1] + '5.pipe', os.O_RDWR)\nprint('ready', flush=True)\nos.read(end, 1)\n"
        "open(sys.argv[2] + '5', 'w').write('{}')\nimport time; time.sleep(60)\n"
    )
    pipe, dump = str(tmp_path / "pipe_"), str(tmp_path / "dump_")
    known = {**os.environ, "RANK": "5", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": pipe, "TORCH_FR_DUMP_TEMP_FILE": dump}
    command = [sys.executable, "-c", script, pipe, dump]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        collect([process.pid], tmp_path / "out", samples=1)
        process.kill()
    assert (tmp_path / "out" / "rank_5" / f"pid_{process.pid}" / "nccl_trace_rank_5").read_text() == "{}"


def test_processes_that_do_not_exist_are_a_clear_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ForensicsError, match="no process 999999999"):
        collect([999999999], tmp_path / "out")
    with pytest.raises(SystemExit) as ended:
        main(["collect", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "expected one or more process ids" in capsys.readouterr().err
