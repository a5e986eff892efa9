"""The health of each step: parts between their limits, and what a step has when a part was not measured in it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from support import ROOT

from forensics.case import create_case, text_id
from forensics.models.health import derive_health
from forensics.pipeline import analyze


@pytest.fixture
def con(tmp_path: Path) -> duckdb.DuckDBPyConnection:
    return create_case(tmp_path / "case.duckdb")


def add_gradient(con: duckdb.DuckDBPyConnection, step: int, row: int, zero_ratio: float, shape: str) -> None:
    con.execute("INSERT OR IGNORE INTO string VALUES (?, ?)", [text_id(shape), shape])
    con.execute(
        "INSERT INTO tensor (artifact_id, row, proc_id, rank, step, role, shape_id, zero_ratio)"
        " VALUES (0, ?, 0, 0, ?, 'gradient', ?, ?)",
        [row, step, text_id(shape), zero_ratio],
    )


def add_reserved(con: duckdb.DuckDBPyConnection, step: int, value: float) -> None:
    con.execute("INSERT OR IGNORE INTO string VALUES (?, 'reserved')", [text_id("reserved")])
    con.execute(
        "INSERT INTO sample (artifact_id, row, proc_id, rank, step, source, name_id, value)"
        " VALUES (1, ?, 0, 0, ?, 'metrics', ?, ?)",
        [step, step, text_id("reserved"), value],
    )


def test_gradients_count_by_their_elements_and_score_between_their_limits(con: duckdb.DuckDBPyConnection) -> None:
    add_gradient(con, 0, 1, 1.0, "[7, 10]")
    add_gradient(con, 0, 2, 0.0, "[30]")
    derive_health(con)
    part, row, value, score = con.execute("SELECT part, row, value, score FROM health_part").fetchall()[0]
    assert (part, row) == ("gradient-sparsity", 1)
    assert value == pytest.approx(0.70)
    assert score == pytest.approx(60)  # (0.85 - 0.70) / (0.85 - 0.60)


def test_a_part_keeps_its_last_value_and_the_score_is_the_mean_of_parts_on_record(
    con: duckdb.DuckDBPyConnection,
) -> None:
    con.execute("INSERT INTO fact VALUES (2, NULL, 0, 'option', 'devices.0.total_bytes', '100', 100)")
    for step in range(3):
        add_reserved(con, step, 92.0)
    add_gradient(con, 1, 1, 0.0, "[4]")
    derive_health(con)
    rows = con.execute("SELECT step, score, n_parts FROM health_score ORDER BY step").fetchall()
    assert rows == [(0, 0.0, 1), (1, 50.0, 2), (2, 50.0, 2)]


def test_counters_of_one_of_several_unequal_devices_have_no_residency(con: duckdb.DuckDBPyConnection) -> None:
    for device, total in enumerate((100, 200)):
        con.execute(
            "INSERT INTO fact VALUES (2, NULL, 0, 'option', ?, ?, ?)", [f"devices.{device}.total_bytes", total, total]
        )
    add_reserved(con, 0, 92.0)
    derive_health(con)
    assert con.execute("SELECT * FROM health_part").fetchall() == []


def test_the_report_draws_the_score_where_it_falls_below_the_whole(tmp_path: Path) -> None:
    for name, is_drawn in (("numerics-dead-units", True), ("numerics-dead-units-healthy", False)):
        report = analyze(ROOT / "fixtures" / name / "artifacts", tmp_path / name).report
        drawn = [dict(one.points) for one in report.series if one.name == "health_score"]
        assert drawn == ([dict.fromkeys(range(0, 60, 10), 0.0)] if is_drawn else [])
