"""Rule files: what is accepted, and what is refused with a message that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.errors import RuleError
from forensics.library import load_rule, load_rules
from forensics.states import STATES, TRAVELS

pytestmark = pytest.mark.installed

FRONT = """/*
title = "t"
severity = "high"
proves = "p"
cannot_prove = "c"
message = "m"
fix = "f"
{more}
[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
{sql}
"""
SQL = "SELECT artifact_id, row FROM log ORDER BY artifact_id, row;"


def write(folder: Path, *, more: str = "", sql: str = SQL, text: str | None = None) -> Path:
    path = folder / "memory" / "thing.sql"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text if text is not None else FRONT.format(more=more, sql=sql))
    return path


def test_a_rule_is_named_after_its_folder_and_file(tmp_path: Path) -> None:
    assert load_rule(write(tmp_path)).id == "memory-thing"


@pytest.mark.parametrize(
    ("more", "sql", "complaint"),
    [
        ('causes = [{ state = "no-such" }]', SQL, "unknown state"),
        ('causes = [{ state = "rank-gone", of = "host" }]', SQL, "a state of a rank"),
        ('author = "me"', SQL, "unknown key author"),
        ('role = "villain"', SQL, "role 'villain'"),
        ("", "SELECT artifact_id FROM log;", "does not end in ORDER BY"),
        ("", "SELECT any_value(row) FROM log ORDER BY 1;", "without ORDER BY"),
        ("", "SELECT list(row) AS first_row FROM log ORDER BY 1;", "without ORDER BY"),
    ],
)
def test_a_malformed_rule_is_refused_with_the_reason(tmp_path: Path, more: str, sql: str, complaint: str) -> None:
    with pytest.raises(RuleError, match=complaint):
        load_rule(write(tmp_path, more=more, sql=sql))


@pytest.mark.parametrize("text", ["", "SELECT 1", "/* title = */\n", "/* title = 'x' */\n-- variant: log\nSELECT 1"])
def test_a_file_without_sound_front_matter_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(RuleError, match=r"thing\.sql"):
        load_rule(write(tmp_path, text=text))


def test_an_ordered_aggregate_is_accepted(tmp_path: Path) -> None:
    sql = "SELECT list(row ORDER BY row) AS rows FROM log ORDER BY 1;"
    assert load_rule(write(tmp_path, sql=sql)).variants[0].sql


def test_a_python_rule_has_one_decorated_function(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "walk.py"
    path.parent.mkdir()
    path.write_text(
        "from forensics.rule import rule\n"
        "@rule(title='t', severity='info', proves='p', cannot_prove='c', message='m', fix='f',\n"
        "      variant={'log': {'needs': ['log_event'], 'strength': 'indication'}})\n"
        "def walk(question):\n    return []\n"
    )
    loaded = load_rule(path)
    assert loaded.id == "memory-walk" and loaded.variants[0].function is not None


def test_a_python_rule_that_raises_is_a_rule_error(tmp_path: Path) -> None:
    path = tmp_path / "memory" / "walk.py"
    path.parent.mkdir()
    path.write_text("raise OSError('no')\n")
    with pytest.raises(RuleError, match="OSError: no"):
        load_rule(path)


def test_thresholds_are_overridden_by_name_and_unknown_ones_refused() -> None:
    rules = {r.id: r for r in load_rules(thresholds={"memory-fragmentation": {"min_free_ratio": 3}})}
    assert rules["memory-fragmentation"].thresholds["min_free_ratio"].value == 3
    with pytest.raises(RuleError, match="no threshold"):
        load_rules(thresholds={"memory-fragmentation": {"nothing": 1}})


def test_a_second_rule_with_the_same_id_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.rename(path.with_name("fragmentation.sql"))
    with pytest.raises(RuleError, match="already defined"):
        load_rules([tmp_path])


def test_states_travel_only_between_states_that_exist() -> None:
    assert all(t.state in STATES and t.then in STATES for t in TRAVELS)


def test_python_rules_of_the_library_import_only_what_they_may() -> None:
    import ast
    import sys

    from forensics.resources import resource_folder

    allowed = {"forensics.rule", "networkx", *sys.stdlib_module_names, "__future__"}
    for path in resource_folder("rules").glob("*/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            assert all(name in allowed or name.split(".")[0] in allowed for name in names), (path, names)


MEASURED = """
[thresholds.most]
value = 2
unit = "freed / asked"
why = "w"
measured = "{measured}"
"""


def test_a_threshold_says_what_of_a_finding_is_held_against_it(tmp_path: Path) -> None:
    def measure(measured: str, **facts: object) -> float | None:
        rule = load_rule(write(tmp_path, more=MEASURED.format(measured=measured)))
        return rule.thresholds["most"].measure(facts)

    assert measure("freed / asked", freed=9, asked=2) == 4.5
    assert measure("delay / 1e9", delay="3000000000") == 3.0
    assert measure("freed / asked", freed=9, asked=0) is None
    assert measure("freed", freed="many") is None and measure("freed") is None
    assert measure("freed", freed=float("nan")) is None
    for wrong in ("freed * asked", "import os", "a / b / c"):
        with pytest.raises(RuleError, match="measured is none of"):
            measure(wrong)


def test_what_is_held_against_a_threshold_is_a_column_of_its_rule() -> None:
    held = [(rule, t.measured) for rule in load_rules() for t in rule.thresholds.values() if t.measured]
    assert len(held) > 50
    for rule, measured in held:
        columns = [part for part in measured.split(" / ") if not part[0].isdigit()]
        assert any(
            all(column in (v.sql or "").split("SELECT")[-1] or "*" in (v.sql or "") for column in columns)
            for v in rule.variants
        ), rule.id


def test_what_a_variant_proves_is_its_own_where_the_variants_show_different_things(tmp_path: Path) -> None:
    text = FRONT.format(more="", sql=SQL).replace('proves = "p"\n', "")
    text = text.replace('strength = "strong"\n', 'strength = "strong"\nproves = "what the log says"\n')
    loaded = load_rule(write(tmp_path, text=text))
    assert loaded.proves == loaded.variants[0].proves == "what the log says"
    assert load_rule(write(tmp_path)).variants[0].proves == "p"
    with pytest.raises(RuleError, match="proves is missing"):
        load_rule(write(tmp_path, text=text.replace('proves = "what the log says"\n', "")))


def test_what_speaks_against_a_fault_belongs_to_a_variant(tmp_path: Path) -> None:
    loaded = load_rule(write(tmp_path, sql=f"{SQL}\n-- against: log\nSELECT 1 AS says ORDER BY 1;"))
    assert loaded.variants[0].against == "SELECT 1 AS says ORDER BY 1"
    with pytest.raises(RuleError, match="'-- against: trace' has no variant"):
        load_rule(write(tmp_path, sql=f"{SQL}\n-- against: trace\nSELECT 1 AS says ORDER BY 1;"))
