from __future__ import annotations

from pathlib import Path

import pytest
from support import MemorySink, load

from forensics.formats import log

TIMEOUT = """\
2026-11-29 14:53:20,954 | INFO | epoch 3 starts
Timeout (0:00:30)!
Thread 0x00007fc4817ff6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 231 in _feed
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fc49fe1fb80 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/usr/lib/python3.11/multiprocessing/connection.py", line 947 in wait
  File "/usr/lib/python3.11/multiprocessing/queues.py", line 113 in get
  File "/usr/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1291 in _try_get_data
  File "/srv/job/train.py", line 56 in <module>
"""
FATAL = """\
Fatal Python error: Segmentation fault

Thread 0x00007f071f8f56c0 [pt_data_pin] (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 327 in wait
  File "/usr/lib/python3.13/queue.py", line 171 in get

Current thread 0x00007f0720474b80 [python] (most recent call first):
  File "/srv/job/train.py", line 3 in crash
  File "/srv/job/train.py", line 5 in <module>

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x31 [0x5566]

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""


def read(tmp_path: Path, text: str, name: str = "stderr.log") -> MemorySink:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(log, path)


def threads(sink: MemorySink) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(r["thread"], r["state"], r["wait_kind"], r["wait_on"]) for r in sink.rows("thread_state")]


def functions(sink: MemorySink, stack_id: int | None) -> list[str]:
    """Outermost first."""
    frames = {row["id"]: row for row in sink.rows("stack")}
    names: list[str] = []
    while stack_id is not None:
        names.insert(0, frames[stack_id]["function"])
        stack_id = frames[stack_id]["parent_id"]
    return names


def test_every_thread_of_a_timeout_dump_is_kept_beside_its_event(tmp_path: Path) -> None:
    sink = read(tmp_path, TIMEOUT)
    assert threads(sink) == [
        ("0x7fc4817ff6c0", "waiting", "queue", "multiprocessing.Queue.idle"),
        ("0x7fc49fe1fb80", "waiting", "queue", "DataLoader.batch"),
    ]
    assert [row["signature"] for row in sink.rows("log_event")] == ["faulthandler-timeout"]
    main = sink.rows("thread_state")[1]
    assert functions(sink, main["stack_id"]) == ["<module>", "_try_get_data", "get", "wait", "select"]
    places = {row["row"]: row["line"] for row in sink.rows("position") if row["table"] == "thread_state"}
    assert places == {0: 3, 1: 8}
    assert {"thread_state", "log_event"} == {row["capability"] for row in sink.coverage}


def test_the_thread_that_a_fatal_error_met_has_crashed(tmp_path: Path) -> None:
    sink = read(tmp_path, FATAL)
    assert threads(sink) == [
        ("0x7f071f8f56c0 pt_data_pin", "waiting", "queue", "queue.Queue.get"),
        ("0x7f0720474b80 python", "crashed", None, None),
    ]
    (event,) = sink.rows("log_event")
    assert functions(sink, event["stack_id"]) == ["<module>", "crash"]


def test_a_dump_that_nothing_introduces_gives_threads_and_no_event(tmp_path: Path) -> None:
    sink = read(tmp_path, "epoch 3\n" + TIMEOUT.split("!\n", 1)[1] + "epoch 4\nValueError: x\n")
    assert [row[3] for row in threads(sink)] == ["multiprocessing.Queue.idle", "DataLoader.batch"]
    assert [row["exception"] for row in sink.rows("log_event")] == ["ValueError"]


def test_dumps_of_ranks_in_one_log_keep_apart(tmp_path: Path) -> None:
    lines = TIMEOUT.splitlines(keepends=True)[1:]
    sink = read(tmp_path, "".join(f"[rank{rank}]:{line}" for line in lines for rank in (0, 1)))
    rows = sink.rows("thread_state")
    assert sorted((sink.procs[row["proc"]]["rank"], row["wait_on"]) for row in rows) == [
        (0, "DataLoader.batch"),
        (0, "multiprocessing.Queue.idle"),
        (1, "DataLoader.batch"),
        (1, "multiprocessing.Queue.idle"),
    ]


def test_repeated_dumps_give_each_thread_again(tmp_path: Path) -> None:
    assert len(threads(read(tmp_path, TIMEOUT + TIMEOUT.partition("\n")[2]))) == 4


def test_a_cut_dump_keeps_the_threads_before_the_cut(tmp_path: Path) -> None:
    for cut in range(0, len(TIMEOUT), 7):
        sink = read(tmp_path, TIMEOUT[:cut], f"{cut}.log")
        assert len(threads(sink)) <= TIMEOUT[:cut].count("call first):")
        assert len(threads(sink)) >= TIMEOUT[:cut].count("call first):\n")


def test_a_log_without_a_dump_claims_nothing_of_threads(tmp_path: Path) -> None:
    sink = read(tmp_path, "Thread 0x12 is slow\nValueError: x (most recent call first): y\n")
    assert threads(sink) == []
    assert "thread_state" not in {row["capability"] for row in sink.coverage}


@pytest.mark.parametrize(
    "text",
    [
        "Thread 0xffffffffffffffff (most recent call first):\n" * 12_000,
        "Timeout (0:00:30)!\nThread 0x1 (most recent call first):\n" + '  File "a", line 1 in f\n' * 3000,
        'Thread 0x1 (most recent call first):\n  File "\udcff", line ??? in \x00\n  ...\n',
    ],
)
def test_hostile_dumps_are_bounded(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    sink = load(log, path)
    assert 1 <= len(sink.rows("thread_state")) <= 20_000
    assert len(sink.rows("stack")) <= 512
