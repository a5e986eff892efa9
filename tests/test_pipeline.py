"""The whole analysis as users run it, on folders as jobs leave them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support import ARTIFACTS, ROOT, needs_artifacts
from trouble import dropped_in

from forensics.errors import ForensicsError
from forensics.pipeline import Settings, analyze

STEP_217 = ROOT / "fixtures" / "step-217" / "artifacts"
HEALTHY = ROOT / "fixtures" / "step-217-healthy" / "artifacts"


@pytest.fixture(scope="module")
def step_217(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("step-217")
    analyze(STEP_217, out)
    return {"out": out, **json.loads((out / "report.json").read_bytes())}


@pytest.mark.installed
def test_the_root_cause_of_step_217_is_the_birth_on_rank_1_and_the_timeout_its_consequence(
    step_217: dict[str, object],
) -> None:
    verdict = step_217["verdict"]
    assert isinstance(verdict, dict)
    assert verdict["status"] == "root-cause"
    (root,) = verdict["root_causes"]
    assert (root["rule"], root["rank"], root["step"]) == ("numerics-nan-provenance", 1, 217)
    assert root["facts"]["op"] == "aten::log"
    consequences = {c["rule"] for c in verdict["consequences"]}
    assert "distributed-timeout" in consequences
    timeouts = [c for c in verdict["consequences"] if c["rule"] == "distributed-timeout"]
    assert [t["rank"] for t in timeouts] == [0]


@pytest.mark.installed
def test_every_root_cause_and_consequence_leads_to_a_place_in_an_artifact(step_217: dict[str, object]) -> None:
    verdict = step_217["verdict"]
    assert isinstance(verdict, dict)
    for claim in (*verdict["root_causes"], *verdict["consequences"]):
        assert claim["evidence"], claim["rule"]
        for place in claim["evidence"]:
            assert (STEP_217 / place["artifact"]).is_file()
            assert {"line", "byte", "row"} & place.keys()
            if "line" in place and place.get("text"):
                line = (STEP_217 / place["artifact"]).read_text(errors="replace").split("\n")[place["line"] - 1]
                # Records of JSON are read as words.
                names = [v for v in json.loads(line).values() if isinstance(v, str)] if line.startswith("{") else []
                assert place["text"][:20] in line or any(name in place["text"] for name in names)


def test_every_artifact_of_step_217_is_loaded_whole(step_217: dict[str, object]) -> None:
    artifacts = step_217["artifacts"]
    assert isinstance(artifacts, list)
    assert [a["path"] for a in artifacts if a["quality"] not in {"complete", "empty"}] == []


def test_the_healthy_twin_is_healthy_with_no_finding_that_matters(tmp_path: Path) -> None:
    result = analyze(HEALTHY, tmp_path)
    assert result.verdict.status == "healthy"
    assert [f.rule for f in result.findings if f.severity in {"critical", "high"}] == []


def test_an_empty_folder_is_not_established(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    result = analyze(tmp_path / "job", tmp_path / "out")
    assert result.verdict.status == "not-established"
    assert json.loads((tmp_path / "out" / "report.json").read_bytes())["verdict"]["not_checked"]


def test_a_second_run_over_unchanged_artifacts_parses_nothing_and_writes_the_same_report(tmp_path: Path) -> None:
    first = analyze(STEP_217, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in ("report.json", "report.html")}
    second = analyze(STEP_217, tmp_path)
    assert first.n_parsed > 0 and second.n_parsed == 0
    assert {name: (tmp_path / name).read_bytes() for name in before} == before


def test_a_changed_artifact_is_parsed_again_and_only_that(tmp_path: Path) -> None:
    shutil.copytree(STEP_217, tmp_path / "job")
    analyze(tmp_path / "job", tmp_path / "out")
    with (tmp_path / "job" / "torchrun.log").open("a") as log:
        log.write("one more line\n")
    assert analyze(tmp_path / "job", tmp_path / "out").n_parsed == 1


@pytest.mark.installed
def test_an_archive_gives_the_same_verdict_as_its_folder(tmp_path: Path) -> None:
    archive = shutil.make_archive(str(tmp_path / "job"), "gztar", STEP_217)
    verdict = analyze(archive, tmp_path / "out").verdict
    assert [(f.rule, f.rank, f.step) for f in verdict.root_causes] == [("numerics-nan-provenance", 1, 217)]


def test_a_single_file_can_be_analyzed(tmp_path: Path) -> None:
    log = next(STEP_217.glob("logs/*/attempt_0/1/stderr.log"))
    verdict = analyze(log, tmp_path).verdict
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]


FORMAT = '''
"""A format that a test drops in."""
import pyarrow as pa
VERSION = 1
TITLE = "lines of a test"
PROVIDES = ("log_event",)
def recognise(head):
    return 100 if head.data.startswith(b"DROPPED-IN") else 0
def load(source, sink):
    row = {"row": [0], "line": [1], "source": ["test"], "role": ["primary"], "class": ["test.dropped"]}
    sink.emit("log_event", pa.table({**row, "message": ["it was here"]}))
    sink.cover("log_event", n_read=1, n_kept=1)
'''
RULE = """/*
title = "A dropped-in rule found a dropped-in line"
severity = "critical"
proves = "p"
cannot_prove = "c"
message = "{who}: {what}"
fix = "f"
causes = [{ state = "rank-failed" }]
[variant.log]
needs = ["log_event"]
strength = "proof"
*/
-- variant: log
SELECT artifact_id, row, proc_id, rank, message AS what FROM log WHERE class = 'test.dropped' ORDER BY artifact_id, row;
"""


@pytest.mark.installed
def test_a_new_format_is_one_file_and_a_new_rule_is_two(tmp_path: Path) -> None:
    rules = tmp_path / "rules" / "test"
    rules.mkdir(parents=True)
    (rules / "dropped.sql").write_text(RULE)
    (rules / "dropped.cases.toml").write_text(
        '[[case]]\nname = "fires"\nfinds = 1\n[case.files]\n"a.txt" = "DROPPED-IN"\n'
    )
    job = tmp_path / "job"
    job.mkdir()
    (job / "a.txt").write_text("DROPPED-IN\n")
    with dropped_in(tmp_path / "formats", "dropped", FORMAT):
        result = analyze(job, tmp_path / "out", settings=Settings(rules=[tmp_path / "rules"]))
        from forensics.rule_cases import run_cases

        assert [r.problem for r in run_cases([tmp_path / "rules"], ["test-dropped"])] == [""]
    assert [f.rule for f in result.verdict.root_causes] == ["test-dropped"]
    assert result.verdict.root_causes[0].message == "The process: it was here"


def test_one_failing_rule_stops_neither_the_others_nor_the_verdict(tmp_path: Path) -> None:
    rules = tmp_path / "rules" / "test"
    rules.mkdir(parents=True)
    (rules / "broken.sql").write_text(RULE.replace("class = 'test.dropped'", "1 / (SELECT 'x') > 0"))
    (rules / "greedy.sql").write_text(RULE.replace("FROM log", "FROM read_text('/etc/hostname') AS log, log AS x"))
    result = analyze(STEP_217, tmp_path / "out", settings=Settings(rules=[tmp_path / "rules"]))
    assert [f.rule for f in result.verdict.root_causes] == ["numerics-nan-provenance"]
    faults = {n.rule: n.meaning for n in result.verdict.not_checked if n.missing == "rule-fault"}
    assert set(faults) == {"test-broken", "test-greedy"}


BROKEN = '''
"""Claims every trace and fails."""
VERSION = 1
TITLE = "broken format of a test"
PROVIDES = ()
def recognise(head):
    return 100 if b"traceEvents" in head.data else 0
def load(source, sink):
    raise RuntimeError("fault")
'''


def test_a_format_that_fails_costs_its_artifact_only(tmp_path: Path) -> None:
    with dropped_in(tmp_path / "formats", "broken", BROKEN):
        result = analyze(STEP_217, tmp_path / "out")
    assert [f.rule for f in result.verdict.root_causes] == ["numerics-nan-provenance"]
    failed = [a.path for a in result.report.artifacts if a.quality == "failed"]
    assert failed == ["trace_rank0.json.gz", "trace_rank1.json.gz"]


def test_the_time_limit_is_kept_and_what_it_cut_is_said(tmp_path: Path) -> None:
    result = analyze(STEP_217, tmp_path, settings=Settings(max_seconds=0))
    assert result.verdict.status == "not-established"
    assert all("time limit" in w.message for w in result.report.warnings)
    assert result.report.warnings


@pytest.mark.installed
def test_nothing_on_the_way_imports_torch() -> None:
    import subprocess

    code = (
        "import sys, tempfile; from forensics.pipeline import analyze;"
        f"analyze({str(STEP_217)!r}, tempfile.mkdtemp()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("other_run/env.txt", "torch==2.6.0\nexit code: 0\n"),
        ("aa_monitor.log", "2026-05-04 10:00:00,000 INFO started\n2026-05-04 11:00:00,000 INFO training finished\n"),
    ],
)
def test_a_healthy_file_of_something_else_does_not_make_a_failed_job_healthy(
    name: str, text: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "fixtures" / "checkpoint-mismatch" / "artifacts", tmp_path / "job")
    (tmp_path / "job" / "exit_code.txt").unlink()
    added = tmp_path / "job" / name
    added.parent.mkdir(exist_ok=True)
    added.write_text(text)
    verdict = analyze(tmp_path / "job", tmp_path / "out").verdict
    assert [f.rule for f in verdict.root_causes] == ["checkpoint-mismatch"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("train.py", 'def f():\n    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")\n\nf()\n'),
        ("run.sh", "#!/bin/bash\nfor i in 1 2; do\n  python train.py || echo CUDA out of memory\ndone\n"),
        ("README.md", "# Project\n\nTraining finished when the loss is small.\n"),
        ("page.html", "<!DOCTYPE html>\n<html><body>RuntimeError: boom</body></html>\n"),
    ],
)
def test_programs_and_pages_are_no_logs_and_say_nothing_of_the_job(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / name).write_text(text)
    result = analyze(tmp_path / "job", tmp_path / "out")
    assert result.verdict.status == "not-established"
    assert [a.quality for a in result.report.artifacts] == ["unknown"]


def test_a_nul_in_a_log_does_not_hide_it(tmp_path: Path) -> None:
    log = next(STEP_217.glob("logs/*/attempt_0/1/stderr.log"))
    (tmp_path / "stderr.log").write_bytes(b"started \0\n" + log.read_bytes())
    verdict = analyze(tmp_path / "stderr.log", tmp_path / "out").verdict
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]


def test_a_name_that_is_no_text_is_an_artifact_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    shutil.copy(next(STEP_217.glob("logs/*/attempt_0/1/stderr.log")), os.fsencode(tmp_path / "job") + b"/\xff.log")
    verdict = analyze(tmp_path / "job", tmp_path / "out").verdict
    assert [f.rule for f in verdict.root_causes] == ["numerics-nan-provenance"]


def test_a_damaged_cache_is_read_anew(tmp_path: Path) -> None:
    analyze(STEP_217, tmp_path)
    entries = sorted((tmp_path / "cache").iterdir())
    (entries[0] / "meta.json").write_text("{}")
    damaged = next(path for entry in entries[1:] for path in entry.glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes()[:-10])
    other = next(entry for entry in entries[1:] if entry != damaged.parent) / "meta.json"  # of a case of other columns
    other.write_text(json.dumps(json.loads(other.read_text()) | {"layout": "2-0000000000000000"}))
    result = analyze(STEP_217, tmp_path)
    assert result.n_parsed == 3
    assert [f.rule for f in result.verdict.root_causes] == ["numerics-nan-provenance"]


def test_a_load_that_failed_by_a_fault_is_tried_again(tmp_path: Path) -> None:
    with dropped_in(tmp_path / "formats", "broken", BROKEN):
        analyze(STEP_217, tmp_path / "out")
        assert analyze(STEP_217, tmp_path / "out").n_parsed == 2
    assert analyze(STEP_217, tmp_path / "out").n_parsed == 2


def test_results_are_never_written_over_the_artifacts(tmp_path: Path) -> None:
    with pytest.raises(ForensicsError, match="analyzed folder itself"):
        analyze(tmp_path, tmp_path)


def test_a_text_that_need_not_be_a_log_rules_nothing_out(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "notes.txt").write_text("hello world\nanother line\n")
    result = analyze(tmp_path / "job", tmp_path / "out")
    assert result.verdict.status == "not-established"
    assert not result.verdict.ruled_out


@needs_artifacts
def test_an_allocation_that_failed_is_named_although_its_cause_is_open(tmp_path: Path) -> None:
    result = analyze(ARTIFACTS / "allocator" / "leak_staircase_oom.pickle", tmp_path / "out")
    assert result.verdict.earliest is not None
    assert "ran out of memory" in result.verdict.earliest.message
