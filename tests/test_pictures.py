"""The pictures that real jobs give: read from their cases, and true to them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import pytest
from test_cpu_places import TOPO

from forensics.case import create_case
from forensics.casebook import told_once
from forensics.finding import Finding
from forensics.investigation import Case
from forensics.library import load_rules
from forensics.pictures import read_pictures, thresholds
from forensics.pipeline import analyze
from forensics.report import pictures as p
from forensics.report.pictures import Picture

T = TypeVar("T")
FIXTURES = Path(__file__).parents[1] / "fixtures"


def pictures_of(name: str, folder: Path) -> tuple[Picture, ...]:
    analyze(FIXTURES / name / "artifacts", folder)
    with Case(folder) as case:
        return read_pictures(case._con)


def one(found: tuple[Picture, ...], kind: type[T]) -> T:
    return next(view for view in found if isinstance(view, kind))


@pytest.fixture(scope="module")
def fragmented(tmp_path_factory: pytest.TempPathFactory) -> tuple[Picture, ...]:
    return pictures_of("memory-fragmentation", tmp_path_factory.mktemp("fragmented"))


def test_memory_runs_to_what_the_snapshot_holds_and_marks_the_failed_request(fragmented: tuple[Picture, ...]) -> None:
    memory = one(fragmented, p.MemoryTimeline)
    assert memory.points[-1] == (417, 2_610_167_808, 3_579_838_464)
    assert [(f.event, f.requested_bytes) for f in memory.failures] == [(417, 244_137_984)]
    assert any("expandable_segments" in level.label and level.kind == "fits" for level in memory.levels)


def test_the_segment_map_holds_every_block_and_names_who_parts_free_memory(fragmented: tuple[Picture, ...]) -> None:
    segments = one(fragmented, p.SegmentMap)
    assert len(segments.segments) == 16 and segments.n_hidden == 0
    assert sum(len(s.blocks) for s in segments.segments) == 36
    assert all(sum(b.size_bytes for b in s.blocks) == s.total_bytes for s in segments.segments)
    assert segments.requested_bytes is not None and segments.longest_free_bytes < segments.requested_bytes
    assert "growing_prefill.py:42" in segments.pinned_by


def test_the_missing_rank_is_behind_the_others_in_the_wait_graph(tmp_path: Path) -> None:
    found = pictures_of("missing-rank", tmp_path)
    members = {m.rank: m for m in one(found, p.WaitGraph).groups[0].members}
    assert members[2].culprit == "absent" and members[2].waits_at is None
    assert {r: m.waits_at for r, m in members.items() if r != 2} == {0: 38, 1: 38, 3: 38}
    times = next(view for view in found if isinstance(view, p.GridView) and view.row_word == "rank")
    assert times.rows == ("rank 0", "rank 1", "rank 2", "rank 3")


def test_a_broken_capture_is_read_with_its_calls_by_thread_and_stream(tmp_path: Path) -> None:
    con = create_case(tmp_path / "case.duckdb")
    con.execute("INSERT INTO string VALUES (1, 'cudaStreamBeginCapture'), (2, 'cudaStreamSynchronize'), (3, 'gemm')")
    con.execute(
        "INSERT INTO artifact (id, path, sha256, bytes, quality, clock) VALUES (0, 't.json', '', 1, 'complete', '')"
    )
    for row, name, kind, thread, stream, ts, code in (
        (10, 1, "runtime", 1, None, 1_000, 0),
        (11, 3, "kernel", None, 7, 2_000, None),
        (12, 2, "runtime", 2, None, 3_000, 900),
        (13, 2, "runtime", 1, None, 90_000_000, 0),
    ):
        con.execute(
            "INSERT INTO slice (artifact_id, row, name_id, kind, thread, stream, ts_ns, dur_ns, return_code)"
            " VALUES (0, ?, ?, ?, ?, ?, ?, 100, ?)",
            [row, name, kind, thread, stream, ts, code],
        )
    con.execute(
        "INSERT INTO capture_window (artifact_id, row, ts_ns, thread, became_graph) VALUES (0, 10, 1000, 1, false)"
    )
    con.execute(
        "INSERT INTO capture_offence (artifact_id, row, ts_ns, told_by, offence, window_row, other_thread)"
        " VALUES (0, 12, 3000, 'result', 'a stream was waited for', 10, true)"
    )
    window = one(read_pictures(con), p.CaptureWindow)
    con.close()
    assert [(c.row, c.lane, c.start_ns, c.kind) for c in window.calls] == [
        (10, "thread 1", 0, "begin"),
        (11, "stream 7", 1_000, "work"),
        (12, "thread 2", 2_000, "offence"),
    ]
    assert window.length_ns is None and not window.became_graph


def test_the_board_holds_what_was_found_and_the_health_of_the_worst_rank(tmp_path: Path) -> None:
    con = create_case(tmp_path / "case.duckdb")
    for rank, value in ((0, 0.2), (1, 0.9), (1, 0.95)):
        con.execute(
            "INSERT INTO health_part VALUES (0, 1, ?, ?, ?, NULL, 'tensor', 'gradient-sparsity', ?, 0, 0.6, 0.85, '')",
            [rank, rank, int(100 * value), value],
        )
    rules = {rule.id: rule for rule in load_rules()}
    facts = {"free_bytes": 300, "requested_bytes": 100, "contiguity_ratio": 0.2}
    given = dict.fromkeys(("variant", "severity", "strength", "role", "message", "fix"), "")
    found = [
        Finding(id=i, rule="memory-fragmentation", title="Cached", causes=(), requires=(), rank=3, facts=facts, **given)
        for i in range(2)
    ]
    board = thresholds.read(con, found, rules)[0]
    con.close()
    assert [(g.subject, g.quantity, round(g.value, 3), g.how) for g in board.gauges] == [
        ("Cached", "free bytes / requested bytes", 3.0, "rank 3"),
        ("Cached", "longest free run / free bytes that the request could use", 0.2, "rank 3"),
        ("The job", "zero / all elements of the gradients", 0.925, "rank 1, median of 2 steps"),
    ]
    assert board.gauges[0].marks == (("threshold", 1.0),)
    assert board.gauges[2].marks == (("healthy", 0.6), ("bad", 0.85))


def test_tensors_on_the_same_way_are_kept_by_one_keeper(tmp_path: Path) -> None:
    keepers = one(pictures_of("memory-kept-predictions", tmp_path), p.ReferenceChains).keepers
    assert [(k.n_tensors, k.n_bytes, k.example) for k in keepers] == [(20, 20 << 24, "[8192,512] float32 cpu")]
    first, held, root = keepers[0].links
    assert (first, held) == ("list of 26", "attribute scores of __main__.Evaluator")
    assert root.startswith("variable evaluator of main (/srv/job/kept_predictions.py:")


def test_the_paths_between_gpus_are_read_from_the_printed_table(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    artifacts.mkdir()
    (artifacts / "topo.txt").write_text(TOPO)
    analyze(artifacts, tmp_path / "out")
    with Case(tmp_path / "out") as case:
        found = one(read_pictures(case._con), p.DeviceTopology)
    assert found.devices == ("GPU0", "GPU1", "GPU2")
    assert found.paths == (("", "NV18", "SYS"), ("NV18", "", "PHB"), ("SYS", "PHB", ""))
    assert found.near == ("0-31,64-95", "0-31,64-95", "32-63,96-127")


def test_what_the_slow_rank_spends_its_time_on_stands_before_the_whole_steps(tmp_path: Path) -> None:
    con = create_case(tmp_path / "case.duckdb")
    con.execute("INSERT INTO string VALUES (1, 'step_seconds'), (2, 'data_seconds'), (3, 'gc_seconds')")
    for rank in range(3):
        for step in range(4):
            slow = rank == 1
            for name, value in ((1, 0.4), (2, 0.3 if slow else 0.01), (3, 0.03 if slow else 0.0)):
                con.execute(
                    "INSERT INTO sample (artifact_id, row, proc_id, rank, step, source, name_id, unit, value)"
                    " VALUES (0, ?, ?, ?, ?, 'metrics', ?, 's', ?)",
                    [10 * step + name, rank, rank, step, name, value],
                )
    first, second = (view for view in read_pictures(con) if isinstance(view, p.GridView))
    assert (first.name, second.name) == ("Time on input", "Step time")
    assert first.cells[1] == (0.3,) * 4
    con.execute("DELETE FROM sample WHERE name_id = 2")
    alone = [view.name for view in read_pictures(con) if isinstance(view, p.GridView)]
    con.close()
    assert alone == ["Step time"], "0.03 s are less than a tenth of a step"


def test_a_cause_stands_in_its_step_and_a_model_on_one_device_has_no_map(tmp_path: Path) -> None:
    result = analyze(FIXTURES / "step-217" / "artifacts", tmp_path)
    steps = one(result.report.pictures, p.LastSteps)
    told = {(row.step, row.rank): row.events for row in steps.rows if row.events}
    assert told[217, "rank 1"][0].startswith("Cause: ") and "aten::log" in told[217, "rank 1"][0]
    assert not any(isinstance(view, p.DeviceMap) for view in result.report.pictures)
    labels = [(moment.rank, moment.label.partition(" (in ")[0]) for moment in result.report.timeline]
    assert len(labels) == len(set(labels)), "what the launcher repeats is told once"
    assert any(label.label.endswith("(in 2 places)") for label in result.report.timeline)


def test_an_error_is_told_once_where_files_repeat_it_within_a_second() -> None:
    second, words = 10**9, "RuntimeError: " + "x" * 120
    rows = [(0, 0, "a", words + "tail", 1), (0, 0, "b", words, 2), (0, 1, "a", words, 3), (second, 0, "a", words, 4)]
    groups = told_once([*rows, (2 * second, 0, "a", words, 5), (2 * second, 0, "a", "other", 6)])
    assert [[row[-1] for row in group] for group in groups] == [[1, 2, 4], [3], [5], [6]]
