"""Jobs of which every rank fails alike: one verdict, all ranks counted, and a report of bounded size."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from forensics import case, casebook, engine
from forensics.pipeline import Analysis, analyze

N = 64
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.50 GiB is free. Process 4711 has 78.00 GiB memory in use. Of the allocated memory 70.10 GiB is "
    "allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated."
)
TIMEOUT = (
    "torch.distributed.DistBackendError: [Rank {rank}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1017, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600093 "
    "milliseconds before timing out."
)


def job(folder: Path, error: str) -> Path:
    folder.mkdir()
    for rank in range(N):
        lines = [f"step {step} loss {2 + rank / 100 - step / 1000:.4f}" for step in range(40)]
        lines += [
            "Traceback (most recent call last):",
            '  File "/job/train.py", line 88, in main',
            "    loss.backward()",
        ]
        text = "\n".join(f"[rank{rank}]: {line}" for line in [*lines, error.format(rank=rank)])
        (folder / f"rank_{rank}.log").write_text(text + "\n")
    return folder


def analyzed(tmp_path: Path, error: str) -> Analysis:
    return analyze(job(tmp_path / "job", error), tmp_path / "out")


def test_one_cause_stands_for_all_ranks_that_ran_out_of_memory(tmp_path: Path) -> None:
    done = analyzed(tmp_path, OOM)
    assert done.verdict.status == "root-cause"
    assert [cause.rule for cause in done.verdict.root_causes] == ["memory-capacity"]
    assert done.verdict.sentence.endswith(f"{N - 1} other ranks met the same")
    assert (done.out / "report.html").stat().st_size < 1_000_000


def test_timeouts_of_all_ranks_are_the_symptom_of_something_unseen(tmp_path: Path) -> None:
    done = analyzed(tmp_path, TIMEOUT)
    assert done.verdict.status == "not-established"
    assert f"{N - 1} other ranks met the same" in done.verdict.sentence
    assert {finding.rank for finding in done.verdict.consequences} == set(range(N))


def test_findings_beyond_the_bound_are_counted_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_FINDINGS_PER_RULE", 10)
    done = analyzed(tmp_path, OOM)
    assert sum(finding.rule == "memory-capacity" for finding in done.findings) == 10
    assert done.verdict.sentence.endswith(f"{N - 1} other ranks met the same")
    assert any(warning.message.startswith(f"{N - 10} further findings") for warning in done.report.warnings)
    with duckdb.connect(str(done.out / "case.duckdb"), read_only=True) as con:
        query = "SELECT count(*) FROM rule_run WHERE rule = 'memory-capacity' AND outcome = 'found'"
        assert con.execute(query).fetchone() == (N,)


def test_a_case_is_the_same_however_many_rows_are_loaded_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = analyzed(tmp_path, OOM).out
    monkeypatch.setattr(case, "PORTION_ROWS", 100)
    parts = analyze(tmp_path / "job", tmp_path / "again").out
    rows = []
    for out in (whole, parts):
        with duckdb.connect(str(out / "case.duckdb"), read_only=True) as con:
            tables = ("log_event", "sample", "stack", "string")
            rows.append([con.execute(f"SELECT * FROM {table}").fetchall() for table in tables[:2]])
            rows[-1] += [sorted(con.execute(f"SELECT * FROM {table}").fetchall(), key=str) for table in tables[2:]]
    assert rows[0] == rows[1]


def test_long_series_are_drawn_by_their_extremes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(casebook, "MAX_POINTS", 100)
    path = tmp_path / "x.log"
    values = ["nan" if n == 700 else "99.5" if n == 501 else f"{n % 7 + 1}.5" for n in range(2000)]
    path.write_text("".join(f"step {n} loss {value}\n" for n, value in enumerate(values)))
    (series,) = analyze(path, tmp_path / "out").report.series
    points = dict(series.points)
    assert points[501.0] == 99.5 and points[700.0] != points[700.0]
    assert 100 <= len(points) < 1500
