"""Tracebacks and other messages of several lines in logs: alone, chained, grouped, interleaved, torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_texts import events, read, traceback_of
from support import MemorySink, load

from forensics.formats import log


def functions(sink: MemorySink, stack_id: int | None) -> list[str]:
    frames = {row["id"]: row for row in sink.rows("stack")}
    found: list[str] = []
    while stack_id is not None:
        found.insert(0, frames[stack_id]["function"])
        stack_id = frames[stack_id]["parent_id"]
    return found


def test_a_traceback_is_one_event_with_its_stack_outermost_first(tmp_path: Path) -> None:
    sink = read(tmp_path, "start\n" + traceback_of("pkg.OddError: it broke", "main", "step") + "end\n")
    (row,) = sink.rows("log_event")
    assert (row["exception"], row["message"], row["line"]) == ("pkg.OddError", "it broke", 9)
    assert (row["signature"], row["class"], row["role"]) == (None, "exception.unknown", "primary")
    assert functions(sink, row["stack_id"]) == ["main", "step"]


def test_rows_of_a_signature_carry_exception_and_stack(tmp_path: Path) -> None:
    sink = read(tmp_path, traceback_of("IndexError: index out of range in self", "main"))
    (row,) = sink.rows("log_event")
    assert (row["signature"], row["exception"]) == ("index-out-of-range", "IndexError")
    assert functions(sink, row["stack_id"]) == ["main"]


@pytest.mark.parametrize(
    ("sentence", "how"),
    [
        ("The above exception was the direct cause of the following exception:", "cause"),
        ("During handling of the above exception, another exception occurred:", "during"),
    ],
)
def test_a_chain_names_its_first_exception_as_the_root(tmp_path: Path, sentence: str, how: str) -> None:
    text = (
        traceback_of("ZeroDivisionError: by zero", "a") + f"\n{sentence}\n\n" + traceback_of("OddError: wrapped", "b")
    )
    first, second = events(tmp_path, text)
    assert (first["role"], second["role"]) == ("primary", "secondary")
    assert (second["fields"]["chain"], second["fields"]["after"]) == (how, "ZeroDivisionError")


def test_a_message_goes_on_over_the_lines_that_belong_to_it(tmp_path: Path) -> None:
    text = (
        traceback_of("RuntimeError: CUDA error: operation not permitted when stream is capturing", "main")
        + "CUDA kernel errors might be asynchronously reported at some other API call\n"
        + "Exception raised from memcpy_and_sync at CUDAFunctions.h:76 (most recent call first):\n"
        + "frame #1: void at::native::nonzero_cuda_out_impl<bool>(...)\nRunning on local URL:  http://127.0.0.1\n"
    )
    (row,) = events(tmp_path, text)
    assert row["signature"] == "capture-unsupported"
    assert row["message"].endswith("nonzero_cuda_out_impl<bool>(...)")


def test_an_exception_group_gives_its_members_and_their_chains(tmp_path: Path) -> None:
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "g.py", line 12, in run
  |     raise group
  | ExceptionGroup: multi (3 sub-exceptions)
  | a note on it
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "g.py", line 2, in leaf
    |     raise ValueError(f"bad {n}")
    | ValueError: bad 1
    |
    | The above exception was the direct cause of the following exception:
    |
    | Traceback (most recent call last):
    |   File "g.py", line 9, in chained
    |     raise KeyError("k") from e
    | KeyError: 'k'
    +---------------- 2 ----------------
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | TypeError: no tb
      +------------------------------------
going on
"""
    rows = events(tmp_path, text)
    assert [(row["exception"], row["role"]) for row in rows] == [
        ("ExceptionGroup", "secondary"),
        ("ValueError", "primary"),
        ("KeyError", "secondary"),
        ("ExceptionGroup", "secondary"),
        ("TypeError", "primary"),
    ]
    assert rows[0]["message"] == "multi (3 sub-exceptions)\na note on it"


def test_a_worker_exception_gives_the_original_one_too(tmp_path: Path) -> None:
    text = traceback_of("KeyError: Caught KeyError in DataLoader worker process 3.", "main", "reraise")
    text += "Original " + traceback_of("KeyError: 'k0'", "fetch", "__getitem__")
    sink = read(tmp_path, text)
    outer, inner = sink.rows("log_event")
    assert (outer["signature"], json.loads(outer["fields"])["worker"]) == ("dataloader-worker-exception", 3)
    assert (inner["message"], functions(sink, inner["stack_id"])) == ("'k0'", ["fetch", "__getitem__"])


def test_the_source_lines_of_the_innermost_frames_are_kept(tmp_path: Path) -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 9, in main
    loss = model(x[mask])
           ~~~~~^^^^^^^^^
  File "/usr/lib/python3/dist-packages/torch/nn/modules/batchnorm.py", line 748, in forward
    return sync_batch_norm.apply(
           ^^^^^^^^^^^^^^^^^^^^^
RuntimeError: CUDA error: operation not permitted when stream is capturing
"""
    error = next(row for row in read(tmp_path, text).rows("log_event") if row["exception"])
    fields = json.loads(error["fields"])
    assert fields["code"] == "return sync_batch_norm.apply("
    assert fields["user_code"] == "loss = model(x[mask])"


def test_anomaly_mode_gives_the_forward_stack(tmp_path: Path) -> None:
    text = """\
/x/torch/graph.py:979: UserWarning: Error detected in LogBackward0. Traceback of forward call that caused the error:
  File "/app/a.py", line 7, in main
    loss_of(x)
  File "/app/a.py", line 4, in loss_of
    y = torch.log(x)
 (Triggered internally at /pytorch/torch/csrc/autograd/python_anomaly_mode.cpp:122.)
  return Variable._execution_engine.run_backward(
Traceback (most recent call last):
  File "/app/a.py", line 7, in main
    loss_of(x).backward()
RuntimeError: Function 'LogBackward0' returned nan values in its 1th output.
"""
    sink = read(tmp_path, text)
    forward, error = sink.rows("log_event")
    assert (forward["signature"], functions(sink, forward["stack_id"])) == ("anomaly-forward", ["main", "loss_of"])
    fields = {"function": "LogBackward0", "output_index": 1, "code": "loss_of(x).backward()"}
    assert json.loads(error["fields"]) == fields


def test_a_fatal_error_has_the_stack_of_the_thread_that_crashed(tmp_path: Path) -> None:
    text = """\
Fatal Python error: Segmentation fault

Thread 0x00007f071f8f56c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f0720474b80 (most recent call first):
  File "/app/fh.py", line 3 in crash
  File "/app/fh.py", line 5 in <module>

Extension modules: numpy.core._multiarray_umath, torch._C (total: 2)
"""
    sink = read(tmp_path, text + "bash: line 1:  77 Segmentation fault      (core dumped) python fh.py\n")
    fatal, shell = sink.rows("log_event")
    assert functions(sink, fatal["stack_id"]) == ["<module>", "crash"]
    assert shell["signature"] == "shell-signal"


def test_exceptions_that_python_ignores_are_noise(tmp_path: Path) -> None:
    text = "Exception ignored in: <function X.__del__ at 0x7f>\n" + traceback_of(
        "RuntimeError: CUDA error: out of memory", "d"
    )
    rows = events(tmp_path, text + traceback_of("RuntimeError: CUDA error: out of memory", "main"))
    assert [(row["signature"], row["role"]) for row in rows] == [
        ("exception-ignored", "noise"),
        ("cuda-driver-oom", "noise"),
        ("cuda-driver-oom", "primary"),
    ]


@pytest.mark.parametrize("lead", ["out of memory, retrying with half the batch", "WARNING skipping batch 12:"])
def test_an_exception_that_is_handled_is_evidence(tmp_path: Path, lead: str) -> None:
    (row,) = events(tmp_path, f"{lead}\n" + traceback_of("RuntimeError: CUDA error: out of memory", "step"))
    assert (row["role"], row["fields"]["handled"]) == ("evidence", True)


def test_threads_and_processes_are_named(tmp_path: Path) -> None:
    text = "Exception in thread saver:\n" + traceback_of("OSError: [Errno 28] No space left on device", "w")
    (row,) = events(tmp_path, text)
    assert (row["signature"], row["fields"]["thread"]) == ("no-space-left", "saver")


def test_a_logger_may_put_its_prefix_on_every_line_or_on_the_first(tmp_path: Path) -> None:
    prefix = "(EngineCore_0 pid=26) ERROR 06-11 11:46:39 [core.py:517] "
    (each,) = events(tmp_path, traceback_of("OddError: x", "a", "b", indent=prefix))
    assert each["exception"] == "OddError"
    first = "[2025-03-14 11:22:44 TP2] Scheduler died: " + traceback_of("OddError: x", "a", "b")
    (row,) = events(tmp_path, first)
    assert (row["exception"], row["fields"]["actor"]) == ("OddError", "TP2")


def test_the_last_line_may_lack_the_prefix_of_the_others(tmp_path: Path) -> None:
    text = traceback_of("", "main", indent="[rank3]: ").rsplit("[rank3]: ", 1)[0] + "OddError: x\nHint: look here\n"
    sink = read(tmp_path, text)
    (row,) = sink.rows("log_event")
    assert (row["message"], sink.procs[row["proc"]]["rank"]) == ("x\nHint: look here", 3)


def test_a_torn_traceback_is_kept_as_evidence(tmp_path: Path) -> None:
    (row,) = events(tmp_path, 'Traceback (most recent call last):\n  File "a.py", line 1, in main\n')
    assert (row["exception"], row["role"], row["fields"]) == (None, "evidence", {"truncated": True})


def test_frames_without_a_header_are_a_traceback(tmp_path: Path) -> None:
    (row,) = events(tmp_path, traceback_of("OddError: x", "main").split("\n", 1)[1])
    assert row["exception"] == "OddError" and row["stack_id"] is not None


def test_a_desynchronisation_report_belongs_to_its_line(tmp_path: Path) -> None:
    text = (
        "[rank0]:[E1129 11:41:45.714 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=118, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600075 milliseconds before timing out.\n"
        "\t - [0] Timeout at collective: ALLREDUCE, #118\n"
        "\t - To our best knowledge, ranks [1, 2] are the lagging ranks that caused this timeout. They never joined\n"
    )
    rows = events(tmp_path, text)
    assert {row["signature"] for row in rows} == {"desync-laggards", "nccl-watchdog-timeout"}
    assert [1, 2] in [row["fields"].get("lagging_ranks") for row in rows] and {row["line"] for row in rows} == {1}


def test_what_the_runtime_repeats_is_evidence(tmp_path: Path) -> None:
    timeout = (
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST) ran for 9 milliseconds"
    )
    ended = f"Process group watchdog thread terminated with exception: [Rank 0] {timeout}"
    text = (
        f"[rank0]:[E1218 20:27:21.4 a.cpp:9] [Rank 0] {timeout}\n"
        f"[rank0]:[E1218 20:27:21.5 a.cpp:9] [PG ID 1 PG GUID 1 Rank 0] {ended}\n"
        "Exception raised from checkTimeout at a.cpp:632 (most recent call first):\nframe #0: c10::Error::Error()\n\n"
        f"terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  {ended}\n"
    )
    roles = [row["role"] for row in events(tmp_path, text) if row["signature"] == "nccl-watchdog-timeout"]
    assert roles == ["symptom", "evidence", "evidence"]


def test_rows_are_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = traceback_of("OddError: x", "main", indent="[rank0]: ").replace(
        "[rank0]: OddError", "[rank1]: ERROR y\n[rank0]: OddError"
    )
    rows = events(tmp_path, text)
    assert [row["line"] for row in rows] == sorted(row["line"] for row in rows) and len(rows) == 2


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_interleaved_ranks_lose_no_traceback(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    writers: list[list[str]] = []
    for rank in range(2):
        text = ""
        for number in range(data.draw(st.integers(1, 4))):
            names = data.draw(st.lists(st.sampled_from(["main", "step", "forward"]), min_size=1, max_size=4))
            text += f"step {number} loss 0.5\n" * data.draw(st.integers(0, 2))
            text += traceback_of(f"OddError: rank {rank} number {number}", *names)
            if data.draw(st.booleans()):
                text += "\nDuring handling of the above exception, another exception occurred:\n\n"
        writers.append([f"[rank{rank}]: {line}" for line in text.splitlines()])
    expected = [line for writer in writers for line in writer if "OddError: rank" in line]
    merged: list[str] = []
    while any(writers):
        source = data.draw(st.sampled_from([writer for writer in writers if writer]))
        merged.append(source.pop(0))
    sink = read(tmp_path_factory.mktemp("t"), "\n".join(merged))
    rows = sink.rows("log_event")
    found = [f"[rank{sink.procs[row['proc']]['rank']}]: {row['exception']}: {row['message']}" for row in rows]
    assert sorted(found) == sorted(expected)
    assert all(merged[row["line"] - 1].startswith(f"[rank{sink.procs[row['proc']]['rank']}]: OddError") for row in rows)


RAY = """\
Traceback (most recent call last):
  File "driver.py", line 30, in <module>
    ray.get(trainer.fit.remote())
  File "/opt/venv/lib/python3.11/site-packages/ray/_private/worker.py", line 2667, in get
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(RuntimeError): ray::Trainer.fit() (pid=4242, ip=10.0.0.5, actor_id=ab12, repr=<Trainer>)
  File "trainer.py", line 88, in fit
    results = ray.get([w.step.remote() for w in self.workers])
ray.exceptions.RayTaskError(ValueError): ray::Worker.step() (pid=5151, ip=10.0.0.6, actor_id=cd34, repr=<Worker>)
  File "worker.py", line 41, in step
    loss = self.model(batch)
ValueError: no such shard
"""


def test_the_innermost_error_of_nested_ray_tasks_is_the_primary_one(tmp_path: Path) -> None:
    path = tmp_path / "driver.log"
    path.write_text(RAY)
    rows = load(log, path).rows("log_event")
    assert [(row["line"], row["role"], row["exception"]) for row in rows] == [
        (6, "secondary", "ray.exceptions.RayTaskError(RuntimeError)"),
        (9, "secondary", "ray.exceptions.RayTaskError(ValueError)"),
        (12, "primary", "ValueError"),
    ]


AT = "2026-03-01 10:00:07,250"
AT_NS = 1_772_359_207_250_000_000


@pytest.mark.parametrize(
    ("mark", "record"),
    [
        ("", f"{AT} ERROR train: the step failed"),
        ("", f"{AT} - trainer - CRITICAL - the step failed"),
        ("[rank3]: ", f"{AT} ERROR the step failed"),
        ("[default3]:", f"{AT} ERROR the step failed"),
        ("", "[2026-03-01 10:00:07,250] [ERROR] [launch.py:325:main] the step failed"),
        ("(train_func pid=312, ip=10.0.0.7) ", f"{AT} ERROR the step failed"),
        ("node-3: ", f"{AT} ERROR the step failed"),
        ("3: ", f"{AT} ERROR the step failed"),
        ("[pod/trainer-worker-1/main] ", f"{AT} ERROR the step failed"),
        ("trainer-1  | ", f"{AT} ERROR the step failed"),
    ],
)
def test_a_traceback_has_the_time_of_the_record_that_it_is_part_of(tmp_path: Path, mark: str, record: str) -> None:
    before = [f"{AT[:-3]}10{n} INFO step {n}" for n in range(3)]
    chained = traceback_of("ZeroDivisionError: by zero", "a") + (
        "\nDuring handling of the above exception, another exception occurred:\n\n" + traceback_of("OddError: so", "b")
    )
    lines = [*before, record, *chained.splitlines(), f"{AT[:-3]}900 INFO going down"]
    found = [e for e in events(tmp_path, "".join(f"{mark}{line}\n" for line in lines)) if e["exception"]]
    assert [(e["exception"], e["ts_ns"]) for e in found] == [("ZeroDivisionError", AT_NS), ("OddError", AT_NS)]


def test_lines_of_other_ranks_between_a_record_and_its_traceback_do_no_harm(tmp_path: Path) -> None:
    trace = traceback_of("OddError: so", "b").splitlines()
    lines = [
        f"[rank1]: {AT} ERROR the step failed",
        f"[rank0]: {AT[:-3]}800 INFO step 7",
        *(f"[rank1]: {t}" for t in trace),
    ]
    (found,) = [e for e in events(tmp_path, "\n".join(lines) + "\n") if e["exception"]]
    assert found["ts_ns"] == AT_NS


@pytest.mark.parametrize(
    "above",
    [
        [f"{AT} INFO step 12 loss 0.5"],
        [f"{AT} WARNING lr is small"],
        [f"{AT} ERROR could not reach the tracker", "epoch 3 of 9"],
        [f"{AT} ERROR the step failed", *traceback_of("OddError: so", "b").splitlines()],
        [f"[rank0]: {AT} ERROR of another rank"],
        ["[E301 10:00:07.250000000 ProcessGroupNCCL.cpp:616] [Rank 0] heartbeat is late"],
    ],
)
def test_a_traceback_that_is_no_part_of_the_record_above_has_no_time(tmp_path: Path, above: list[str]) -> None:
    text = "\n".join([f"{AT} INFO begin", *above, *traceback_of("LostError: alone", "c").splitlines(), ""])
    (found,) = [e for e in events(tmp_path, text) if e["exception"] == "LostError"]
    assert found["ts_ns"] is None
