"""Logs as files: messages, metrics, coverage, damage. Prefixes and tracebacks have files of their own."""

from __future__ import annotations

import gzip
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import ARTIFACTS, SHARED, MemorySink, load, needs_artifacts

from forensics.artifact import Head, Source
from forensics.formats import log
from forensics.formats._log_metrics import parse_metrics
from forensics.formats._log_rows import MAX_SAME
from forensics.states import CAPABILITIES

OOM = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free."


def read(tmp_path: Path, text: str | bytes, name: str = "x.log") -> MemorySink:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(log, path)


def events(tmp_path: Path, text: str | bytes) -> list[dict[str, Any]]:
    return read(tmp_path, text).rows("log_event")


def signatures(tmp_path: Path, text: str | bytes) -> list[str | None]:
    return [row["signature"] for row in events(tmp_path, text)]


def recognised(text: str | bytes) -> int:
    data = text if isinstance(text, bytes) else text.encode()
    return log.recognise(Head("x", data[:65536], len(data) <= 65536))


@pytest.mark.parametrize(
    ("text", "step", "values"),
    [
        ("{'loss': 2.1013, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}", None, {"grad_norm": 1.25}),
        ("{'loss': '2.101', 'grad_norm': 'nan', 'epoch': '0.1'}", None, {"loss": 2.101, "grad_norm": math.nan}),
        ("| 5/9 [00:01]{'loss': 0.0, 'grad_norm': tensor(nan, device='cuda:0')}", None, {"grad_norm": math.nan}),
        ("loss=1.2 step=3", 3, {"loss": 1.2}),
        ("step 3 | loss 1.2 | grad_norm 0.4", 3, {"loss": 1.2, "grad_norm": 0.4}),
        ("iter 3: loss 1.2, time 815.80ms, lr 1e-4", 3, {"loss": 1.2, "learning_rate": 1e-4}),
        ("step 7: train loss 3.2, val loss 3.3", 7, {"train_loss": 3.2, "val_loss": 3.3}),
        ("step 2 loss nan", 2, {"loss": math.nan}),
        (
            "Epoch 3: 9/9 [00:01<00:00, 4.29it/s, v_num=3, train_loss=nan.0, val_loss=inf.0]",
            None,
            {"train_loss": math.nan, "val_loss": math.inf},
        ),
        (
            " iteration 9/ 20 | lm loss: 11 | loss scale: 65536.0 | grad norm: 8.1 | number of nan iterations: 0",
            9,
            {"loss": 11.0, "loss_scale": 65536.0, "grad_norm": 8.1, "nan_iterations": 0.0},
        ),
        (
            "Epoch 0:  12%|#| 120/1000 [00:10<01:20, 11.2it/s, train_loss=0.52]",
            None,
            {"train_loss": 0.52, "epoch": 0.0},
        ),
        ('{"global_step": 12, "loss": NaN, "name": "x"}', 12, {"loss": math.nan}),
        (
            "Engine 000: Avg prompt throughput: 31.7 tokens/s, Running: 96 reqs, GPU KV cache usage: 93.0%.",
            None,
            {"running": 96.0, "gpu_kv_cache_usage": 93.0, "avg_prompt_throughput": 31.7},
        ),
        (
            "Decode batch. #running-req: 6, token usage: 0.87, gen throughput (token/s): 214.30, #queue-req: 3",
            None,
            {"running_req": 6.0, "token_usage": 0.87, "gen_throughput": 214.3, "queue_req": 3.0},
        ),
        ("Rank 0 Skipping step. Attempted loss scale: 4, reducing to 2", None, {"loss_scale": 2.0}),
    ],
)
def test_printed_metrics_become_samples(text: str, step: int | None, values: dict[str, float]) -> None:
    found = parse_metrics(text)
    assert found is not None and found.step == step
    named = dict(zip(found.names, found.values, strict=True))
    assert {name: named.get(name) for name in values} == pytest.approx(values, nan_ok=True)


@pytest.mark.parametrize(
    ("text", "names", "printer"),
    [
        ("step 5 loss 0.5 lr 1e-3", ["loss", "learning_rate"], None),
        ("adapter step 49 loss 0.7617", ["loss"], "adapter"),
        ("stored and loaded: loss 2513.4", ["loss"], "stored loaded"),
        ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.3", ["loss", "epoch"], None),
        ("Test set: Average loss: 0.0477, Accuracy: 98.1", ["test_loss", "accuracy"], "test set"),
        ("Epoch 3 [Validation] loss 0.4", ["val_loss", "epoch"], "validation"),
        ("Epoch(val) [3][100] loss: 0.4", ["val_loss"], "val"),
        ("eval | step 200 | loss 0.4 | ppl 1.5", ["eval_loss", "ppl"], "eval"),
        ("no eval before training step 5: loss 0.4", ["loss"], "no eval before"),
        ("step 5 teacher loss 3.2 student loss 1.1", ["teacher_loss", "student_loss"], None),
        ("step 5: train loss 4.2, val loss 4.3", ["train_loss", "val_loss"], None),
        ("step 7 with loss 0.3", ["loss"], None),
        ("saved checkpoint-500 with loss 0.3", ["loss"], "saved"),
    ],
)
def test_whose_loss_a_line_tells_is_kept(text: str, names: list[str], printer: str | None) -> None:
    found = parse_metrics(text)
    assert found is not None and (found.names, found.printer) == (names, printer)


def test_losses_of_two_loops_in_one_log_are_told_apart(tmp_path: Path) -> None:
    lines = [f"2026-11-30 15:04:{i % 60:02},556 | INFO | step {i} loss {i / 8}\n" for i in range(100)]
    lines += [f"2026-11-30 15:06:{i % 60:02},556 | INFO | teacher step {i} loss {i / 8}\n" for i in range(100)]
    rows = [row for row in read(tmp_path, "".join(lines)).rows("sample") if row["name"] == "loss"]
    assert [row["entity"] for row in rows] == [None] * 100 + ["teacher"] * 100


@pytest.mark.parametrize(
    "text", ["  File 'x.py', line 3, in step", "loss function 2 layers", "10,000 steps done", "epoch"]
)
def test_lines_that_only_mention_metrics_give_none(text: str) -> None:
    found = parse_metrics(text)
    assert found is None or not found.names


def test_lines_of_one_loop_are_read_alike(tmp_path: Path) -> None:
    sink = read(tmp_path, "".join(f"[rank{i % 2}]: step {i} loss {i / 8} lr 1e-{i % 5}\n" for i in range(200)))
    rows = [row for row in sink.rows("sample") if row["name"] == "loss"]
    assert [(row["step"], row["value"]) for row in rows] == [(i, i / 8) for i in range(200)]
    assert [row["row"] for row in sink.rows("sample")] == list(range(400))


def test_an_event_has_the_last_step_of_its_process(tmp_path: Path) -> None:
    text = "[rank0]: step 7 loss 1\n[rank1]: step 9 loss 1\n[rank0]: RuntimeError: boom\nplain\nRuntimeError: other\n"
    assert [(row["message"], row["step"]) for row in events(tmp_path, text)] == [("boom", 7), ("other", None)]


def test_kernel_and_scheduler_texts_cover_no_process(tmp_path: Path) -> None:
    kernel = read(tmp_path, "[12.118823] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n" * 2)
    assert [c["capability"] for c in kernel.coverage] == ["log_event.kernel"]
    assert kernel.clock_kind == "boot"
    table = "LAST SEEN   TYPE      REASON   OBJECT   MESSAGE\n22:01:33    Warning   Evicted  pod/a    low on memory\n"
    assert [c["capability"] for c in read(tmp_path, table).coverage] == ["log_event.scheduler"]
    mixed = "epoch 1\nslurmstepd: error: *** JOB 4 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    assert {c["capability"] for c in read(tmp_path, mixed).coverage} == {"log_event", "log_event.scheduler"}


def test_errors_that_nothing_names_are_evidence(tmp_path: Path) -> None:
    rows = events(
        tmp_path, "ERROR: the frobnicator is unwell\nall fine, 0 errors\nE1129 11:41:45.714000 7 a/b.py:1] odd\n"
    )
    assert [(row["class"], row["role"]) for row in rows] == [("line.error", "evidence")] * 2


@pytest.mark.parametrize(
    "text",
    [
        "run.sh: line 4: warpctl-sync: command not found",
        "/srv/run.sh: 4: warpctl-sync: not found",
        "run.sh: line 9: /opt/x/bin/y: No such file or directory",
        "run.sh: line 2: ./prepare: Permission denied",
        "run.sh: line 5: MASTER_ADDR: unbound variable",
        "zsh: command not found: warpctl-sync",
    ],
)
def test_what_shells_say_of_a_script_is_an_error(tmp_path: Path, text: str) -> None:
    (row,) = events(tmp_path, f"preparing\n{text}\nfile x: not found in cache, line 3: ok\n")
    cls = "env.command" if "command not found" in text else "line.error"
    assert (row["line"], row["class"], row["role"], row["message"]) == (2, cls, "evidence", text)


def test_a_message_that_says_it_goes_on_is_evidence(tmp_path: Path) -> None:
    rows = events(tmp_path, f"WARNING: {OOM} Skipping this batch and continuing\nstep 2 loss 1.0\n")
    assert (rows[0]["signature"], rows[0]["role"]) == ("cuda-oom", "evidence")
    assert '"handled": true' in rows[0]["fields"]
    final = events(tmp_path, "Connect to 10.0.0.3<1> failed : Connection refused, giving up retrying\n")
    assert final[0]["role"] == "primary"


def test_errors_that_passing_tests_provoke_are_noise(tmp_path: Path) -> None:
    session = f"==== test session starts ====\ntests/a.py::test_x PASSED\n---- Captured ----\nRuntimeError: {OOM}\n"
    assert [row["role"] for row in events(tmp_path, session + "==== 3 passed in 0.10s ====\n")] == ["noise", "evidence"]
    failing = f"==== test session starts ====\n==== FAILURES ====\nRuntimeError: {OOM}\n==== 1 failed in 0.10s ====\n"
    assert [row["role"] for row in events(tmp_path, failing)] == ["primary"]
    begun = "test_{} (tests.T.test_x) ... \nRuntimeError: " + OOM
    unit = f"{begun.format('a')}\nok\n{begun.format('b')}\nFAIL\n"
    assert [row["role"] for row in events(tmp_path, unit)] == ["noise", "primary"]


def test_the_source_line_of_a_warning_is_not_a_message(tmp_path: Path) -> None:
    text = "a.py:3: UserWarning: odd\n  raise RuntimeError('CUDA error: an illegal memory access was encountered')\n"
    assert signatures(tmp_path, text) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Training completed. Do not forget\n", ["job-completed"]),
        ("finished, exit code 0\n", ["job-completed", "job-exit-code"]),
        ("Process exited with code 137\n", ["job-exit-code"]),
        ("run.sh: line 3:  1234 Killed                  python train.py\n", ["shell-killed"]),
        ("epoch 3 done\n", []),
    ],
)
def test_the_end_of_a_job_is_named(tmp_path: Path, text: str, names: list[str]) -> None:
    assert signatures(tmp_path, text) == names


def test_a_message_glued_to_a_progress_bar_is_found(tmp_path: Path) -> None:
    text = "\r 22%|##| 11/50 [1:55<6:49, 629.37s/it]slurmstepd: error: *** JOB 4 ON n7 CANCELLED AT 2022-04-14T16:20:46"
    (row,) = events(tmp_path, text + " DUE TO TIME LIMIT ***\n")
    assert (row["signature"], row["source"]) == ("slurm-cancelled-due-to", "slurm")


def test_out_of_memory_texts_are_joined_over_wrapped_lines(tmp_path: Path) -> None:
    text = (
        "ERROR CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total\n"
        "capacity of 8.00 GiB of which 10.00 MiB is free. Including non-PyTorch\n"
        "memory, this process has 7.00 GiB memory in use. Of the allocated memory\n"
        "6.00 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch\n"
        "but unallocated.\nepoch 2\n"
    )
    rows = events(tmp_path, text)
    assert len(rows) == 1 and '"reserved_unallocated_bytes": 524288000' in rows[0]["fields"]
    assert '"capacity_bytes": 8589934592' in rows[0]["fields"]


@pytest.mark.parametrize("wrapper", [gzip.compress, bytes])
def test_a_cut_log_keeps_what_came_before(tmp_path: Path, wrapper: Any) -> None:
    text = "".join(f"step {i} loss 1.0 {i * 7919 % 65536}\n" for i in range(3000)) + f"RuntimeError: {OOM}\n"
    data = wrapper((text * 3).encode())
    for cut in (0, 1, 2, 20, len(data) // 3, len(data) // 2, len(data) - 1):
        sink = read(tmp_path, data[:cut])
        assert sink.quality in {"complete", "partial"}
    assert (sink.quality == "partial") == (wrapper is gzip.compress)
    assert all(c["complete"] == (sink.quality == "complete") for c in sink.coverage)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n\n",
        b"\r\r\r\n\r",
        b"\x00" * 5000 + b"RuntimeError: x\n",
        bytes(range(256)) * 300,
        b"\xff\xfe",
        b"\xff\xfe" + b"R\x00u",
        b"\xc3\x28\xa0\xa1 RuntimeError: \xf0\x28\x8c\xbc\n",
        b"Traceback (most recent call last):\n" * 3000,
        b"  + Exception Group Traceback (most recent call last):\n" * 500,
        b"".join(
            b"  " * i + b"+-+---------------- 1 ----------------\n" + b"  " * i + b"| ValueError: x\n"
            for i in range(400)
        ),
        b"Root Cause (first observed failure):\n[0]:\n  exitcode  : 99999999999999999999 (pid: x)\n" * 50,
        b'{"log": ' * 2000 + b"\n",
        b'{"log":"' + b"\\u0000" * 1000 + b'"}\n',
        b"[" * 50000 + b"\n" + b"(" * 50000 + b"\n" + b"{'loss': " * 9000 + b"\n",
        b"step 99999999999999999999999999 loss 1e999999 grad_norm 1" + b"0" * 5000 + b"\n",
        b"2026-99-99 99:99:99,999 ERROR x\nE1399 99:99:99.999999 1 a.py:1] x\n",
        b"[rank" + b"9" * 400 + b"]: RuntimeError: x\n[rank999999]: RuntimeError: x\n",
    ],
)
def test_hostile_bytes_never_raise(tmp_path: Path, data: bytes) -> None:
    recognised(data)
    sink = read(tmp_path, data)
    assert {c["capability"] for c in sink.coverage} <= set(CAPABILITIES)


def test_a_line_without_end_is_read_in_pieces(tmp_path: Path) -> None:
    began = time.process_time()
    sink = read(tmp_path, b"CUDA out of memory. Tried to allocate " * 260_000 + b"\nRuntimeError: boom\n")
    assert time.process_time() - began < 20
    assert sink.rows("log_event")[-1]["line"] == 2
    assert all(len(row["message"]) <= 65536 for row in sink.rows("log_event"))


def test_a_flood_is_bounded_and_said_so(tmp_path: Path) -> None:
    sink = read(tmp_path, "NVRM: Xid (PCI:0000:3b:00): 13, pid=1, x\n" * 6000 + "RuntimeError: boom\n")
    rows = sink.rows("log_event")
    before, since = MAX_SAME + 1, MAX_SAME + 1  # the last 128 KiB hold more than that
    assert len(rows) == before + since + 1 and rows[-1]["exception"] == "RuntimeError"
    repeated = [json.loads(row["fields"]) for row in rows if "n_repeats" in (row["fields"] or "")]
    assert [row["n_repeats"] for row in repeated] and sum(row["n_repeats"] for row in repeated) == 6000 - 2 * MAX_SAME
    assert repeated[-1]["last_line"] == 6000
    assert [warning["code"] for warning in sink.warnings] == ["too-many-events"]


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("aE[]:|+ \n\r\t\x1b{}'\"0123456789.,-FileTracebk(mostcl)"), max_size=400))
def test_any_text_is_read(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    recognised(text)
    read(tmp_path_factory.mktemp("t"), text)


@pytest.mark.parametrize(
    ("data", "low", "high"),
    [
        (b"\x00\x01\x02PK\x03\x04" * 30, 0, 0),
        (b'{"a": 1}', 0, 0),
        (b'[{"a": 1}]', 0, 0),
        (b'{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n', 0, 0),
        (b"step,loss,lr\n1,0.5,1e-4\n2,0.4,1e-4\n", 0, 0),
        (b"Python 3.9.19\ndevice_map: auto\ntorch==2.1.0\nCUDA: 12.1\n$ nvidia-smi\n", 10, 15),
        (b"some notes about the run\nthat nobody reads\n", 10, 15),
        (b"step 1 loss 2.0\nstep 2 loss 1.0\n", 20, 35),
        (
            f'hello\nTraceback (most recent call last):\n  File "a.py", line 1, in f\nRuntimeError: {OOM}\n'.encode(),
            40,
            40,
        ),
        (b"[2026-05-21 06:40:12 TP0] Prefill batch.\n" * 3, 40, 40),
        ("2026-03-01 10:00:00 INFO hi\n".encode("utf-16"), 40, 40),
        (b'{"log":"hi\\n","stream":"stderr","time":"2026-03-01T10:00:00Z"}\n' * 3, 10, 40),
        (b"[1894120.118823] pcieport 0000:00:03.0: AER: Corrected error received\n" * 3, 40, 40),
        (b"{'loss': 2.1, 'grad_norm': 1.25, 'epoch': 0.1}\n{'loss': 2.0, 'grad_norm': 1.5, 'epoch': 0.2}\n", 30, 30),
    ],
)
def test_content_decides_how_surely_it_is_a_log(data: bytes, low: int, high: int) -> None:
    assert low <= recognised(data) <= high


@needs_artifacts
def test_no_real_log_gives_a_warning_and_rows_are_in_file_order() -> None:
    paths = [p for p in sorted((ARTIFACTS / "crash_log").iterdir()) if log.recognise(Source(p, p.name).head()) >= 40]
    paths += sorted((SHARED / "cases" / "dev").glob("*/artifacts/**/*.log"))
    assert len(paths) > 60
    for path in paths:
        sink = load(log, path)
        assert not sink.warnings, path
        rows = sink.rows("log_event")
        assert [row["row"] for row in rows] == list(range(len(rows)))
        assert [row["line"] for row in rows] == sorted(row["line"] for row in rows)
        assert set(sink.procs) | {row["proc"] for row in rows} | {0} >= {row["proc"] for row in rows}


@needs_artifacts
def test_healthy_jobs_have_no_failure_in_their_logs() -> None:
    for path in sorted((SHARED / "cases" / "dev").glob("2*/artifacts/**/*.log")):
        failures = [row for row in load(log, path).rows("log_event") if row["role"] in {"primary", "symptom"}]
        assert [row["signature"] for row in failures if row["signature"] != "xid"] == [], path


def test_failures_that_a_process_went_on_after_say_for_how_many_steps(tmp_path: Path) -> None:
    failed = "OSError: [Errno 5] Input/output error: 'a.tar'"
    text = (
        f"[rank0]: step 10 loss 2.0\n[rank1]: step 10 loss 2.0\n[rank0]: {failed}\n[rank1]: {failed}\n"
        f"[rank0]: step 11 loss 2.0\n[rank0]: step 13 loss 2.0\n[rank0]: {failed}\n"
    )
    said = [(row["line"], (row["fields"] or "")) for row in events(tmp_path, text)]
    assert [line for line, _ in said] == [3, 4, 7]
    assert ["later_steps" in fields for _, fields in said] == [True, False, False]
    assert '"later_steps": 3' in said[0][1]


def test_messages_of_other_figures_or_devices_are_rows_of_their_own(tmp_path: Path) -> None:
    lines = [OOM, OOM.replace("GPU 0", "GPU 1"), OOM.replace("1.00 GiB", "2.00 GiB", 1), OOM]
    rows = events(tmp_path, "\n".join(lines) + "\n")
    assert [(row["line"], row["message"]) for row in rows] == [(n, line) for n, line in enumerate(lines, 1)]


def test_the_bus_id_of_a_communicators_device_is_kept(tmp_path: Path) -> None:
    text = "n1:8123:8303 [1] NCCL INFO comm 0x55d0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 3b000 - Init COMPLETE\n"
    (row,) = events(tmp_path, text)
    assert '"bus_id": "3b000"' in row["fields"]
