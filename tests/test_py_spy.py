from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import ROOT, MemorySink, load

from forensics.artifact import Head, Source
from forensics.errors import ArtifactError
from forensics.formats import formats, py_spy

DUMPS = ROOT / "fixtures" / "process-dumps" / "artifacts"

# py-spy 0.4.3 of one process whose threads wait in seven ways, of its child, and of two ranks before a barrier.
THREADS = """\
Process 2703: python standing_still.py --hang threads
Python v3.11.7 (/usr/bin/python3.11)

Thread 2703 (idle): "MainThread"
    Thread._wait_for_tstate_lock (threading.py:1139)
    Thread.join (threading.py:1119)
    main (standing_still.py:124)
Thread 2708 (idle): "lock"
    take_lock (standing_still.py:73)
    Thread.run (threading.py:982)
Thread 2709 (idle): "get"
    Condition.wait (threading.py:327)
    Queue.get (queue.py:171)
    Thread.run (threading.py:982)
Thread 2710 (idle): "put"
    Condition.wait (threading.py:327)
    Queue.put (queue.py:140)
    stand_in_threads.<locals>.<lambda> (standing_still.py:87)
Thread 2711 (idle): "child"
    Popen.poll (multiprocessing/popen_fork.py:27)
    Popen.wait (multiprocessing/popen_fork.py:43)
    BaseProcess.join (multiprocessing/process.py:149)
    wait_for_child (standing_still.py:64)
Thread 2712 (idle): "sleeper"
    Popen._try_wait (subprocess.py:2004)
    Popen._wait (subprocess.py:2046)
    Popen.wait (subprocess.py:1264)
Thread 2715 (active+gil): "event"
    work (standing_still.py:12)

--------------------------------------------------------------------------------
Process 2713: python standing_still.py --hang threads
Python v3.11.7 (/usr/bin/python3.11)
Parent Process 2703: python standing_still.py --hang threads

Thread 2713 (idle): "child"
    BaseProcess.run (multiprocessing/process.py:108)
    BaseProcess._bootstrap (multiprocessing/process.py:314)

--------------------------------------------------------------------------------
"""
NATIVE = """\
Process 9936: python -u train.py --local-rank 1
Python v3.11.7 (/usr/bin/python3.11)

Thread 9936 (idle): "MainThread"
    0x7f3c7b2a3f16 (libc.so.6)
    pthread_cond_wait (libc.so.6)
    std::condition_variable::wait (libstdc++.so.6.0.30)
    c10d::Work::wait (libtorch_cpu.so)
    pybind11::cpp_function::initialize<bool, c10d::Work, std::ratio<(long)1, (long)1000> >::{lambda(pybind11::x&)#3}::_FUN (libtorch_python.so)
    pybind11::cpp_function::dispatcher (libtorch_python.so)
    barrier (torch/distributed/distributed_c10d.py:5356)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    main (train.py:122)
    0x7f3c7b24524a (libc.so.6)
Thread 9950 (active): "Thread-2"
    cudaStreamSynchronize (libcudart.so.12)
    THPVariable_tolist (libtorch_python.so)
    verify (train.py:92)
Thread 9951 (idle): "worker"
    0x7f35fcaa3f16 (libc.so.6)
    0x7f35fcaaed90 (libc.so.6)
    PyThread_acquire_lock_timed (libpython3.11.so.1.0)
    lock_PyThread_acquire_lock (libpython3.11.so.1.0)
    take_lock (train.py:73)
"""  # noqa: E501
LOCALS = """\
Thread 0x7F35DB (idle)
    Condition.wait (threading.py:327)
        Arguments:
            self: <Condition at 0x7f35db307590>
            timeout: None
        Locals:
            waiter: <_thread.lock at 0x7f35fc4b4540>
    Queue.get (queue.py:171)
        Arguments:
            self: <Queue at 0x7f35db989990>
            block: True
    Thread.run (threading.py:982)
"""


def read(tmp_path: Path, text: str, name: str = "pyspy.txt") -> MemorySink:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load(py_spy, path)


def sure(text: str, *, whole: bool = True) -> int:
    return py_spy.recognise(Head("x", text.encode(), whole))


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


def test_frames_tell_what_each_thread_waits_for(tmp_path: Path) -> None:
    sink = read(tmp_path, THREADS)
    assert threads(sink) == [
        ("2703 MainThread", "waiting", "futex", "threading.Thread.join"),
        ("2708 lock", "waiting", None, None),
        ("2709 get", "waiting", "queue", "queue.Queue.get"),
        ("2710 put", "waiting", "queue", "queue.Queue.put"),
        ("2711 child", "waiting", "child", "multiprocessing.Process.join"),
        ("2712 sleeper", "waiting", "child", "subprocess.Popen.wait"),
        ("2715 event", "holding-gil", None, None),
        ("2713 child", "waiting", None, None),
    ]
    assert functions(sink, sink.rows("thread_state")[2]["stack_id"]) == ["Thread.run", "Queue.get", "Condition.wait"]


def test_processes_of_one_file_keep_apart_and_name_their_parents(tmp_path: Path) -> None:
    sink = read(tmp_path, THREADS)
    assert [(n, known["pid"]) for n, known in sink.procs.items()] == [(0, 2703), (1, 2713)]
    assert [row["proc"] for row in sink.rows("thread_state")] == [0] * 7 + [1]
    facts = {(fact["key"], fact["proc"]): fact["value"] for fact in sink.facts}
    assert (facts["pid", 1], facts["parent_pid", 1], facts["python", 0]) == ("2713", "2703", "3.11.7")
    assert [(c["capability"], c["proc"], c["n_kept"]) for c in sink.coverage] == [
        ("thread_state", 0, 7),
        ("thread_state", 1, 1),
    ]
    assert [row["line"] for row in sink.rows("position")][:2] == [4, 8]


def test_native_frames_lead_to_what_python_was_doing(tmp_path: Path) -> None:
    sink = read(tmp_path, NATIVE)
    assert threads(sink) == [
        ("9936 MainThread", "waiting", "collective", "barrier"),
        ("9950 Thread-2", "running", "device", "cudaStreamSynchronize"),
        ("9951 worker", "waiting", "futex", "Lock.acquire"),
    ]
    assert sink.procs[0] == {"pid": 9936, "local_rank": 1}


def test_locals_identify_the_queue(tmp_path: Path) -> None:
    (row,) = threads(read(tmp_path, LOCALS))
    assert row == ("0x7f35db", "waiting", "queue", "0x7f35db989990 queue.Queue.get")


def test_an_active_thread_waits_only_where_waiting_is_spinning(tmp_path: Path) -> None:
    sink = read(tmp_path, THREADS.replace("2709 (idle)", "2709 (active)"))
    assert threads(sink)[2] == ("2709 get", "running", None, None)


def test_the_dumps_of_a_real_deadlock_show_parent_and_worker() -> None:
    sink = load(py_spy, DUMPS / "pyspy.txt")
    main, feeder, worker = sink.rows("thread_state")
    assert (main["wait_kind"], main["wait_on"]) == ("queue", "DataLoader.batch")
    assert feeder["wait_on"] == "multiprocessing.Queue.idle"
    assert "_worker_loop" in functions(sink, worker["stack_id"])
    assert functions(sink, worker["stack_id"])[-1] == "CountedRows.__getitem__"
    (same,) = load(py_spy, DUMPS / "pyspy_worker.json").rows("thread_state")
    assert same["thread"] == worker["thread"]


def test_json_gives_the_same_as_text(tmp_path: Path) -> None:
    frames = [
        {"name": "Condition.wait", "filename": "/usr/lib/python3.11/threading.py", "line": 327, "locals": None},
        {"name": "Queue.get", "filename": "/usr/lib/python3.11/queue.py", "line": 171,
         "locals": [{"name": "self", "addr": 1, "arg": True, "repr": "<Queue at 0x7f35db989990>"}]},
    ]  # fmt: skip
    thread = {"pid": 7, "thread_id": 255, "thread_name": "get", "os_thread_id": 9, "active": False, "owns_gil": True}
    other = {**thread, "pid": 8, "os_thread_id": None, "active": True, "owns_gil": False, "frames": []}
    about = {"pid": 8, "command_line": "sglang::scheduler_TP3", "parent": {"pid": 7, "command_line": "x"}}
    dumps = [[{**thread, "frames": frames}], [{**other, "process_info": about}]]
    sink = read(tmp_path, "\n".join(json.dumps(dump, indent=2) for dump in dumps), "x.json")
    assert threads(sink) == [
        ("9 get", "waiting-with-gil", "queue", "0x7f35db989990 queue.Queue.get"),
        ("0xff get", "running", None, None),
    ]
    assert sink.procs[1] == {"pid": 8, "rank": 3, "rank_origin": "content"}
    assert sink.warnings == []


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("sglang::scheduler_TP3", {"rank": 3}),
        ("sglang::scheduler_DP1_TP3", {}),
        ("VLLM::Worker_TP1", {"rank": 1}),
        ("python train.py --local_rank=2 --rank 10", {"rank": 10, "local_rank": 2}),
        ("python train.py --node_rank 1 --lora-rank 16", {}),
    ],
)
def test_command_lines_tell_ranks(tmp_path: Path, command: str, known: dict[str, int]) -> None:
    text = f"Process 5: {command}\nPython v3.12.3 (/usr/bin/python3)\n\nThread 5 (active)\n    f (a.py:1)\n"
    procs = read(tmp_path, text).procs[0]
    assert {key: value for key, value in procs.items() if key in {"rank", "local_rank"}} == known


def test_headings_between_dumps_tell_ranks_and_hosts(tmp_path: Path) -> None:
    one = "Process 5: python\nPython v3.12.3 (/usr/bin/python3)\n\nThread 5 (active)\n    f (a.py:1)\n"
    sink = read(tmp_path, f"=== rank 0, host node-1 ===\n{one}=== rank 1, host node-2 ===\n{one}")
    assert [(p["rank"], p["host"], p["pid"]) for p in sink.procs.values()] == [(0, "node-1", 5), (1, "node-2", 5)]


def test_a_command_line_may_hold_line_feeds_and_secrets(tmp_path: Path) -> None:
    text = "Process 5: python -c import x\nx.run()\n --token=hf_abcdefghijklmnopqrstuvwxyz\nPython v3.12.3 (/p)\n\n"
    sink = read(tmp_path, text + "Thread 5 (active)\n    f (a.py:1)\n")
    (command,) = [fact["value"] for fact in sink.facts if fact["key"] == "command"]
    assert "x.run()" in command and "hf_" not in command


def test_dumps_are_recognised_and_logs_that_quote_them_are_not() -> None:
    assert sure(THREADS) > 40 and sure(NATIVE) > 40 and sure(LOCALS) > 40
    assert sure(json.dumps([{"thread_id": 1, "os_thread_id": 1, "owns_gil": False, "frames": []}])) > 40
    log = "".join(f"2026-11-29 14:53:20,954 | INFO | step {step}\n" for step in range(40))
    assert sure(log + THREADS) == 0
    assert sure("Thread 9 (idle): started\nok\nok\nok\n") == 0
    assert sure("") == sure("[]") == sure('[{"name": "x"}]') == sure("Process 5: x\n") == 0
    head = Source(DUMPS / "pyspy.txt", "pyspy.txt").head()
    assert max(formats(), key=lambda name: formats()[name].recognise(head)) == "py_spy"


@pytest.mark.parametrize("cut", range(1, len(THREADS), 61))
def test_a_cut_dump_keeps_what_stands_before_the_cut(tmp_path: Path, cut: int) -> None:
    text = THREADS[:cut]
    whole = text.count("\nThread ") - ("\nThread " in text[-40:])
    try:
        kept = threads(read(tmp_path, text))
    except ArtifactError:
        kept = []
    assert len(kept) >= whole
    full = threads(read(tmp_path, THREADS))
    assert [row[0] for row in kept[:whole]] == [row[0] for row in full[:whole]]


@pytest.mark.parametrize("cut", [1, 40, 400, 2000, 4000, 4900])
def test_a_cut_json_document_keeps_its_whole_threads(tmp_path: Path, cut: int) -> None:
    one = (DUMPS / "pyspy_worker.json").read_text().strip()[1:-1]
    text = f"[{one},{one}]"
    with_rest = len(one) + cut
    sink = read(tmp_path, text[:with_rest], "x.json")
    assert len(threads(sink)) == 1
    assert (sink.quality, sink.warnings[0]["code"]) == ("partial", "truncated")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[]",
        "[" * 5000,
        '[{"pid": "x"}',
        "Process 99999999999: x\n",
        "Error: Failed to suspend process\nReason: EPERM: Operation not permitted\n",
    ],
)
def test_what_holds_no_thread_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ArtifactError):
        read(tmp_path, text)


def test_hostile_dumps_are_bounded(tmp_path: Path) -> None:
    deep = "Thread 1 (idle)\n" + "    f (a.py:1)\n" * 20_000
    many = "".join(
        f'Process {n}: x\nPython v3.1 (p)\nThread {n} (idle): "\0\x1b[31m{"y" * 300}"\n' for n in range(6000)
    )
    odd = "Thread 1 (idle)\n    " + "(" * 9000 + " (x:99999999999999)\n    g (\u202e.py:12345678901)\n"
    sink = read(tmp_path, deep + many + odd)
    assert len(sink.rows("thread_state")) == 6002
    assert len(sink.rows("stack")) < 1200
    assert len(sink.procs) <= 4097
    thread = {
        "pid": -5,
        "os_thread_id": 2**70,
        "thread_name": 5,
        "frames": [5, {"name": 1}, {"name": "f", "line": 2**40}],
    }
    sink = read(tmp_path, json.dumps([thread, {"frames": []}, {"frames": "x"}, 5]), "x.json")
    assert [row[0] for row in threads(sink)] == ["?", "?"]
