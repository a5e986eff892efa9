"""How rules are run: which variant, for which process, and what is said when none can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from forensics.case import create_case, open_for_rules
from forensics.citations import Citations
from forensics.discovery import discover
from forensics.engine import Judgement, judge
from forensics.finding import format_message
from forensics.ledger import ruled_out
from forensics.library import load_rule
from forensics.pipeline import analyze

FRONT = """/*
title = "t"
severity = "high"
proves = "p"
cannot_prove = "c"
message = "{who}{at_step}: {what}"
fix = "do {what}"
causes = [{ state = "rank-failed" }]
[thresholds.limit]
value = 2
unit = "rows"
why = "a test"
[variant.weak]
needs = ["log_event"]
strength = "indication"
[variant.sound]
needs = ["tensor", "node"]
strength = "proof"
*/
-- variant: weak
SELECT 0 AS artifact_id, p.id AS proc_id, 'weak' AS what FROM proc AS p ORDER BY p.id;
-- variant: sound
SELECT 0 AS artifact_id, p.id AS proc_id, 5 AS step, 'sound' AS what FROM proc AS p WHERE p.id >= $limit ORDER BY p.id;
"""


def run(
    tmp_path: Path,
    coverage: list[tuple[int | None, str, bool]],
    rule: str = FRONT,
    procs: int = 3,
    then: str = "SELECT 1",
) -> Judgement:
    path = tmp_path / "case.duckdb"
    con = create_case(path)
    columns = "(id, path, sha256, bytes, quality, clock)"
    con.execute(f"INSERT INTO artifact {columns} VALUES (0, 'a.log', '', 0, 'complete', 'none')")
    for number in range(procs):
        con.execute("INSERT INTO proc (id, attempt, rank, rank_origin) VALUES (?, 0, ?, 'content')", [number, number])
    for proc, capability, complete in coverage:
        con.execute("INSERT INTO coverage VALUES (0, ?, ?, 1, 9, ?, 1, 1)", [proc, capability, complete])
    con.execute(then)
    con.close()
    file = tmp_path / "rules" / "memory" / "thing.sql"
    file.parent.mkdir(parents=True)
    file.write_text(rule)
    opened = open_for_rules(path)
    try:
        return judge(opened, [load_rule(file)], [], Citations(opened, []))
    finally:
        opened.close()


def test_each_process_is_judged_by_the_strongest_variant_that_its_evidence_allows(tmp_path: Path) -> None:
    sound = [(2, "tensor", True), (2, "node", True)]
    judgement = run(tmp_path, [(0, "log_event", True), (2, "log_event", True), *sound])
    assert [(r.proc_id, r.variant, r.outcome) for r in judgement.runs] == [
        (0, "weak", "found"),
        (1, None, "not-run"),
        (2, "sound", "found"),
    ]
    assert [f.message for f in judgement.findings] == ["Rank 2 at step 5: sound", "Rank 0: weak"]
    assert judgement.runs[1].missing == "tensor"
    assert judgement.findings[0].fix == "do sound"


def test_a_stronger_variant_that_found_nothing_on_a_whole_record_settles_the_question(tmp_path: Path) -> None:
    coverage = [(0, "log_event", True), (0, "tensor", True), (0, "node", True)]
    (first, *_) = run(tmp_path, coverage, procs=1).runs
    assert (first.variant, first.outcome) == ("sound", "nothing-found")


def test_on_an_incomplete_record_the_weaker_variant_is_asked_too(tmp_path: Path) -> None:
    coverage = [(0, "log_event", True), (0, "tensor", False), (0, "node", True)]
    (first, *_) = run(tmp_path, coverage, procs=1).runs
    assert (first.variant, first.outcome) == ("weak", "found")


def test_a_record_that_ends_before_the_other_evidence_settles_nothing(tmp_path: Path) -> None:
    coverage = [(0, "log_event", True), (0, "tensor", True), (0, "node", True)]
    later = "UPDATE coverage SET to_ns = 10 WHERE capability = 'log_event'"
    (first, *_) = run(tmp_path, coverage, procs=1, then=later).runs
    assert (first.variant, first.outcome) == ("weak", "found")


def test_evidence_of_the_job_counts_for_every_process(tmp_path: Path) -> None:
    judgement = run(tmp_path, [(None, "log_event", True)])
    assert [r.outcome for r in judgement.runs] == ["found"] * 3


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT 1 AS artifact_id, nonsense ORDER BY 1", "nonsense"),
        ("SELECT 0 AS proc_id, 'x' AS other ORDER BY 1", "what"),
        ("SELECT 0 AS proc_id, 'x' AS what, 'fatal' AS severity ORDER BY 1", "severity"),
        ("SELECT content AS what, 0 AS proc_id FROM read_text('/etc/hostname') ORDER BY 1", "disabled"),
    ],
)
def test_a_rule_that_fails_is_recorded_with_its_reason(tmp_path: Path, sql: str, reason: str) -> None:
    rule = FRONT[: FRONT.index("-- variant: weak")] + f"-- variant: weak\n{sql};\n-- variant: sound\n{sql};\n"
    judgement = run(tmp_path, [(0, "log_event", True)], rule, procs=1)
    assert [r.outcome for r in judgement.runs] == ["failed"]
    assert reason in judgement.runs[0].reason
    assert judgement.findings == []


def test_a_fault_of_one_variant_is_not_hidden_behind_another(tmp_path: Path) -> None:
    rule = FRONT.replace("SELECT 0 AS artifact_id, p.id AS proc_id, 'weak' AS what", "SELECT nonsense AS what")
    coverage = [(0, "log_event", True), (0, "tensor", False), (0, "node", True)]
    judgement = run(tmp_path, coverage, rule, procs=1)
    assert sorted(r.outcome for r in judgement.runs) == ["failed", "nothing-found"]


def test_a_message_cannot_reach_into_objects(tmp_path: Path) -> None:
    rule = FRONT.replace("{who}{at_step}: {what}", "{what.__class__}")
    judgement = run(tmp_path, [(0, "log_event", True)], rule, procs=1)
    assert judgement.runs[0].outcome == "failed"


def test_citations_of_unknown_artifacts_are_left_out(tmp_path: Path) -> None:
    con: duckdb.DuckDBPyConnection = create_case(tmp_path / "c.duckdb")
    places: list[dict[str, Any]] = [{"artifact_id": 7, "row": 1}, {"artifact_id": None}, {}]
    assert [Citations(con, []).cite(place) for place in places] == [None, None, None]
    con.close()


@pytest.mark.parametrize(
    ("n", "said"),
    [(0, "0 steps were lost"), (1, "1 step was lost"), (2, "2 steps were lost"), (None, "unknown steps were lost")],
)
def test_a_message_counts_one_and_many_as_the_language_does(n: int | None, said: str) -> None:
    assert format_message("{n:# step was|# steps were} lost", {"n": n}) == said


OWN_WORDS = """'f {at_step}' AS fix, 'only {this}' AS proves, 'the rest' AS cannot_prove"""


def test_a_row_says_for_itself_what_it_proves_and_nothing_in_it_is_a_placeholder(tmp_path: Path) -> None:
    rule = FRONT.replace("'weak' AS what FROM", f"'weak' AS what, {OWN_WORDS} FROM")
    finding = run(tmp_path, [(0, "log_event", True)], rule).findings[0]
    assert (finding.fix, finding.proves, finding.cannot_prove) == ("f {at_step}", "only {this}", "the rest")
    assert not {"proves", "cannot_prove", "fix"} & finding.facts.keys()


AGAINST = """
-- against: weak
SELECT 0 AS artifact_id, 3 AS row, p.id AS proc_id, 'all is well' AS says FROM proc AS p ORDER BY p.id;
"""


def test_rows_against_a_fault_are_asked_only_where_nothing_was_found(tmp_path: Path) -> None:
    silent = FRONT.replace("'weak' AS what FROM proc AS p ORDER", "'weak' AS what FROM proc AS p WHERE FALSE ORDER")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    told = run(tmp_path / "a", [(0, "log_event", True)], silent + AGAINST).against["memory-thing"]
    assert [(one.proc_id, one.rank, one.says, one.evidence[0].row) for one in told] == [(0, 0, "all is well", 3)]
    found = run(tmp_path / "b", [(0, "log_event", True)], FRONT + AGAINST)
    assert found.findings and not found.against["memory-thing"]


def test_only_what_rows_speak_against_is_ruled_out(tmp_path: Path) -> None:
    silent = FRONT.replace("'weak' AS what FROM proc AS p ORDER", "'weak' AS what FROM proc AS p WHERE FALSE ORDER")
    silent = silent.replace('"indication"', '"strong"').replace("-- variant: sound", f"{AGAINST}-- variant: sound")
    judgement = run(tmp_path, [(0, "log_event", True)], silent)
    (one,) = ruled_out(judgement, [load_rule(tmp_path / "rules" / "memory" / "thing.sql")])
    assert one.reason == "all is well (1 of 3 processes left such evidence)."
    assert [place.label() for place in one.evidence] == ["a.log row 3"]
    judgement.against.clear()
    assert ruled_out(judgement, [load_rule(tmp_path / "rules" / "memory" / "thing.sql")]) == []


def test_an_error_is_cited_with_the_line_of_its_traceback_that_is_the_jobs_own(tmp_path: Path) -> None:
    log = tmp_path / "artifacts" / "rank_0.log"
    log.parent.mkdir()
    log.write_text(
        "Traceback (most recent call last):\n"
        '  File "/srv/job/train.py", line 7, in <module>\n'
        "    step(batch)\n"
        '  File "/usr/lib/python3.11/site-packages/torch/amp/grad_scaler.py", line 9, in unscale_\n'
        "    raise RuntimeError(\n"
        "RuntimeError: unscale_() has already been called on this optimizer since the last update().\n"
    )
    found = analyze(log.parent, tmp_path / "out").findings
    places = next(f.evidence for f in found if f.rule == "numerics-scaler-misuse")
    assert [(place.line, place.text.partition("\n")[0]) for place in places[1:2]] == [
        (2, 'File "/srv/job/train.py", line 7, in <module>')
    ]


def test_a_row_without_a_text_is_told_in_words_with_its_stack(tmp_path: Path) -> None:
    texts = "INSERT INTO string VALUES (1, 'keep'), (2, 'a.py');"
    stack = "INSERT INTO stack (id, function_id, file_id, line, depth, user_stack_id) VALUES (5, 1, 2, 9, 0, 5);"
    event = (
        "INSERT INTO memory_event (artifact_id, row, step, device, action, size_bytes, stack_id)"
        " VALUES (0, 4, 3, 0, 'alloc', 1048576, 5)"
    )
    rule = FRONT.replace("0 AS artifact_id, p.id", "0 AS artifact_id, 4 AS row, p.id")
    evidence = run(tmp_path, [(0, "log_event", True)], rule, then=texts + stack + event).findings[0].evidence[0]
    assert evidence.text == "1.0 MiB allocated, device 0, step 3\nkeep (a.py:9)"


def test_of_a_long_text_the_place_is_shown_where_the_name_of_the_finding_stands(tmp_path: Path) -> None:
    text = "repeat('x ', 300) || 'block.bias was ready twice' || repeat(' y', 300)"
    rule = FRONT.replace("0 AS artifact_id, p.id", f"0 AS artifact_id, {text} AS text, 'block.bias' AS module, p.id")
    shown = run(tmp_path, [(0, "log_event", True)], rule).findings[0].evidence[0].text
    assert shown.startswith("x x ") and "block.bias was ready twice" in shown and len(shown) < 450


def test_words_for_a_line_stay_one_line_since_lines_are_numbered(tmp_path: Path) -> None:
    record = tmp_path / "artifacts" / "tensor_stats_rank0.jsonl"
    record.parent.mkdir()
    tensor = '{"step":1,"phase":"gradient","role":"gradient","name":"w","shape":[2],"dtype":"float32","n":2,"n_nan":0,'
    record.write_text(
        '{"format":"forensics.tensor_stats/1","rank":0,"world_size":1}\n'
        f'{tensor}"n_inf":0,"norm":1.5,"absmax":1.0,"checksum":7,"version":1,"addr":64}}\n'
    )
    analyze(record.parent, tmp_path / "out")
    opened = open_for_rules(tmp_path / "out" / "case.duckdb")
    try:
        cited = Citations(opened, [item.source for item in discover(record.parent, tmp_path / "work")])
        place = cited.cite({"artifact_id": 0, "row": 0, "table": "tensor"})
    finally:
        opened.close()
    assert place is not None and place.line == 2
    assert place.text == "gradient w, float32, step 1, largest value 1, norm 1.5, checksum 7, version 1"
