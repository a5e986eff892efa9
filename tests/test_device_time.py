"""Device time by interval algebra, gaps and their causes, and full launch queues."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_traces import op, trace
from support import ARTIFACTS, needs_artifacts

from forensics import resources
from forensics.models.critical_path import derive_critical_paths
from forensics.models.intervals import MAX_GAPS, derive_device_time
from forensics.models.launch_queue import MAX_QUEUE, derive_launch_queues
from forensics.pipeline import analyze

TRACES = ARTIFACTS / "chrome_trace"
_TEXTS = ("gemm", "ncclDevKernel_AllReduce", "Memcpy HtoD (Pageable -> Device)", "cudaLaunchKernel")
_CALLS = ("cudaStreamSynchronize", "cudaMalloc", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")


def filled(slices: list[dict[str, Any]]) -> duckdb.DuckDBPyConnection:
    """A case with these slices, whose derived tables of device time are made."""
    con = _case()
    for table in ("slice", "device_time", "device_idle", "device_gap", "launch_queue", "critical_path"):
        con.execute(f"DELETE FROM {table}")
    given = {c: [s.get(c) for s in slices] for c in ("row", "kind", "name", "ts_ns", "dur_ns", "launch_row")}
    given |= {c: [s.get(c) for s in slices] for c in ("device", "stream", "thread")}
    con.register("given", pa.table(given))
    con.execute(
        "INSERT INTO slice BY NAME SELECT g.* EXCLUDE (name), 0 AS artifact_id, 0 AS proc_id, s.id AS name_id"
        " FROM given AS g JOIN string AS s ON s.text = g.name"
    )
    derive_device_time(con)
    derive_critical_paths(con)
    derive_launch_queues(con)
    return con


@lru_cache(maxsize=1)
def _case() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(resources.schema_sql())
    con.executemany("INSERT INTO string VALUES (?, ?)", list(enumerate((*_TEXTS, *_CALLS))))
    return con


def work(row: int, kind: str, start: int, dur: int, **more: Any) -> dict[str, Any]:
    name = {"compute": "gemm", "communication": "ncclDevKernel_AllReduce", "copy": "Memcpy HtoD (Pageable -> Device)"}
    return {
        "row": row,
        "kind": "memcpy" if kind == "copy" else "kernel",
        "name": name[kind],
        "ts_ns": start,
        "dur_ns": dur,
        "device": 0,
        "stream": 7,
        **more,
    }


def call(row: int, name: str, start: int, dur: int) -> dict[str, Any]:
    kind = "annotation" if name.startswith("enumerate") else "runtime"
    return {"row": row, "kind": kind, "name": name, "ts_ns": start, "dur_ns": dur, "thread": 1}


_WORK = st.lists(
    st.tuples(st.sampled_from(["compute", "communication", "copy"]), st.integers(0, 60), st.integers(1, 20)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(_WORK)
def test_every_instant_of_a_device_counts_once(drawn: list[tuple[str, int, int]]) -> None:
    con = filled([work(row, *item) for row, item in enumerate(drawn)])
    (got,) = con.execute(
        "SELECT ts_ns, to_ns, n_work, compute_ns, communication_ns, copy_ns, exposed_communication_ns, exposed_copy_ns,"
        " idle_ns FROM device_time"
    ).fetchall()
    start, end = min(t for _, t, _ in drawn), max(t + d for _, t, d in drawn)
    running = [{kind for kind, t, d in drawn if t <= now < t + d} for now in range(start, end)]
    assert got == (
        start,
        end,
        len(drawn),
        sum("compute" in kinds for kinds in running),
        sum("communication" in kinds for kinds in running),
        sum("copy" in kinds for kinds in running),
        sum("communication" in kinds and "compute" not in kinds for kinds in running),
        sum(kinds == {"copy"} for kinds in running),
        sum(not kinds for kinds in running),
    )
    idle = con.execute("SELECT coalesce(sum(total_ns), 0) FROM device_idle").fetchall()[0][0]
    assert idle == got[-1] == con.execute("SELECT coalesce(sum(dur_ns), 0) FROM device_gap").fetchall()[0][0]


US = 1000


@pytest.mark.parametrize(
    ("between", "launch_ns", "cause"),
    [
        ([], 50 * US, "queued"),  # launched before the first kernel ended at 100 us
        ([], None, "unknown"),
        ([], 150 * US, "launch"),
        ([], 450 * US, "host"),
        ([call(5, "cudaStreamSynchronize", 20 * US, 81 * US)], 150 * US, "sync"),
        ([call(5, "cudaStreamSynchronize", 20 * US, 79 * US)], 150 * US, "launch"),  # returned before the end
        ([call(5, "cudaMalloc", 110 * US, 60 * US)], 190 * US, "allocation"),
        ([call(5, "cudaMalloc", 110 * US, 20 * US)], 190 * US, "launch"),  # less than half of the gap
        ([call(5, _CALLS[2], 50 * US, 250 * US)], 450 * US, "input"),
        ([call(5, _CALLS[2], 50 * US, 150 * US)], 450 * US, "host"),
    ],
)
def test_a_gap_is_laid_to_what_kept_the_next_launch(between: list[Any], launch_ns: int | None, cause: str) -> None:
    end = 110 * US if launch_ns is not None and launch_ns <= 50 * US else (launch_ns or 150 * US) + 5 * US
    launches = [] if launch_ns is None else [call(9, "cudaLaunchKernel", launch_ns, 4 * US)]
    slices = [
        call(8, "cudaLaunchKernel", 0, 4 * US),
        work(0, "compute", 10 * US, 90 * US, launch_row=8),
        work(1, "compute", end, 90 * US, launch_row=None if launch_ns is None else 9),
        *launches,
        *between,
    ]
    rows = filled(slices).execute("SELECT cause, dur_ns, last_row, row, cause_row FROM device_gap").fetchall()
    explained = 5 if cause in {"sync", "allocation", "input"} else None
    assert rows == [(cause, end - 100 * US, 0, 1, explained)]


def test_gaps_up_to_the_devices_own_delay_are_no_wait() -> None:
    slices = [call(8, "cudaLaunchKernel", 0, 4), call(9, "cudaLaunchKernel", 5, 4)]
    slices += [work(0, "compute", 10, 90, launch_row=8), work(1, "compute", 3100, 90, launch_row=9)]
    assert filled(slices).execute("SELECT cause, total_ns FROM device_idle").fetchall() == [("start", 3000)]


def test_only_the_longest_gaps_are_listed_and_all_are_counted() -> None:
    con = filled([work(n, "compute", n * 1000, 500 - n) for n in range(MAX_GAPS + 30)])
    assert con.execute("SELECT count(*), min(dur_ns) FROM device_gap").fetchall() == [(MAX_GAPS, 529)]
    assert con.execute("SELECT sum(n_gaps) FROM device_idle").fetchall() == [(MAX_GAPS + 29,)]


@pytest.mark.parametrize(("n_launches", "n_blocked"), [(MAX_QUEUE - 1, None), (MAX_QUEUE, 1), (MAX_QUEUE + 2, 3)])
def test_a_launch_meets_a_full_queue_when_so_many_have_not_started(n_launches: int, n_blocked: int | None) -> None:
    slices = [call(n, "cudaLaunchKernel", n, 1) for n in range(n_launches)]
    slices += [work(5000 + n, "compute", 10_000 + n, 1, launch_row=n) for n in range(n_launches)]
    rows = filled(slices).execute("SELECT n_launches, n_blocked, blocked_ns FROM launch_queue").fetchall()
    assert rows == ([] if n_blocked is None else [(n_launches, n_blocked, n_blocked)])


def test_a_trace_without_device_work_leaves_the_tables_empty() -> None:
    con = filled([call(1, "cudaMalloc", 0, 5)])
    assert con.execute("SELECT count(*) FROM device_time").fetchall() == [(0,)]


def test_waste_of_time_is_told_and_never_stands_before_the_failure(tmp_path: Path) -> None:
    events = []
    for n in range(120):
        at = 1000 + 60 * n
        events.append(op("cudaLaunchKernel", at, 4, cat="cuda_runtime", correlation=n))
        events.append(op("gemm", at + 6, 5, cat="kernel", tid=7, device=0, stream=7, correlation=n))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "trace.json").write_bytes(trace(events))
    analyzed = analyze(tmp_path / "job", tmp_path / "out")
    found = {f.rule: f for f in analyzed.findings}
    assert {"efficiency-idle-gaps", "efficiency-launch-bound"} <= set(found)
    assert "stood idle for 9" in found["efficiency-idle-gaps"].message
    assert not analyzed.verdict.root_causes
    (tmp_path / "job" / "stderr.log").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 3, in <module>\n    loss.backward()\n'
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    )
    failed = analyze(tmp_path / "job", tmp_path / "out")
    assert [f.rule for f in failed.verdict.root_causes] == ["hardware-illegal-access"]
    assert set(found) <= {f.rule for f in failed.findings}


# HolisticTraceAnalysis 0.5.0 on the same files: idle, computing, other and whole time, us. It drops the last step and
# rounds to whole microseconds; benchmarks/efficiency.py counts by its rules and gets these very figures.
_BY_HTA = {
    "hta__amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz": (8780, 96, 35, 8911),
    "tracelens__h100_gaunernst_bert-small-uncased__1016001.json.gz": (3653, 252, 2, 3907),
    "tracelens__inference_vllm_decode_full_graph_execution.json.gz": (458, 10250, 34, 10742),
}


@needs_artifacts
@pytest.mark.parametrize("name", sorted(_BY_HTA))
def test_real_traces_agree_with_hta_but_for_its_rounding(name: str, tmp_path: Path) -> None:
    analyze(TRACES / name, tmp_path / "out")
    con = duckdb.connect(str(tmp_path / "out" / "case.duckdb"), read_only=True)
    (row,) = con.execute(
        "SELECT idle_ns, compute_ns, exposed_copy_ns + exposed_communication_ns, to_ns - ts_ns, n_work FROM device_time"
    ).fetchall()
    for ours, theirs in zip(row, _BY_HTA[name], strict=False):
        assert abs(ours / 1000 - theirs) <= 2 * row[4]
