"""What was recorded survives every end that a process can have."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import PREAMBLE, RECORDER, Recorded, Run

LOOP = """
with fr.record(OUT) as rec:
    for step in range(50):
        with rec.step(step):
            rec.log(loss=1.0 / (step + 1))
            if step == 7:
                {fault}
"""


def test_a_block_that_ends_is_told_as_completed(run: Run) -> None:
    left = run(LOOP.format(fault="pass"))
    assert left.end()["how"] == "completed"
    assert [line["step"] for line in left.lines("steps")] == list(range(50))


def test_an_exception_is_kept_with_its_traceback_and_still_raised(run: Run) -> None:
    left = run(LOOP.format(fault="raise ValueError('label 12 out of range')"))
    assert left.code == 1
    assert "ValueError: label 12 out of range" in left.stderr
    end = left.end()
    assert (end["how"], end["exception"], end["message"]) == ("exception", "ValueError", "label 12 out of range")
    assert 'train.py", line' in end["traceback"]
    assert [line["step"] for line in left.lines("steps")] == list(range(8))


def test_the_end_is_told_where_every_descriptor_is_in_use(run: Run) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nkept = []\n"
    left = run(limit + LOOP.format(fault="while True: kept.append(open(os.devnull))"))
    assert "Too many open files" in left.stderr
    assert (left.end()["how"], left.end()["exception"]) == ("exception", "OSError")


def test_sigterm_is_told_and_still_ends_the_process(run: Run) -> None:
    left = run(LOOP.format(fault="os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"))
    assert left.code == -signal.SIGTERM
    assert (left.end()["how"], left.end()["name"]) == ("signal", "SIGTERM")
    assert left.lines("steps")[-1]["step"] == 7


def test_the_jobs_own_handler_still_runs(run: Run) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(3)))\n"
    left = run(own + LOOP.format(fault="os.kill(os.getpid(), signal.SIGTERM)"))
    assert (left.code, left.stdout) == (3, "saved\n")
    assert left.end()["how"] == "signal"


@pytest.mark.parametrize("fault", ["os._exit(9)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_an_end_that_runs_no_code_loses_the_open_step_only(run: Run, fault: str) -> None:
    left = run(LOOP.format(fault=fault))
    assert left.end() is None
    assert [line["step"] for line in left.lines("steps")] == list(range(7))


def test_a_crash_of_native_code_leaves_the_stacks(run: Run) -> None:
    left = run(LOOP.format(fault="import ctypes; ctypes.string_at(0)"))
    assert left.code == -signal.SIGSEGV
    text = (left.folder() / "faulthandler.log").read_text()
    assert "Segmentation fault" in text
    assert "train.py" in text


def test_exit_codes_are_kept(run: Run) -> None:
    assert run(LOOP.format(fault="sys.exit(4)")).end()["code"] == 4


def test_a_standstill_leaves_the_stacks_of_all_threads(run: Run) -> None:
    script = LOOP.replace("fr.record(OUT)", "fr.record(OUT, options=fr.Options(stall_seconds=0.4))")
    left = run(script.format(fault="time.sleep(2)"))
    assert [line["event"] for line in left.lines("events")] == ["stall"]
    assert (
        "time.sleep" in (left.folder() / "faulthandler.log").read_text()
        or "train.py" in (left.folder() / "faulthandler.log").read_text()
    )


def test_forked_children_write_nothing(run: Run) -> None:
    left = run(LOOP.format(fault="os.fork() or os.kill(os.getpid(), signal.SIGTERM)"))
    assert left.end()["how"] == "completed"
    assert [line["step"] for line in left.lines("steps")] == list(range(50))


def test_a_place_that_cannot_be_written_never_stops_the_job(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file where a folder should be")
    left = run(LOOP.format(fault="pass") + "print('trained')\n")
    assert (left.code, left.stdout) == (0, "trained\n")


def test_kill_at_any_moment_leaves_whole_lines_without_gaps(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        PREAMBLE
        + """
with fr.record(sys.argv[1]) as rec:
    for step in range(10**9):
        with rec.step(step):
            rec.log(loss=1.0, lr=0.1)
        if step == 0: print("begun", flush=True)
"""
    )
    draw = random.Random(20)
    for number in range(20):
        out = tmp_path / f"out{number}"
        known = {**os.environ, "PYTHONPATH": str(RECORDER)}
        with subprocess.Popen([sys.executable, script, out], env=known, stdout=subprocess.PIPE) as job:
            assert job.stdout is not None
            job.stdout.readline()
            time.sleep(draw.random() * 0.05)
            job.kill()
        left = Recorded(out, subprocess.CompletedProcess([], -9, "", ""))
        text = (left.folder() / "steps.jsonl").read_text()
        assert text.endswith("\n")  # one write a line: the kernel has it whole or not at all
        steps = [line["step"] for line in left.lines("steps")]
        assert steps == list(range(len(steps)))
        assert steps
