"""Dumps of py-spy and of debuggers inside a log: the same threads as of files of their own, and whose they are."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import ROOT, MemorySink, load
from test_native_stacks import GLOO
from test_py_spy import NATIVE, THREADS

from forensics.formats import log, native_stacks, py_spy

BEFORE = "2026-11-29 14:53:20,954 | INFO | epoch 3 starts\n2026-11-29 15:03:20,000 | WARNING | no step for 600 s\n"
AFTER = "2026-11-29 15:03:29,000 | ERROR | giving up: RuntimeError: the step took too long\n"
AT = 1_795_964_600 * 10**9
PROCESS = """\
Process {pid}: python -u train.py{options}
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    barrier (torch/distributed/distributed_c10d.py:4159)
    main (train.py:{line})
"""


def read(tmp_path: Path, text: str, module: ModuleType = log) -> MemorySink:
    path = tmp_path / "stderr.log"
    path.write_text(text, encoding="utf-8")
    return load(module, path)


def threads(sink: MemorySink) -> list[tuple[Any, ...]]:
    parents = {row["id"]: row for row in sink.rows("stack")}

    def stack(number: int | None) -> tuple[Any, ...]:
        row = parents.get(number) if number is not None else None
        return () if row is None else (*stack(row["parent_id"]), (row["function"], row["file"], row["line"]))

    rows = sink.rows("thread_state")
    return [(r["thread"], r["state"], r["wait_kind"], r["wait_on"], stack(r["stack_id"])) for r in rows]


@pytest.mark.parametrize(
    ("text", "module"),
    [(THREADS, py_spy), (NATIVE, py_spy), (GLOO, native_stacks), (GLOO + "\n", native_stacks)],
)
@pytest.mark.parametrize("prefix", ["", "[rank2]: ", "node-3: "])
def test_a_dump_in_a_log_gives_the_threads_of_a_file_of_its_own(
    tmp_path: Path, text: str, module: ModuleType, prefix: str
) -> None:
    whole = "".join(f"{prefix}{line}\n" for line in (BEFORE + text + AFTER).splitlines())
    sink = read(tmp_path, whole)
    assert threads(sink) == threads(read(tmp_path, text, module))
    assert {row["ts_ns"] for row in sink.rows("thread_state")} == {AT}
    assert sink.rows("log_event")[-1]["message"].endswith("took too long")


@pytest.mark.parametrize("name", ["pyspy.txt", "gdb_worker.txt"])
def test_dumps_of_real_processes_are_the_same_in_a_log(tmp_path: Path, name: str) -> None:
    text = (ROOT / "fixtures" / "process-dumps" / "artifacts" / name).read_text()
    module = py_spy if name == "pyspy.txt" else native_stacks
    assert threads(read(tmp_path, BEFORE + text + AFTER)) == threads(read(tmp_path, text, module))


def test_each_of_several_dumps_has_its_own_time_and_the_rank_that_its_command_tells(tmp_path: Path) -> None:
    texts = [PROCESS.format(pid=4000 + n, options=f" --rank {n}", line=10 + n) for n in range(3)]
    log_text = BEFORE + texts[0] + "2026-11-29 15:03:25,000 | INFO | next one\n" + texts[1] + "\n" + texts[2] + AFTER
    sink = read(tmp_path, log_text)
    rows = sink.rows("thread_state")
    assert [sink.procs[row["proc"]]["rank"] for row in rows] == [0, 1, 2]
    assert [row["ts_ns"] - AT for row in rows] == [0, 5 * 10**9, 5 * 10**9]


def test_one_process_is_that_of_the_writer_and_several_are_not(tmp_path: Path) -> None:
    one = PROCESS.format(pid=4000, options="", line=3)
    again = one.replace("train.py:3", "train.py:9")
    assert [row["proc"] for row in read(tmp_path, BEFORE + one + AFTER + again + AFTER).rows("thread_state")] == [0, 0]
    other = PROCESS.format(pid=4001, options="", line=3)
    sink = read(tmp_path, BEFORE + one + other + AFTER)
    procs = [row["proc"] for row in sink.rows("thread_state")]
    assert 0 not in procs
    assert [sink.procs[number]["pid"] for number in procs] == [4000, 4001]


def test_lines_that_speak_of_threads_are_no_dump(tmp_path: Path) -> None:
    text = (
        "Process 4000: started\nThread 12 (worker) is idle\nThread 3 (active) finished its work\nThread 4 (idle)\n"
        "#0 of 4 shards done\n    Thread 5 (idle): 3 jobs\nRuntimeError: the pool is empty\n"
    )
    sink = read(tmp_path, BEFORE + text)
    assert "thread_state" not in sink.tables
    assert [row["message"] for row in sink.rows("log_event")][-1] == "the pool is empty"


def test_a_traceback_right_behind_a_dump_is_read(tmp_path: Path) -> None:
    text = GLOO + 'Traceback (most recent call last):\n  File "train.py", line 3, in f\nValueError: step 3\n'
    sink = read(tmp_path, BEFORE + text)
    assert [row["exception"] for row in sink.rows("log_event") if row["exception"]] == ["ValueError"]
