"""Derived facts: which process is which, and which clock is which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from forensics.case import create_case
from forensics.models.clocks import align_clocks
from forensics.models.processes import Mention, identify_processes

HOUR = 3600 * 1_000_000_000
START = 1_795_960_000 * 1_000_000_000


def mention(artifact_id: int, **known: Any) -> Mention:
    return Mention(artifact_id, 0, known)


def test_artifacts_of_one_rank_are_one_process() -> None:
    found = identify_processes(
        [mention(0, rank=1, pid=7), mention(1, rank=1, rank_origin="content"), mention(2, rank=0)]
    )
    assert [(r["rank"], r["pid"]) for r in found.rows] == [(0, None), (1, 7)]
    assert found.ids[0, 0] == found.ids[1, 0] == 1
    assert found.rows[1]["rank_origin"] == "content"


def test_attempts_are_different_processes() -> None:
    found = identify_processes([mention(0, rank=0, attempt=0), mention(1, rank=0, attempt=1)])
    assert [r["attempt"] for r in found.rows] == [0, 1]


def test_what_names_no_attempt_belongs_to_the_first_one_named() -> None:
    found = identify_processes([mention(0, rank=0, attempt=1), mention(1, rank=0, attempt=2), mention(2, rank=0)])
    assert [r["attempt"] for r in found.rows] == [1, 2]
    assert found.ids[2, 0] == found.ids[0, 0]


def test_what_has_no_rank_belongs_to_the_only_rank_of_a_single_process_job() -> None:
    found = identify_processes([mention(0, rank=0, world_size=1), mention(1)])
    assert len(found.rows) == 1


def test_what_has_no_rank_stays_apart_when_there_are_more_ranks() -> None:
    found = identify_processes([mention(0, rank=0, world_size=2), mention(1)])
    assert [r["rank"] for r in found.rows] == [0, None]


@pytest.mark.parametrize(("known", "n_told"), [({"rank": 3}, 1), ({"rank": 0}, 8), ({"rank": 1, "world_size": 1}, 1)])
def test_what_has_no_rank_is_not_that_of_the_only_rank_named_where_there_must_be_others(
    known: dict[str, int], n_told: int
) -> None:
    found = identify_processes([mention(0, **known), mention(1)], n_told=n_told)
    assert [r["rank"] for r in found.rows] == [known["rank"], None]


def test_dumps_of_several_pids_are_processes_beside_that_of_the_logs() -> None:
    found = identify_processes([mention(0), mention(1, pid=69), mention(2, pid=70), mention(3, pid=69)])
    assert [r["pid"] for r in found.rows] == [69, 70, None]
    assert found.ids[1, 0] == found.ids[3, 0] != found.ids[0, 0]


def test_the_pid_that_comes_with_the_rank_is_the_ranks() -> None:
    found = identify_processes([mention(0, rank=0, pid=7, world_size=1), mention(1), mention(2, pid=9)])
    assert [(r["rank"], r["pid"]) for r in found.rows] == [(0, 7), (None, 9)]
    assert found.ids[1, 0] == found.ids[0, 0]


def test_a_local_rank_becomes_the_global_one_where_an_artifact_says_both() -> None:
    found = identify_processes([mention(0, rank=9, local_rank=1, host="b"), mention(1, local_rank=1, host="b")])
    assert [r["rank"] for r in found.rows] == [9]


@pytest.fixture
def con(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    return create_case(tmp_path / "case.duckdb")


def add(con: duckdb.DuckDBPyConnection, number: int, clock: str, times: list[int]) -> None:
    con.execute(
        "INSERT INTO artifact (id, path, sha256, bytes, quality, clock) VALUES (?, ?, '', 0, 'complete', ?)",
        [number, str(number), clock],
    )
    for row, ts in enumerate(times):
        con.execute(
            "INSERT INTO log_event (artifact_id, row, ts_ns, source, role) VALUES (?, ?, ?, 'job', 'evidence')",
            [number, row, ts],
        )


def test_wall_times_are_shifted_to_the_one_zone_that_fits(con: duckdb.DuckDBPyConnection) -> None:
    add(con, 0, "epoch", [START, START + HOUR // 100])
    add(con, 1, "local", [START + 9 * HOUR, START + 9 * HOUR + HOUR // 100])
    align_clocks(con)
    assert con.execute("SELECT min(ts_ns) FROM log_event WHERE artifact_id = 1").fetchone() == (START,)
    assert con.execute("SELECT clock_offset_ns FROM artifact WHERE id = 1").fetchone() == (-9 * HOUR,)


def test_wall_times_that_fit_no_zone_stay_incomparable(con: duckdb.DuckDBPyConnection) -> None:
    add(con, 0, "epoch", [START])
    add(con, 1, "local", [START + 400 * HOUR])
    align_clocks(con)
    assert con.execute("SELECT timeline FROM artifact ORDER BY id").fetchall() == [("epoch",), ("wall",)]
    con.close()
