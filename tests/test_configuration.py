"""A site's thresholds and suppressions: applied, bounded in time, and refused when they would silently do nothing."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from support import ROOT

from forensics.configuration import read_configuration, set_aside
from forensics.engine import Judgement
from forensics.errors import ForensicsError
from forensics.pipeline import Settings, analyze
from forensics.report.terminal import render_terminal

SUPPRESS = '[[suppress]]\nrule = "gradients-stale"\nreason = "known, ticket 4711"\nexpires = 2999-01-31\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "site.toml"
    path.write_text(text)
    return path


def test_a_suppressed_finding_is_no_cause_but_stays_listed_with_its_reason(tmp_path: Path) -> None:
    settings = Settings(configuration=read_configuration(write(tmp_path, SUPPRESS)))
    result = analyze(ROOT / "fixtures" / "gradients-stale" / "artifacts", tmp_path / "out", settings=settings)
    assert [f.rule for f in result.verdict.root_causes] == []
    assert any("ticket 4711" in w.hides and w.where == "gradients-stale" for w in result.report.warnings)
    assert b"ticket 4711" in (tmp_path / "out" / "report.json").read_bytes()
    assert "set aside   1 finding, by suppressions of the settings: gradients-stale" in render_terminal(result.report)


def test_an_expired_suppression_does_nothing(tmp_path: Path) -> None:
    result = analyze(ROOT / "fixtures" / "gradients-stale" / "artifacts", tmp_path / "out")
    known = read_configuration(write(tmp_path, SUPPRESS))
    judgement = Judgement(list(result.findings))
    set_aside(judgement, known.suppressions, datetime.date(2999, 1, 31))
    assert len(judgement.findings) == len(result.findings)
    set_aside(judgement, known.suppressions, datetime.date(2999, 1, 30))
    assert [f.rule for f, _ in judgement.set_aside] == ["gradients-stale"]


def test_a_threshold_changes_what_a_rule_finds(tmp_path: Path) -> None:
    config = write(tmp_path, '[thresholds."gradients-stale"]\nmin_steps = 1000\n')
    settings = Settings(configuration=read_configuration(config))
    result = analyze(ROOT / "fixtures" / "gradients-stale" / "artifacts", tmp_path / "out", settings=settings)
    assert [f.rule for f in result.findings] == []


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "[treshold]\nx = 1\n",
        '[thresholds."a-b"]\nx = "high"\n',
        '[[suppress]]\nrule = "a-b"\n',
        '[[suppress]]\nrule = "a-b"\nreason = "r"\nexpires = "soon"\n',
        '[[suppress]]\nrule = "a-b"\nreason = ""\nexpires = 2999-01-01\n',
        "suppress = 3\n",
    ],
)
def test_a_configuration_that_would_silently_do_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ForensicsError, match=r"site\.toml"):
        read_configuration(write(tmp_path, text))
