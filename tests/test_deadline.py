"""Time limits: what is running when time runs out is stopped, and what is missing because of it is said."""

from __future__ import annotations

import json
import time
from pathlib import Path

import duckdb
import pytest
from support import ROOT
from test_pipeline import RULE
from trouble import TROUBLE, dropped_in

from forensics import pipeline
from forensics.assembly import assemble_case
from forensics.case import connect
from forensics.deadline import Deadline
from forensics.discovery import discover
from forensics.ingest import ingest
from forensics.pipeline import Settings, analyze
from forensics.report.terminal import render_terminal

STEP_217 = ROOT / "fixtures" / "step-217" / "artifacts"
ENDLESS = "SELECT count(*) FROM range(100000000) AS a, range(100000000) AS b"


def test_every_statement_after_the_deadline_is_interrupted() -> None:
    con, deadline = connect(), Deadline(0.2)
    with deadline.interrupting(con):
        for _ in range(2):
            with pytest.raises(duckdb.InterruptException):
                con.execute(ENDLESS)
    assert con.execute("SELECT 1").fetchone() == (1,)


def test_no_deadline_interrupts_nothing() -> None:
    con = connect()
    with Deadline().interrupting(con):
        assert con.execute("SELECT 1").fetchone() == (1,)
    assert Deadline().left() is None and not Deadline().expired()


def test_a_share_counts_from_the_same_start() -> None:
    whole = Deadline(100)
    left = whole.share(0.5).left()
    assert left is not None and 40 < left <= 50
    assert Deadline(0).share(0.5).expired()
    assert (whole.within(1).left() or 9) <= 1


def test_a_rule_that_runs_when_time_is_over_is_stopped_and_the_terminal_says_so(tmp_path: Path) -> None:
    rules = tmp_path / "rules" / "aaa"
    rules.mkdir(parents=True)
    endless = f"class = 'test.dropped' OR ({ENDLESS}) > 0"
    (rules / "endless.sql").write_text(RULE.replace("class = 'test.dropped'", endless))
    analyze(STEP_217, tmp_path / "out")  # so that loading takes no part of the time
    began = time.monotonic()
    settings = Settings(rules=[tmp_path / "rules"], max_seconds=20)
    result = analyze(STEP_217, tmp_path / "out", settings=settings)
    assert time.monotonic() - began < 55  # the bound on a single rule is a minute
    with connect(tmp_path / "out" / "case.duckdb", read_only=True) as con:
        runs = con.execute("SELECT outcome, reason FROM rule_run WHERE rule = 'aaa-endless'").fetchall()
    assert set(runs) == {("out-of-time", "the time limit was reached")}
    assert "time limit" in render_terminal(result.report) and "rules were not asked" in result.report.time_limit
    unasked = {n.rule for n in result.verdict.not_checked if n.missing == "time-limit"}
    assert "aaa-endless" in unasked and result.verdict.status == "not-established"


def test_what_time_kept_out_of_the_case_is_named_and_nothing_is_judged_on_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_ASSEMBLY_SHARE", 0.0)
    result = analyze(STEP_217, tmp_path / "out", settings=Settings(max_seconds=600))
    assert "log_event" in result.report.time_limit and "did not reach the case" in result.report.time_limit
    assert result.verdict.status == "not-established" and not result.findings and not result.verdict.ruled_out
    said = json.loads((tmp_path / "out" / "report.json").read_bytes())["warnings"]
    assert any("time limit of 600 s" in warning["message"] for warning in said)


def test_an_interrupted_step_leaves_the_others_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(con: duckdb.DuckDBPyConnection) -> None:
        con.execute("SET threads = 1")  # the other core is another test's
        con.execute(ENDLESS)

    monkeypatch.setattr("forensics.assembly.DERIVATIONS", (endless,))
    loaded = ingest(discover(STEP_217, tmp_path / "work"), tmp_path / "cache")
    began = time.monotonic()
    assert assemble_case(loaded, tmp_path / "case.duckdb", deadline=Deadline(15)) == ["endless"]
    assert time.monotonic() - began < 60
    with connect(tmp_path / "case.duckdb", read_only=True) as con:
        assert con.execute("SELECT count(*) > 0 FROM log_event").fetchone() == (True,)


def test_a_load_that_runs_when_time_is_over_is_stopped_and_its_rows_reach_the_case(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "a").write_text("TROUBLE loop\n")
    with dropped_in(tmp_path / "formats", "trouble", TROUBLE):
        result = analyze(tmp_path / "job", tmp_path / "out", settings=Settings(max_seconds=15))
    assert "1 only in part" in result.report.time_limit
    with connect(tmp_path / "out" / "case.duckdb", read_only=True) as con:
        assert con.execute("SELECT message FROM log").fetchall() == [("before",)]
        covered = con.execute("SELECT capability, complete FROM coverage").fetchall()
    assert covered == [("log_event", False)]
