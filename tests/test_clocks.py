"""One clock for the case: what sets each artifact's clock, within which error, and where nothing does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from forensics.assembly import assemble_case
from forensics.case import open_for_rules
from forensics.citations import Citations
from forensics.discovery import discover
from forensics.earliest import earliest_anomaly
from forensics.finding import Anomaly
from forensics.ingest import ingest
from forensics.pipeline import analyze

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
NOON = 1_795_953_600 * SECOND  # 2026-11-29 12:00:00 UTC
XID = "NVRM: Xid (PCI:0000:9b:00): {code}, pid={pid}, name=python, GPU has fallen off the bus."


def build(tmp_path: Path, files: Mapping[str, str | bytes]) -> duckdb.DuckDBPyConnection:
    folder = tmp_path / "artifacts"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        os.utime(folder / name, (0, 0))
    loaded = ingest(discover(folder, tmp_path / "work"), tmp_path / "cache")
    assemble_case(loaded, tmp_path / "case.duckdb")
    return open_for_rules(tmp_path / "case.duckdb")


def clock(con: duckdb.DuckDBPyConnection, path: str) -> dict[str, Any]:
    rows = con.execute("SELECT * FROM artifact WHERE path = ?", [path])
    return dict(zip([d[0] for d in rows.description], rows.fetchall()[0], strict=True))


def first_ns(con: duckdb.DuckDBPyConnection, path: str) -> int | None:
    query = "SELECT min(e.ts_ns) FROM log_event AS e JOIN artifact AS a ON a.id = e.artifact_id WHERE a.path = ?"
    found = con.execute(query, [path]).fetchone()
    return found[0] if found else None


def warnings(con: duckdb.DuckDBPyConnection) -> list[str]:
    return [row[0] for row in con.execute("SELECT code FROM ingest_warning ORDER BY code").fetchall()]


def rows_of(con: duckdb.DuckDBPyConnection, path: str) -> list[tuple[Any, ...]]:
    query = """
        SELECT m.kind, m.line, b.path, m.other_line, m.used
        FROM clock_match AS m JOIN artifact AS a ON a.id = m.artifact_id
        LEFT JOIN artifact AS b ON b.id = m.other_artifact_id WHERE a.path = ? ORDER BY m.line"""
    return con.execute(query, [path]).fetchall()


def dmesg(*events: tuple[float, int, int]) -> str:
    lines = [f"[{at:12.6f}] {XID.format(code=code, pid=pid)}" for at, code, pid in events]
    return "\n".join(["[    0.000000] Linux version 6.1.0", *lines, ""])


def journal(*events: tuple[int, int, int], shift: int = 0) -> str:
    lines = [
        f"2026-11-29T{12 + (at + shift) // 3600:02d}:{(at + shift) // 60 % 60:02d}:{(at + shift) % 60:02d}+00:00"
        f" node1 kernel: {XID.format(code=code, pid=pid)}"
        for at, code, pid in events
    ]
    return "\n".join([*lines, ""])


def test_boot_time_is_set_by_kernel_messages_that_the_journal_has_too(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "dmesg.txt": dmesg((5000.4, 31, 70), (5060.1, 79, 71), (9000.0, 48, 72)),
            "journal.log": journal((100, 31, 70), (160, 79, 71)),
        },
    )
    found = clock(con, "dmesg.txt")
    assert found["timeline"] == "epoch"
    assert abs(found["clock_offset_ns"] - (NOON + 100 * SECOND - 5000 * SECOND)) < found["clock_error_ns"]
    assert 0 < found["clock_error_ns"] < 5 * SECOND
    assert rows_of(con, "dmesg.txt") == [
        ("kernel-message", 2, "journal.log", 1, True),
        ("kernel-message", 3, "journal.log", 2, True),
    ]
    assert warnings(con) == []


def test_a_single_shared_event_sets_the_clock_and_says_so(tmp_path: Path) -> None:
    con = build(tmp_path, {"dmesg.txt": dmesg((5000.0, 79, 71)), "journal.log": journal((100, 79, 71))})
    assert clock(con, "dmesg.txt")["timeline"] == "epoch"
    assert warnings(con) == ["one-shared-event"]


def test_boot_time_without_a_shared_event_stays_on_its_own(tmp_path: Path) -> None:
    con = build(tmp_path, {"dmesg.txt": dmesg((5000.0, 79, 71)), "journal.log": journal((100, 31, 70))})
    assert clock(con, "dmesg.txt")["timeline"] == "boot node1"
    assert first_ns(con, "dmesg.txt") == 5000 * SECOND


def test_events_of_which_no_two_agree_set_no_clock(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "dmesg.txt": dmesg((100.0, 31, 70), (200.0, 79, 71), (300.0, 48, 72), (400.0, 13, 73)),
            "journal.log": journal((100, 31, 70), (900, 79, 71), (20, 48, 72), (2000, 13, 73)),
        },
    )
    assert clock(con, "dmesg.txt")["timeline"] == "boot node1"


def test_a_false_match_among_true_ones_is_left_out(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "dmesg.txt": dmesg((100.0, 31, 70), (200.0, 79, 71), (300.0, 48, 72)),
            "journal.log": journal((100, 31, 70), (200, 79, 71), (3000, 48, 72)),
        },
    )
    assert [row[4] for row in rows_of(con, "dmesg.txt")] == [True, True, False]
    assert first_ns(con, "dmesg.txt") == first_ns(con, "journal.log")


def error_file(seconds: int, message: str) -> bytes:
    info = {"message": message, "extraInfo": {"py_callstack": "", "timestamp": str(seconds)}}
    return orjson.dumps({"message": info})


TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : {time}
  host      : node1
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 4711)
  error_file: /tmp/run/attempt_0/3/error.json
  traceback : Traceback (most recent call last):
    File "/job/train.py", line 9, in main
      step()
  ValueError: no rows in shard 7
============================================================
"""


def test_the_zone_of_a_log_follows_from_the_error_file_that_torchrun_quotes(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "run/attempt_0/rank_3/error.json": error_file(NOON // SECOND, "ValueError: no rows in shard 7"),
            "train.log": "2026-11-29 17:20:00 INFO start\n" + TABLE.format(time="2026-11-29_17:30:00"),
        },
    )
    found = clock(con, "train.log")
    assert (found["timeline"], found["clock_offset_ns"]) == ("epoch", -5.5 * HOUR)
    assert [row[0] for row in rows_of(con, "train.log")] == ["worker-failed"]


def test_the_year_of_a_log_is_that_in_which_it_lies_with_dated_artifacts(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "glog.log": "E1129 12:00:05.000000 7 a/b.py:1] it broke\nE1129 12:00:06.000000 7 a/b.py:1] it broke\n",
            "other.log": "2026-11-29 11:59:00 ERROR bad thing\n",
        },
    )
    assert first_ns(con, "glog.log") == NOON + 5 * SECOND
    assert {clock(con, name)["timeline"] for name in ("glog.log", "other.log")} == {"wall"}
    assert [row[0] for row in rows_of(con, "glog.log")] == ["year"]


def test_a_winter_without_a_year_is_placed_on_both_sides_of_new_year(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "glog.log": "E1231 23:59:59.000000 7 a/b.py:1] it broke\nE0101 00:00:01.000000 7 a/b.py:1] it broke\n",
            "other.log": "2027-01-01 00:00:00 ERROR bad thing\n",
        },
    )
    number = clock(con, "glog.log")["id"]
    rows = con.execute("SELECT ts_ns FROM log_event WHERE artifact_id = ? ORDER BY row", [number]).fetchall()
    one, two = (row[0] for row in rows)
    midnight = first_ns(con, "other.log")
    assert midnight is not None and (one, two) == (midnight - SECOND, midnight + SECOND)


def test_a_year_far_down_in_a_log_holds_for_the_lines_before(tmp_path: Path) -> None:
    filler = "W1129 11:00:00.000000 7 a/b.py:1] still here\n" * 8000
    late = "E1129 11:00:01.000000 7 a/b.py:1] it broke\n" + filler + "2026-11-29 12:00:00 INFO done\n"
    con = build(tmp_path, {"glog.log": late})
    assert first_ns(con, "glog.log") == NOON - HOUR + SECOND


@pytest.mark.parametrize(("name", "known"), [("train_20261129-1100.log", True), ("train_20261005.log", False)])
def test_a_date_in_the_name_tells_the_year_when_it_is_the_logs_day(tmp_path: Path, name: str, known: bool) -> None:
    con = build(tmp_path, {name: "E1129 12:00:05.000000 7 a/b.py:1] it broke\n"})
    assert clock(con, name)["timeline"] == ("wall" if known else "wall without year")
    assert first_ns(con, name) == (NOON + 5 * SECOND if known else 0)


@pytest.mark.parametrize(("hours", "known"), [(1, True), (24 * 40, False)])
def test_the_time_of_the_last_change_tells_the_year_when_it_is_the_last_lines_day(
    tmp_path: Path, hours: int, known: bool
) -> None:
    path = tmp_path / "artifacts" / "glog.log"
    path.parent.mkdir()
    path.write_text("E1129 12:00:05.000000 7 a/b.py:1] it broke\n")
    os.utime(path, ns=(NOON + hours * HOUR, NOON + hours * HOUR))
    assemble_case(ingest(discover(path.parent, tmp_path / "work"), tmp_path / "cache"), tmp_path / "case.duckdb")
    con = open_for_rules(tmp_path / "case.duckdb")
    assert clock(con, "glog.log")["timeline"] == ("wall" if known else "wall without year")


def test_lines_of_two_clocks_in_one_log_share_the_zone_that_neighbours_show(tmp_path: Path) -> None:
    text = "".join(
        f"2026-11-29T12:00:{s:02d}Z INFO step {s}\nE1129 20:00:{s:02d}.500000 7 a/b.py:1] thing {s} broke\n"
        for s in range(0, 20, 4)
    )
    con = build(tmp_path, {"mixed.log": text})
    assert clock(con, "mixed.log")["clock"] == "epoch"
    assert first_ns(con, "mixed.log") == NOON + SECOND // 2
    assert warnings(con) == []


def test_a_clock_that_two_events_show_to_be_wrong_is_corrected(tmp_path: Path) -> None:
    text = {
        "a/journal.log": journal((100, 31, 70), (160, 79, 71), (170, 48, 72)),
        "b/journal.log": journal((100, 31, 70), (160, 79, 71), (171, 13, 73), shift=300),
    }
    con = build(tmp_path, text)
    assert warnings(con) == ["clock-off"]
    assert first_ns(con, "a/journal.log") == first_ns(con, "b/journal.log")


def test_a_clock_that_one_event_contradicts_keeps_its_times_with_a_wider_error(tmp_path: Path) -> None:
    text = {"a/journal.log": journal((100, 31, 70)), "b/journal.log": journal((100, 31, 70), shift=300)}
    con = build(tmp_path, text)
    assert warnings(con) == ["clocks-disagree"]
    assert max(clock(con, name)["clock_error_ns"] for name in text) == 300 * SECOND


def test_wall_times_that_fit_several_zones_are_compared_with_wall_times_only(tmp_path: Path) -> None:
    con = build(
        tmp_path,
        {
            "epoch.log": "2026-11-29T12:00:00Z ERROR a\n2026-11-29T20:00:00Z ERROR b\n",
            "wall.log": "2026-11-29 12:00:00 ERROR c\n2026-11-29 20:00:00 ERROR d\n",
        },
    )
    found = clock(con, "wall.log")
    assert (found["timeline"], found["clock_offset_ns"], found["clock_error_ns"]) == ("wall", 0, SECOND)


def flight_dump(*ended_ns: int, waiting_since_ns: int | None = None) -> bytes:
    def entry(number: int, ended: int | None, created: int) -> dict[str, Any]:
        return {
            "record_id": number, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": "nccl:all_reduce", "frames": [],
            "state": "scheduled" if ended is None else "completed", "input_sizes": [[4]], "output_sizes": [[4]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"], "time_created_ns": created, "is_p2p": False,
            "time_discovered_started_ns": None, "time_discovered_completed_ns": ended, "retired": ended is not None,
            "timeout_ms": 600_000,
        }  # fmt: skip

    entries = [entry(n, ended, ended - SECOND) for n, ended in enumerate(ended_ns)]
    if waiting_since_ns is not None:
        entries.append(entry(len(entries), None, waiting_since_ns))
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return orjson.dumps({"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries})


def test_recorders_of_two_hosts_are_aligned_on_the_ends_of_collectives(tmp_path: Path) -> None:
    ends = [NOON + n * 7 * SECOND for n in range(5)]
    dumps = {
        "nccl_trace_rank_0.json": flight_dump(*ends),
        "nccl_trace_rank_1.json": flight_dump(*(end + 40 * SECOND + n * 10**7 for n, end in enumerate(ends))),
    }
    con = build(tmp_path, dumps)
    found = clock(con, "nccl_trace_rank_1.json")
    assert abs(found["clock_offset_ns"] + 40 * SECOND) <= found["clock_error_ns"] < SECOND
    assert "clock-off" in warnings(con)


def test_each_of_many_recorders_is_compared_with_few_and_still_set_right(tmp_path: Path) -> None:
    ends = [NOON + n * 7 * SECOND for n in range(5)]
    dumps = {f"nccl_trace_rank_{rank}.json": flight_dump(*ends) for rank in range(24)}
    dumps["nccl_trace_rank_20.json"] = flight_dump(*(end + 40 * SECOND for end in ends))
    con = build(tmp_path, dumps)
    offsets = con.execute("SELECT path, clock_offset_ns FROM artifact WHERE clock_offset_ns <> 0").fetchall()
    assert offsets == [("nccl_trace_rank_20.json", -40 * SECOND)]
    rests = con.execute("SELECT artifact_id, count(*) FROM clock_match GROUP BY ALL").fetchall()
    assert len(rests) == 23 and max(n for _, n in rests) == 8 * 5


def test_a_watchdogs_wall_time_is_set_by_the_recorder_of_the_same_collective(tmp_path: Path) -> None:
    line = (
        "[rank1]:[E1129 21:10:00.250000000 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600050 "
        "milliseconds before timing out.\n"
    )
    con = build(tmp_path, {"nccl_trace_rank_1.json": flight_dump(waiting_since_ns=NOON), "rank_1.log": line})
    found = clock(con, "rank_1.log")
    assert (found["timeline"], found["clock_offset_ns"]) == ("epoch", -9 * HOUR)
    assert [row[0] for row in rows_of(con, "rank_1.log") if row[0] != "year"] == ["collective-enqueued"]


def rank_log(rank: int, second: float, error: str) -> str:
    return f"[rank{rank}]: 2026-11-29T12:00:{second:06.3f}Z ERROR {error}\n"


def earliest(tmp_path: Path, con: duckdb.DuckDBPyConnection) -> Anomaly:
    found = discover(tmp_path / "artifacts", tmp_path / "work2")
    anomaly = earliest_anomaly(con, Citations(con, [item.source for item in found]))
    assert anomaly is not None
    return anomaly


@pytest.mark.parametrize(("gap", "told_apart"), [(0.02, False), (0.5, True)])
def test_anomalies_closer_than_the_clocks_err_are_both_named(tmp_path: Path, gap: float, told_apart: bool) -> None:
    con = build(
        tmp_path,
        {
            "rank_0.log": rank_log(0, 10.1 + gap, "the queue is empty"),
            "rank_1.log": rank_log(1, 10.1, "the shard is gone"),
        },
    )
    first = earliest(tmp_path, con)
    assert first.rank == 1
    assert [other.rank for other in first.not_told_apart] == ([] if told_apart else [0])


def test_stamps_of_whole_seconds_tell_no_more_than_the_second(tmp_path: Path) -> None:
    logs = {
        "rank_0.log": "[rank0]: 2026-11-29T12:00:11Z ERROR the queue is empty\n",
        "rank_1.log": "[rank1]: 2026-11-29T12:00:10Z ERROR the shard is gone\n",
    }
    assert [other.rank for other in earliest(tmp_path, build(tmp_path, logs)).not_told_apart] == [0]


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
    " of which 1.10 GiB is free. Process 71 has 78.05 GiB memory in use."
)


def job(shift: int) -> dict[str, str]:
    """Two ranks: rank 1 runs out of memory, rank 0 waits for it. Rank 1's own log is `shift` seconds off."""

    def at(second: int) -> str:
        return f"2026-11-29T{12 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"

    steps = [(0.731 - 0.01 * n, 100 + n) for n in range(20)]
    return {
        "all.log": "".join(f"[rank1]: {at(600 + n)} step {n} loss {loss:.4f}\n" for n, (loss, _) in enumerate(steps))
        + f"[rank0]: {at(1300)} ERROR [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21, "
        "OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600020 milliseconds before timing out.\n",
        "rank_1.log": "".join(
            f"[rank1]: {at(600 + n + shift)} step {n} loss {loss:.4f}\n" for n, (loss, _) in enumerate(steps)
        )
        + f"[rank1]: {at(640 + shift)} ERROR {OOM}\n",
    }


@pytest.mark.parametrize("shift", [-437, 0, 3, 95, 3600, 5 * 3600 + 1800])
def test_shifting_one_artifacts_clock_changes_neither_verdict_nor_order(tmp_path: Path, shift: int) -> None:
    folder = tmp_path / "artifacts"
    folder.mkdir()
    for name, text in job(shift).items():
        (folder / name).write_text(text)
    result = analyze(folder, tmp_path / "out")
    assert result.verdict.status == "root-cause"
    assert [f.rank for f in result.verdict.root_causes] == [1]
    assert result.verdict.earliest is not None
    assert result.verdict.earliest.rank == 1
    order = [f.rank for f in sorted(result.findings, key=lambda f: f.ts_ns or 0) if f.ts_ns is not None]
    assert order == sorted(order, reverse=True)
