"""What is told of many jobs: incidents, machines, drift, pages, metrics, the webhook and the gate."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from fleet_rows import make_row, many_rows, write_fleet

from forensics.errors import CaseError, ForensicsError
from forensics.fleet.drift import compare, independent, ks_p, ks_statistic, write_drift
from forensics.fleet.extract import _errors
from forensics.fleet.gate import Demand, judge
from forensics.fleet.incidents import incident_of, incident_of_error
from forensics.fleet.layout import Fleet
from forensics.fleet.pages import PAGE_JOBS, write_pages
from forensics.fleet.publish import payload, send, write_metrics
from forensics.fleet.rows import write_row
from forensics.fleet.warehouse import ask, open_fleet, pack, rows_of


def asked(fleet: Fleet, sql: str) -> list[dict[str, Any]]:
    with closing(open_fleet(fleet)) as con:
        return rows_of(con, sql)


def test_the_same_fault_is_one_incident_whatever_rank_step_size_path_or_host_it_met() -> None:
    here = "Rank 1 asked for 2.50 GiB with 3 GiB free on node-7; in save (/home/a/train.py:31) at 0x7f00deadbeef"
    there = "Rank 12 asked for 16.00 MiB with 1 GiB free on node-12; in save (/mnt/b/train.py:77) at 0x7f11deadbee0"
    assert incident_of("r", here, {}) == incident_of("r", there, {})
    assert incident_of("r", here, {}) != incident_of("other", here, {})
    assert incident_of("r", here, {"op": "aten::log"}) == incident_of("r", "quite other words", {"op": "aten::log"})
    assert incident_of("r", here, {"op": "aten::log"}) != incident_of("r", here, {"op": "aten::div"})
    assert incident_of_error("E", "bad id 17") == incident_of_error("E", "bad id 9981")
    assert incident_of_error("E", "bad id 17") != incident_of_error("E", "bad name 17")


@pytest.mark.parametrize(
    "line",
    [
        "ERROR {}", "[rank3] {}", "[Rank 12] ERROR: {}", "12: ERROR {}", "3: {}", "[worker 3/8 | gpu 2] {}",
        "rank 4: {}", "[ERROR] {}", "[local_rank=3] Error - {}", "[default5]: {}", "[1,3] {}",
    ],
)  # fmt: skip
def test_an_unknown_error_is_one_incident_whoever_says_it_and_how(line: str) -> None:
    said = "flange assembly failed: bad bolt on part 17"
    assert incident_of_error("", line.format(said)) == incident_of_error("", said)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("gone at 2026-11-02T10:00:00.5Z", "gone at 2026-12-12 11:00:00"),
        ("gone on Nov 30 10:00:00", "gone on Wed Dec  2 11:00:00"),
        ("run 3f2504e0-4f89-11d3-9a0c-0305e82c3301 lost", "run 9b2504e0-af89-41d3-8a0c-9995e82c3301 lost"),
        ("commit a1b2c3d is bad", "commit 9f8e7d6 is bad"),
        ("no file tmpab1_cdx", "no file tmpzz9_lkj"),
    ],
)
def test_times_and_random_names_make_no_other_incident(here: str, there: str) -> None:
    assert incident_of_error("", here) == incident_of_error("", there)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("[Errno 28] write", "write"), ("[enforce fail at a.cpp:114] x", "x"), ("libx.so.12: not found", "not found"),
        ("Error loading", "Error saving"), ("errors were met", "were met"), ("decade", "facade"),
    ],
)  # fmt: skip
def test_what_tells_more_than_who_and_when_makes_another_incident(here: str, there: str) -> None:
    assert incident_of_error("", here) != incident_of_error("", there)
    assert incident_of_error("", "[" * 100_000 + "rank 1: " * 50_000)  # at once


def test_unknown_errors_are_those_that_say_something_and_are_not_handled() -> None:
    import duckdb

    class Case:
        con = duckdb.connect()

        def query(self, sql: str) -> duckdb.DuckDBPyRelation:
            return self.con.sql(sql)

    case = Case()
    case.con.execute("""
        CREATE TABLE frame (id BIGINT, user_stack_id BIGINT, function TEXT, file TEXT);
        INSERT INTO frame VALUES (1, NULL, 'step', '/srv/job/train.py');
        CREATE TABLE log (exception TEXT, message TEXT, class TEXT, fields JSON, stack_id BIGINT, ts_ns BIGINT,
            artifact_id INTEGER, line INTEGER);
        INSERT INTO log VALUES
            ('FluxError', 'bent by 3', 'exception.unknown', NULL, 1, 2, 0, 2),
            (NULL, NULL, 'exception.unknown', '{}', 1, 1, 0, 1),
            ('FluxError', 'bent by 4', 'exception.unknown', '{"handled": "false"}', 1, 3, 0, 3),
            ('FluxError', 'of no account', 'exception.unknown', '{"handled": "true"}', 1, 3, 0, 4),
            (NULL, '[rank 2] ERROR odd', 'line.error', NULL, NULL, NULL, 0, 5),
            (NULL, 'fine', NULL, NULL, NULL, NULL, 0, 6)
    """)
    told = [(e["exception"], e["message"], e["where_in_code"], e["n"]) for e in _errors(cast(Any, case))]
    assert told == [("FluxError", "bent by 3", "step (train.py)", 2), ("", "[rank 2] ERROR odd", "", 1)]


def test_incidents_are_new_known_regressed_or_resolved_by_the_batches_that_met_them(tmp_path: Path) -> None:
    # Batches without new jobs do not count: the numbers 3 and 5 are missing.
    seen = {"new": [8], "known": [7, 8], "regressed": [1, 8], "resolved": [1, 2], "lately": [6], "back soon": [4, 8]}
    rows = [
        make_row(f"{name}-{run}", "numerics-nan-provenance", run, op=name)
        for name, runs in seen.items()
        for run in runs
    ]
    told = asked(write_fleet(tmp_path, rows), "SELECT * FROM incident")
    states = {incident_of("numerics-nan-provenance", "", {"op": name}): name for name in seen}
    assert {states[r["incident"]]: r["state"] for r in told} == {
        "new": "new", "known": "known", "regressed": "regressed", "resolved": "resolved", "lately": "known",
        "back soon": "known",
    }  # fmt: skip
    assert {states[r["incident"]]: r["gpu_hours_lost"] for r in told}["known"] == 16.0


def test_a_jobs_newest_row_counts_and_packing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    fleet.create()
    for number in range(70):
        write_row(fleet.row(f"job{number}"), make_row(f"job{number}", "host-disk"))
    pack(fleet)
    assert len(list(fleet.rows.iterdir())) == 0 and len(list(fleet.packed.iterdir())) == 1
    write_row(fleet.row("job3"), {**make_row("job3", None), "analyzed_ns": 2 * 10**18})
    (fleet.rows / "again.parquet").write_bytes(next(fleet.packed.iterdir()).read_bytes())  # a kill before the removal
    assert asked(fleet, "SELECT count(*) AS n, count(rule) AS known FROM job") == [{"n": 70, "known": 69}]


def test_a_host_is_blamed_for_faults_of_the_machine_and_one_fault_among_few_jobs_weighs_little(tmp_path: Path) -> None:
    rows = [make_row(f"a{n}", "hardware-xid", host="bad", device=2) for n in range(8)]
    rows += [make_row("b0", "hardware-xid", host="once"), make_row("c0", "hardware-illegal-access", host="software")]
    rows += [make_row(f"d{n}", "memory-capacity", host="software") for n in range(5)]
    fleet = write_fleet(tmp_path, rows)
    hosts = {r["host"]: r for r in asked(fleet, "SELECT * FROM host")}
    assert {name: (h["n_roots"], h["n_faults"]) for name, h in hosts.items()} == {
        "bad": (8, 8), "once": (1, 1), "software": (6, 0),
    }  # fmt: skip
    assert hosts["bad"]["score"] > 0.6 > 0.3 > hosts["once"]["score"] > 0.1 and hosts["software"]["score"] == 0
    assert [(g["host"], g["device"]) for g in asked(fleet, "SELECT * FROM gpu WHERE n_faults > 1")] == [("bad", 2)]


def test_what_reviewers_decided_is_counted_and_the_last_word_on_a_finding_holds(tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path, [make_row("a", "hardware-xid", host="h"), make_row("b", "hardware-xid", host="h")])
    for name, decisions in (("a", ["confirmed", "dismissed"]), ("b", ["confirmed"])):
        folder = fleet.jobs / f"{name}-0123456789ab"
        folder.mkdir()
        lines = [json.dumps({"fingerprint": f"f-{name}", "state": d, "note": "n"}) for d in decisions]
        (folder / "reviews.jsonl").write_text("\n".join([*lines, "{torn", "3", ""]))
    assert asked(fleet, "SELECT n_confirmed, n_dismissed FROM incident") == [{"n_confirmed": 1, "n_dismissed": 1}]
    assert asked(fleet, "SELECT n_faults FROM host") == [{"n_faults": 1}]


@pytest.mark.installed
def test_every_column_that_can_be_asked_is_explained(tmp_path: Path) -> None:
    lacking = asked(
        write_fleet(tmp_path, [make_row("a", None)]),
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND comment IS NULL"
        " AND table_name NOT IN ('stored', 'latest')",
    )
    assert lacking == []


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO 'rows/x.csv'",
        "CREATE TABLE x AS SELECT 1",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT 1; SELECT 2",
        "SET enable_external_access = true",
        "nonsense",
        "",
    ],
)
def test_a_question_can_only_read_the_fleet(sql: str, tmp_path: Path) -> None:
    import duckdb

    with closing(open_fleet(write_fleet(tmp_path, []))) as con, pytest.raises((CaseError, duckdb.Error)):
        ask(con, sql).fetchall()


def test_ks_agrees_with_printed_critical_values_and_is_right_by_hand() -> None:
    # Critical values of the limiting distribution, as tables after Smirnov 1948 print them.
    big = 1e8
    for x, p in ((1.2238, 0.10), (1.3581, 0.05), (1.6276, 0.01)):
        assert ks_p(x / (big / 2) ** 0.5, big, big) == pytest.approx(p, abs=2e-5)
    assert ks_statistic([1, 2, 3, 4], [3, 4, 5, 6]) == 0.5
    assert ks_statistic([1, 2], [1, 2]) == 0 and ks_p(0.0, 50, 50) == 1.0
    assert independent([1.0, -1.0] * 50) == 100 and independent([float(n) for n in range(100)]) < 5


def run_of(job: str, samples: list[float]) -> dict[str, Any]:
    return {
        "series": "s", "name": "loss", "job": job, "run": 1, "ended_ns": 0, "steps": list(range(len(samples))),
        "samples": samples,
    }  # fmt: skip


def test_data_that_shifted_drifts_and_neither_another_seed_nor_a_shorter_run_does() -> None:
    import random

    dice = random.Random(5)

    def noise(n: int, shift: float = 0.0) -> list[float]:
        return [dice.gauss(2 + shift, 0.3) for _ in range(n)]

    def falling(n: int) -> list[float]:
        return [5 * 0.99**step + dice.gauss(0, 0.05) for step in range(n)]

    def told(a: list[float], b: list[float]) -> bool:
        found = compare(run_of("b", a), run_of("a", b))
        assert found is not None
        return bool(found["drifted"])

    assert told(noise(200, 0.5), noise(200))
    assert not any(told(noise(200), noise(200)) for _ in range(50))
    assert not told(falling(80), falling(250))
    assert compare(run_of("b", noise(5)), run_of("a", noise(200))) is None


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.n_rows = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.n_rows += tag == "tr"
        self.hrefs += [value or "" for name, value in attrs if tag == "a" and name == "href"]


def read_page(path: Path) -> _Links:
    links = _Links()
    links.feed(path.read_text())
    return links


@pytest.mark.installed
def test_pages_link_every_job_once_and_no_page_grows_with_the_fleet(tmp_path: Path) -> None:
    rows = many_rows(PAGE_JOBS + 20)
    fleet = write_fleet(tmp_path, rows)
    with closing(open_fleet(fleet)) as con:
        counts = {"run": 4, "n_found": 600, "n_analyzed": 520, "n_not_analyzed": 0, "n_completed": 80, "n_running": 0}
        write_pages(fleet, con, (), counts)
    pages = [read_page(fleet.pages / f"jobs-{n}.html") for n in (1, 2)]
    reports = [href for page in pages for href in page.hrefs if href.endswith("report.html")]
    assert sorted(reports) == sorted(f"../{row['report']}" for row in rows if row["report"])
    assert pages[0].n_rows == PAGE_JOBS + 1
    names = read_page(fleet.pages / "names-1.html")
    assert sorted(h for h in names.hrefs if h.endswith("report.html")) == sorted(reports)
    index = (fleet.folder / "index.html").read_text()
    assert "80 jobs ended well by exit state and were not looked at" in index and "still running" not in index
    assert (fleet.folder / "index.html").stat().st_size < 200_000
    local = [h for h in read_page(fleet.folder / "index.html").hrefs if not h.startswith(("#", "jobs/"))]
    assert local and all((fleet.folder / href).is_file() for href in local)


def test_names_and_messages_of_jobs_cannot_leave_their_cell(tmp_path: Path) -> None:
    evil = "</td></script><script>alert(1)</script>"
    rows = [make_row("evil", None, message=evil), make_row("e2", "host-disk", message=evil, host=evil) | {"name": evil}]
    fleet = write_fleet(tmp_path, rows)
    with closing(open_fleet(fleet)) as con:
        write_pages(fleet, con)
        write_metrics(fleet, con, 'e"\n', 1.0, {})
    for page in [fleet.folder / "index.html", *fleet.pages.glob("*.html")]:
        assert "<script>alert" not in page.read_text() and page.read_text().count("<script>") == 1
    for line in (fleet.folder / "metrics.prom").read_text().splitlines():
        assert re.fullmatch(r'#.*|[a-z_]+\{([a-z_]+="([^"\\\n]|\\.)*",?)+\} [-+.e0-9]+', line), line


def test_the_metrics_are_what_a_parser_of_prometheus_reads(tmp_path: Path) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    evil = 'a\\b "c"\nd'
    fleet = write_fleet(tmp_path, [make_row("x", "host-disk", host=evil, code_version=evil), *many_rows(40)])
    with closing(open_fleet(fleet)) as con:
        write_metrics(fleet, con, "ed", 1.5, {"run": 3, "n_found": 50, "n_completed": 9})
    text = (fleet.folder / "metrics.prom").read_text()
    families = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert all(f.type == "gauge" and f.documentation for f in families.values())
    jobs = {s.labels["verdict"]: s.value for s in families["forensics_fleet_jobs"].samples}
    assert sum(jobs.values()) == 41
    assert evil in {s.labels["code_version"] for s in families["forensics_fleet_root_causes"].samples}
    assert {s.labels["what"]: s.value for s in families["forensics_batch_jobs"].samples} == {
        "found": 50,
        "completed": 9,
    }
    assert all(s.labels["version"] for family in families.values() for s in family.samples)
    told = [(s.name, tuple(sorted(s.labels.items()))) for family in families.values() for s in family.samples]
    assert len(told) == len(set(told))  # the collector refuses a file with a series twice


def test_the_gate_names_what_failed_and_counts_only_the_last_batch(tmp_path: Path) -> None:
    rows = [make_row("old", "host-disk", 1, op="x"), make_row("again", "host-disk", 2, op="x")]
    quality = [
        {"format": "log", "quality": "complete", "n": 9, "bytes": 1},
        {"format": "log", "quality": "partial", "n": 1},
    ]
    rows[1] |= {
        "artifacts": quality,
        "metrics": [{"name": "loss", "n": 3, "n_nonfinite": 1, "steps": [], "samples": []}],
    }
    with closing(open_fleet(write_fleet(tmp_path, rows))) as con:
        strict = {c.name: c.passed for c in judge(con, Demand(critical=["aga*"], slo=["loss", "ttft_ms"]))}
        lax = judge(con, Demand(least_coverage=0.9))
        nothing = {c.name: c.passed for c in judge(con, Demand(critical=["no such job"]))}
    assert strict == {
        "every job was analyzed": True, "no new root cause": True, "evidence coverage": False,
        "trace sampling on critical paths": True, "SLO figure loss present": True, "SLO figure ttft_ms present": False,
    }  # fmt: skip
    assert all(c.passed for c in lax) and not nothing["trace sampling on critical paths"]
    with closing(open_fleet(write_fleet(tmp_path / "new", [*rows, make_row("n", "host-oom", 2)]))) as con:
        (failed,) = [c for c in judge(con, Demand(least_coverage=0)) if not c.passed]
    assert failed.name == "no new root cause" and "host-oom" in failed.said


def test_an_empty_fleet_passes_no_gate(tmp_path: Path) -> None:
    with closing(open_fleet(write_fleet(tmp_path, []))) as con:
        assert not any(c.passed for c in judge(con, Demand()) if c.name != "no new root cause")
        write_pages(Fleet(tmp_path), con)


def test_a_folder_that_is_no_fleet_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="no fleet"):
        open_fleet(Fleet(tmp_path))


@pytest.fixture
def hook() -> Iterator[tuple[str, list[bytes]]]:
    told: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x", told
        server.shutdown()
        thread.join()


def test_the_webhook_is_told_of_new_incidents_with_links_to_report_and_runbook(
    hook: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    url, told = hook
    with closing(open_fleet(write_fleet(tmp_path, [make_row("a", "host-disk")]))) as con:
        assert send(url, payload(con, "https://x.example/fleet", {"run": 1})) == ""
    (incident,) = json.loads(told[0])["incidents"]
    assert incident["runbook"] == "https://x.example/fleet/rules/host-disk.html"
    assert incident["report"] == "https://x.example/fleet/jobs/a-0123456789ab/report.html"
    assert "refused" in send("http://127.0.0.1:9/x", {})


def test_drift_is_kept_in_the_fleet_and_can_be_asked_for(tmp_path: Path) -> None:
    rows = []
    for number, shift in enumerate((0.0, 10.0)):
        samples = [shift + (n * 7919 % 101) / 101 for n in range(100)]
        metric = {"name": "loss", "n": 100, "n_nonfinite": 0, "steps": list(range(100)), "samples": samples}
        rows.append(make_row(f"same-{number}", None, number + 1, metrics=[metric]))
    fleet = write_fleet(tmp_path, rows)
    with closing(open_fleet(fleet)) as con:
        write_drift(fleet, con)
    (found,) = asked(fleet, "SELECT * FROM drift")
    assert found["drifted"] and found["statistic"] == 1.0 and found["job"].startswith("same-1")
