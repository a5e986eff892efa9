"""What programs read: report.json by its published schema, SARIF and JUnit, the same bytes for the same input."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
import report_demo as demo
import xmlschema
from jsonschema.validators import validator_for
from test_report_page import hostile_report

from forensics.cli import main
from forensics.investigation import Case
from forensics.pictures import read_pictures
from forensics.pipeline import analyze
from forensics.report import pictures as p
from forensics.report.html import asset
from forensics.report.junit import render_junit
from forensics.report.sarif import render_sarif

pytestmark = pytest.mark.installed

FIXTURE = Path(__file__).parents[1] / "fixtures" / "numerics-exp-overflow" / "artifacts"
STANDARDS = Path(__file__).parent / "standards"
REPORTS = {"cause": demo.root_cause, "none": demo.not_established, "healthy": demo.healthy, "hostile": hostile_report}


def faults(value: Any, schema: dict[str, Any]) -> list[str]:
    """Where a value breaks a JSON Schema."""
    checker = validator_for(schema)
    checker.check_schema(schema)
    return [f"{error.json_path}: {error.message[:200]}" for error in checker(schema).iter_errors(value)]


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folders = tmp_path_factory.mktemp("a"), tmp_path_factory.mktemp("b")
    for folder in folders:
        analyze(FIXTURE, folder)
    return folders


def test_the_same_artifacts_give_the_same_bytes(twice: tuple[Path, Path]) -> None:
    for name in ("report.html", "report.json"):
        assert (twice[0] / name).read_bytes() == (twice[1] / name).read_bytes()


def test_report_json_keeps_its_published_schema(twice: tuple[Path, Path]) -> None:
    schema = json.loads(asset("report.schema.json"))
    document = json.loads((twice[0] / "report.json").read_bytes())
    assert document["findings"] and document["verdict"]["root_causes"]
    assert faults(document, schema) == []
    broken = json.loads(json.dumps(document))
    del broken["findings"][0]["fingerprint"]
    broken["verdict"]["status"] = "perhaps"
    assert len(faults(broken, schema)) == 2


def test_a_birth_is_drawn_with_its_way_and_the_last_steps_with_what_was_measured(twice: tuple[Path, Path]) -> None:
    with Case(twice[0]) as case:
        found = read_pictures(case._con)
    graph = next(view for view in found if isinstance(view, p.Provenance))
    assert [op.label for op in graph.operations if op.role == "birth"] == ["aten::exp"]
    assert graph.reaches_loss and any(op.role == "path" for op in graph.operations)
    steps = next(view for view in found if isinstance(view, p.LastSteps))
    assert [row.step for row in steps.rows] == list(range(10))
    norms = next(view for view in found if isinstance(view, p.GridView) and view.row_word == "parameter")
    last = norms.cells[0][-1]
    assert last is not None and math.isnan(last)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["schema"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["title"] == "forensics.report/1"


def test_sarif_names_rule_place_and_fingerprint() -> None:
    report = demo.root_cause()
    run = json.loads(render_sarif(report))["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [rules[r["ruleIndex"]] for r in run["results"]] == [f.rule for f in report.findings]
    first = run["results"][0]
    assert first["level"] == "error"
    place = first["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "tensors/rank1.jsonl"}, "region": {"startLine": 4711}}
    levels = {r["level"] for r in json.loads(render_sarif(hostile_report()))["runs"][0]["results"]}
    assert levels <= {"error", "warning", "note"}


@pytest.mark.parametrize("name", list(REPORTS))
def test_sarif_and_junit_keep_to_their_schemas(name: str) -> None:
    report = REPORTS[name]()
    sarif = json.loads((STANDARDS / "sarif-2.1.0.json").read_bytes())
    assert faults(json.loads(render_sarif(report)), sarif) == []
    junit = xmlschema.XMLSchema(str(STANDARDS / "junit-10.xsd"))
    assert [str(error.reason) for error in junit.iter_errors(render_junit(report))] == []


def test_junit_fails_for_findings_passes_what_is_ruled_out_and_skips_the_unchecked() -> None:
    report = demo.root_cause()
    suite = ElementTree.fromstring(render_junit(report))[0]
    assert len(suite) == int(suite.attrib["tests"])
    assert len(suite.findall("./testcase/skipped")) == len(report.not_checked) == int(suite.attrib["skipped"])
    failed = suite.findall("./testcase/failure")
    assert len(failed) == int(suite.attrib["failures"])
    assert "tensors/rank1.jsonl line 4711" in (failed[0].text or "")
    ElementTree.fromstring(render_junit(hostile_report()))
