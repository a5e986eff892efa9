"""Prefixes of log lines: what they say of process, time and level, and how they are taken off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import MemorySink, load

from forensics.formats import log
from forensics.formats._log_marks import Labels
from forensics.formats._log_prefix import parse

OOM = "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes is free."


def read(tmp_path: Path, text: str | bytes) -> MemorySink:
    path = tmp_path / "x.log"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(log, path)


def events(tmp_path: Path, text: str | bytes) -> list[dict[str, Any]]:
    return read(tmp_path, text).rows("log_event")


@pytest.mark.parametrize(
    ("raw", "text", "known"),
    [
        ("[rank3]:[W1129 11:41:45.714000000 x.cpp:989] hi", "hi", {"rank": 3, "level": "warning"}),
        ("[E606 09:09:08.1 x.cpp:9] [PG ID 0 PG GUID 0(default_pg) Rank 3] hi", None, {"rank": 3, "level": "error"}),
        ("[E ProcessGroupNCCL.cpp:915] [Rank 2] hi", "[Rank 2] hi", {"rank": 2, "level": "error"}),
        ("W1129 11:41:45.714000 26306 torch/distributed/run.py:874] hi", "hi", {"writer": "torch/distributed/run.py"}),
        ("[rank0]:V1109 10:12:07.312000 4188 a/b.py:2] [0/1] [__recompiles]   hi", "  hi", {"compile_id": "0/1"}),
        ("[default3]:[rank11]:   hi", "  hi", {"rank": 11, "local_rank": 3}),
        ("[default3]:  hi", "  hi", {"local_rank": 3, "rank": None}),
        ("[1,3]<stderr>:hi", "hi", {"rank": 3}),
        ("(EngineCore_0 pid=26) ERROR 06-11 11:46:39 [core.py:517]   hi", "  hi", {"pid": 26, "actor": "EngineCore_0"}),
        ("(W pid=1, ip=10.0.0.1) hi [repeated 5x across cluster]", "hi", {"host": "10.0.0.1", "repeated": 5}),
        ("2026-11-29T11:41:45.714Z stderr F   hi", "  hi", {"partial": False}),
        ("2026-11-29T11:41:45.714Z stderr P hi", "hi", {"partial": True}),
        ("2022-05-11 10:11:58,004 INFO hi", "hi", {"level": "info"}),
        ("2023-01-01 12:00:00,123 - my.log - ERROR - hi", "hi", {"level": "error"}),
        ("12/29/2023 10:11:12 - WARNING - __main__ -   hi", None, {"level": "warning"}),
        ("[2023-11-02 14:20:07,311] [INFO] [config.py:1003:print] hi", "hi", {"level": "info"}),
        ("[INFO|trainer.py:2048] hi", "hi", {"level": "info"}),
        ("ERROR:torch.distributed.api:hi", "hi", {"level": "error", "writer": "torch.distributed.api"}),
        ("[ERROR] 2024-07-03-19:45:13 (PID:62, Device:1, RankID:43) hi", "hi", {"rank": 43, "pid": 62}),
        ("[2026-05-21 06:40:12 TP3] hi", "hi", {"rank": 3}),
        ("[1894120.118823] hi", "hi", {"writer": "kernel"}),
        ("kern  :warn  : 2025-01-21T04:41:44,285060+00:00 hi", "hi", {"writer": "kernel", "level": "warning"}),
        ("3,3964,206764307,-;hi", "hi", {"writer": "kernel", "level": "error"}),
        ("Jan  2 15:20:12 host7 kernel: hi", "hi", {"host": "host7", "writer": "kernel"}),
        ("2025-01-02T15:20:12+0800 host7 kernel: hi", "hi", {"host": "host7", "writer": "kernel"}),
        ("h-21:8123:8301 [1] misc/socket.cc:5 NCCL WARN hi", None, {"place": "h-21", "pid": 8123, "level": "warning"}),
        ("gpu-a01: [rank2]: hi", "hi", {"host": "gpu-a01", "rank": 2}),
        ("RuntimeError: hi", "RuntimeError: hi", {"host": None, "rank": None, "level": None}),
    ],
)
def test_prefixes_are_taken_off_and_kept(raw: str, text: str | None, known: dict[str, Any]) -> None:
    line = parse(raw, Labels(hosts={"gpu-a01"}))
    assert text is None or line.text == text
    assert {name: getattr(line, name) for name in known} == known


def test_srun_labels_are_ranks_only_where_the_whole_log_has_them(tmp_path: Path) -> None:
    labelled = "".join(f"{i % 4}: step {i} loss 1.0\n" for i in range(40)) + f"3: RuntimeError: {OOM}\n"
    sink = read(tmp_path, labelled)
    row = sink.rows("log_event")[0]
    assert sink.procs[row["proc"]]["rank"] == 3
    clock = "22:01:27 Warning SystemOOM System OOM encountered, victim process: python, pid: 8\n" * 3
    assert {row["proc"] for row in events(tmp_path, clock)} == {0}


def test_each_rank_is_a_process_with_its_own_coverage(tmp_path: Path) -> None:
    sink = read(tmp_path, "[rank1]: loading\n[rank0]: RuntimeError: boom\n[rank5]: waiting\n")
    assert {known["rank"] for known in sink.procs.values()} == {0, 1, 5}
    assert {c["proc"] for c in sink.coverage if c["capability"] == "log_event"} == set(sink.procs)


def test_the_role_prefix_of_torchrun_is_the_local_rank(tmp_path: Path) -> None:
    sink = read(tmp_path, "[default0]:[rank8]: RuntimeError: a\n[default1]:RuntimeError: b\n")
    by_message = {row["message"]: sink.procs[row["proc"]] for row in sink.rows("log_event")}
    assert by_message["a"]["rank"] == 8
    assert by_message["b"].get("rank") is None and by_message["b"]["local_rank"] == 1


def test_nccl_says_which_rank_a_file_belongs_to(tmp_path: Path) -> None:
    text = "h1:81:81 [1] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    text += "h1:81:83 [1] NCCL INFO comm 0x55d0 rank 9 nranks 16 cudaDev 1 busId 101d0 - Init COMPLETE\n"
    known = read(tmp_path, text).procs[0]
    assert (known["rank"], known["world_size"], known["host"], known["pid"]) == (9, 16, "h1", 81)


def test_container_logs_are_unwrapped(tmp_path: Path) -> None:
    rows = events(tmp_path, '{"log":"RuntimeError: boom\\n","stream":"stderr","time":"2026-03-01T10:00:00.5Z"}\n')
    assert (rows[0]["message"], rows[0]["ts_ns"]) == ("boom", 1772359200_500000000)
    rows = events(
        tmp_path, "2026-03-01T10:00:00Z stderr P RuntimeError: CUDA err\n2026-03-01T10:00:00Z stderr F or: x\n"
    )
    assert rows[0]["message"] == "CUDA error: x"
    parts = "2026-03-01T10:00:00Z stderr P Runtime\n2026-03-01T10:00:00Z stderr P Error: boom"
    assert [row["message"] for row in events(tmp_path, parts)] == ["boom"]  # the log ends inside the line


def test_structured_records_give_their_traceback(tmp_path: Path) -> None:
    record = (
        '{"level": "ERROR", "message": "failed", "exc_info": "Traceback (most recent call last):\\n  File \\"a.py\\",'
    )
    rows = events(tmp_path, record + ' line 3, in f\\n    g()\\nValueError: bad"}\n')
    assert [row["exception"] for row in rows if row["exception"]] == ["ValueError"]


def test_colours_and_progress_bars_do_not_hide_messages(tmp_path: Path) -> None:
    bar = "".join(f"\r{i:3d}%|###| {i}/100 [00:01<00:02]" for i in range(100))
    text = f"start\n{bar}\r\x1b[31mRuntimeError\x1b[0m: {OOM}\nend\n"
    row = events(tmp_path, text)[0]
    assert (row["signature"], row["line"]) == ("cuda-oom", 2)
    assert text.encode()[row["byte"] :].startswith(b"\x1b[31mRuntimeError")


def test_a_byte_is_where_the_decisive_line_begins(tmp_path: Path) -> None:
    text = "ö first line\r\nsecond\r\nRuntimeError: boom\r\n".encode() * 3
    rows = events(tmp_path, text)
    assert [row["line"] for row in rows] == [3, 6, 9]
    assert all(text[row["byte"] :].startswith(b"RuntimeError: boom") for row in rows)


def test_text_in_utf_16_is_read_without_byte_positions(tmp_path: Path) -> None:
    row = events(tmp_path, f"start\nRuntimeError: {OOM}\n".encode("utf-16"))[0]
    assert (row["signature"], row["line"], row["byte"]) == ("cuda-oom", 2, None)


def test_zoned_stamps_are_of_the_epoch_and_others_local(tmp_path: Path) -> None:
    sink = read(tmp_path, "2026-03-01T12:00:00+02:00 ERROR bad thing\n")
    assert (sink.clock_kind, sink.rows("log_event")[0]["ts_ns"]) == ("epoch", 1772359200 * 10**9)
    sink = read(tmp_path, "2026-03-01 10:00:00,250 ERROR bad thing\n")
    assert (sink.clock_kind, sink.rows("log_event")[0]["ts_ns"]) == ("local", 1772359200_250000000)


def test_stamps_without_a_year_take_it_from_the_log(tmp_path: Path) -> None:
    glog = "E{day} 10:00:00.000000 7 a/b.py:1] it broke\n"
    rows = events(tmp_path, "2026-12-31 09:00:00 INFO start\n" + glog.format(day="1231") + glog.format(day="0101"))
    assert [row["ts_ns"] for row in rows] == [1798711200 * 10**9, 1798797600 * 10**9]


def test_stamps_of_another_clock_are_not_mixed_in(tmp_path: Path) -> None:
    sink = read(tmp_path, "2026-03-01 10:00:00 ERROR a\n" * 3 + "2026-03-01T10:00:00Z ERROR b\n")
    assert [row["ts_ns"] is None for row in sink.rows("log_event")] == [False, False, False, True]
    assert [warning["code"] for warning in sink.warnings] == ["mixed-clocks"]


def test_processes_of_one_file_are_told_apart_by_what_nccl_prints(tmp_path: Path) -> None:
    text = "".join(
        f"h1:{pid}:9 [{rank}] NCCL INFO comm 0x1 rank {rank} nranks 2 cudaDev {rank} busId 1 - Init COMPLETE\n"
        f"h1:{pid}:9 [{rank}] NCCL WARN Cuda failure 'odd thing'\n"
        for rank, pid in ((0, 70), (1, 71))
    )
    sink = read(tmp_path, text)
    failed = [sink.procs[row["proc"]] for row in sink.rows("log_event") if row["signature"] == "nccl-cuda-failure"]
    assert [(known["rank"], known["pid"]) for known in failed] == [(0, 70), (1, 71)]


def test_the_container_names_of_docker_compose_are_taken_off(tmp_path: Path) -> None:
    text = "web  | (EngineCore_0 pid=4) ERROR 11-10 12:30:57 [core.py:7] Traceback (most recent call last):\n"
    text += 'web  | (EngineCore_0 pid=4) ERROR 11-10 12:30:57 [core.py:7]   File "a.py", line 1, in f\n'
    text += f"web  | (EngineCore_0 pid=4) ERROR 11-10 12:30:57 [core.py:7] RuntimeError: {OOM}\n"
    sink = read(tmp_path, text)
    (row,) = sink.rows("log_event")
    assert (row["signature"], sink.procs[row["proc"]]["pid"]) == ("cuda-oom", 4)
    assert row["stack_id"] is not None


def test_a_rank_that_prints_nothing_of_note_is_still_a_process(tmp_path: Path) -> None:
    sink = read(tmp_path, "[rank7]: hello\n" * 3)
    assert [known["rank"] for known in sink.procs.values()] == [7]


@pytest.mark.parametrize(
    "mark",
    [
        "[rank" + "9" * 26 + "]: ",
        "[rank1234567]: ",
        "[1," + "9" * 5000 + "]<stderr>:",
        "[1," + "9" * 26 + "]<stderr>:",
        "[2026-05-21 06:40:12 TP" + "9" * 26 + "] ",
    ],
)
def test_a_rank_that_no_job_has_is_unknown_and_said(tmp_path: Path, mark: str) -> None:
    sink = read(tmp_path, f"{mark}{OOM}\n")
    assert [row["signature"] for row in sink.rows("log_event")][:1] == ["cuda-oom"]
    assert all(known.get("rank") is None and known.get("local_rank") is None for known in sink.procs.values())
    if len(mark) < 100:
        assert [warning["code"] for warning in sink.warnings] == ["impossible-rank"]


def test_a_rank_that_no_job_has_is_no_field_of_an_event(tmp_path: Path) -> None:
    timeout = "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=6000) ran for 6075 milliseconds before timing out."
    (row,) = events(tmp_path, f"[Rank {'9' * 18}] Watchdog caught collective operation timeout: {timeout}\n")
    assert "writer_rank" not in row["fields"]


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("2026-05-21 06:40:12 INFO world size 8", 8),
        ("> using world size: 16, data-parallel-size: 4, tensor-model-parallel size: 4", 16),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4", 4),
        ("+ torchrun --nnodes 2 --nproc_per_node 8 train.py", 16),
        ("[INFO] [launch.py:164:main] dist_world_size=8", 8),
        ("data parallel world size: 4", None),
    ],
)
def test_lines_tell_how_many_processes_the_job_has(tmp_path: Path, line: str, size: int | None) -> None:
    known = read(tmp_path, f"{line}\nstart\n{OOM}\n").procs.get(0, {})
    assert known.get("world_size") == size
