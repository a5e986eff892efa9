"""Runs the cases beside rules: what must be found, and near misses that must not.

A case gives evidence as `files` (name → text, loaded as real artifacts), as `rows` (table → list of rows, texts for
interned ids) or as `fixture` (a folder below fixtures/), and says what the rule `finds`: a number of findings, or a
list of tables whose entries each finding must have.
"""

from __future__ import annotations

import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from forensics.artifact import Source
from forensics.assembly import assemble_case
from forensics.case import case_columns, conform, intern, open_for_rules
from forensics.citations import Citations
from forensics.discovery import Found, Hints, discover
from forensics.engine import Contrary, judge
from forensics.errors import RuleError
from forensics.finding import Finding
from forensics.ingest import Loaded, ingest
from forensics.library import load_rules, load_views
from forensics.parquet_sink import write_rows
from forensics.rule import Rule
from forensics.states import CAPABILITIES

_KEYS = {"name", "files", "rows", "procs", "capabilities", "fixture", "finds", "against", "about", "thresholds"}
_PROSE = {"message", "fix", "proves", "cannot_prove"}  # of which a case gives a part


@dataclass(frozen=True)
class CaseResult:
    """`problem` is empty when the case holds."""

    rule: str
    case: str
    problem: str


def run_cases(
    folders: Sequence[Path] = (), names: Sequence[str] = (), fixtures: Path | None = None, *, jobs: int = 1
) -> list[CaseResult]:
    """Runs the cases of all rules, or of those named, in `jobs` processes. A rule without cases is itself a problem."""
    known = [rule.id for rule in load_rules(folders)]
    if unknown := set(names) - set(known):
        raise RuleError(f"{', '.join(sorted(unknown))}: no such rule; `forensics rules list` names them all")
    chosen = [rule for rule in known if not names or rule in names]
    root = fixtures or _checkout_fixtures()
    if jobs <= 1 or len(chosen) <= 1:
        return _run_rules(folders, root, chosen)
    # Dealt out in turn: rules of one family read the same fixtures, and take alike long.
    parts = [chosen[number::jobs] for number in range(jobs)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        done = [result for part in pool.map(partial(_run_rules, folders, root), parts) for result in part]
    return sorted(done, key=lambda result: chosen.index(result.rule))


def _run_rules(folders: Sequence[Path], fixtures: Path | None, names: Sequence[str]) -> list[CaseResult]:
    views = load_views(folders)
    results: list[CaseResult] = []
    work = Path(tempfile.mkdtemp(prefix="forensics-cases-"))
    try:
        for rule in load_rules(folders):
            if rule.id not in names:
                continue
            cases = read_cases(rule)
            if not cases:
                results.append(CaseResult(rule.id, "-", "the rule has no cases beside it"))
            for case in cases:
                problem = _run_case(rule, case, views, fixtures, work)
                if problem is not None:
                    results.append(CaseResult(rule.id, case["name"], problem))
    finally:
        _fixture.cache_clear()
        shutil.rmtree(work, ignore_errors=True)
    return results


def read_cases(rule: Rule) -> list[dict[str, Any]]:
    """The cases in NAME.cases.toml beside the rule; RuleError when the file is malformed."""
    path = Path(rule.path).with_suffix(".cases.toml")
    if not path.is_file():
        return []
    try:
        cases: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("case", [])
    except tomllib.TOMLDecodeError as error:
        raise RuleError(f"{path}: {error}") from error
    for case in cases:
        unknown = set(case) - _KEYS
        if unknown or "name" not in case or "finds" not in case:
            raise RuleError(
                f"{path}: case {case.get('name')!r}: unknown {sorted(unknown)}; name and finds are required"
            )
    return cases


def _checkout_fixtures() -> Path | None:
    folder = Path(__file__).resolve().parent.parent / "fixtures"
    return folder if folder.is_dir() else None


def _run_case(
    rule: Rule, case: Mapping[str, Any], views: Sequence[str], fixtures: Path | None, work: Path
) -> str | None:
    """None when the case cannot run here (its fixture is not shipped); else what is wrong, or an empty text."""
    if "fixture" in case and (fixtures is None or not (fixtures / case["fixture"]).is_dir()):
        return None if fixtures is None else f"fixture {case['fixture']} does not exist"
    with _opened(case, fixtures, work) as (con, sources):
        judgement = judge(con, [rule], views, Citations(con, sources))
    broken = [run.reason for run in judgement.runs if run.outcome == "failed"]
    if broken:
        return f"the rule failed: {broken[0]}"
    return _compare(case["finds"], judgement.findings) or _compare_against(case, judgement.against.get(rule.id, ()))


@contextmanager
def _opened(
    case: Mapping[str, Any], fixtures: Path | None, work: Path
) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[Source]]]:
    if "fixture" in case and fixtures is not None:
        path, sources = _fixture(case["fixture"], fixtures, work)
    else:
        place = Path(tempfile.mkdtemp(dir=work))
        path = place / "case.duckdb"
        loaded = _loaded_files(case, place) + _loaded_rows(case, place)
        assemble_case(loaded, path)
        sources = [item.found.source for item in loaded]
    con = open_for_rules(path)
    try:
        yield con, sources
    finally:
        con.close()


@cache
def _fixture(name: str, fixtures: Path, work: Path) -> tuple[Path, list[Source]]:
    """Many cases read one fixture."""
    key = name.replace("/", "_")
    path, found = work / f"{key}.duckdb", discover(fixtures / name / "artifacts", work / key)
    assemble_case(ingest(found, work / "cache"), path)
    return path, [item.source for item in found]


def _loaded_files(case: Mapping[str, Any], place: Path) -> list[Loaded]:
    if "files" not in case:
        return []
    for name, text in case["files"].items():
        file = place / "artifacts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return ingest(discover(place / "artifacts", place / "work"), place / "cache")


def _loaded_rows(case: Mapping[str, Any], place: Path) -> list[Loaded]:
    """An invented artifact whose rows are those of the case; `row` counts up where it is not given."""
    if "rows" not in case:
        return []
    file = place / "rows"
    file.write_text("", encoding="utf-8")
    tables: dict[str, list[str]] = {}
    facts: list[dict[str, Any]] = []
    for table, rows in case["rows"].items():
        if table == "fact":
            facts = [{"scope": "option", **row} for row in rows]
            continue
        given = [
            {**({"row": number} if "row" in case_columns()[table] else {}), **row} for number, row in enumerate(rows)
        ]
        columns = {name: [row.get(name) for row in given] for name in dict.fromkeys(k for row in given for k in row)}
        stored, texts = intern(table, [conform(table, pa.table(columns))], set())
        for of, part in (("string", texts), (table, stored)):
            tables.setdefault(of, []).append(f"{of}-{table}.parquet")
            write_rows(part, place / tables[of][-1])
    procs = {str(number): dict(known) for number, known in enumerate(case.get("procs", [{}]))}
    covered = case.get(
        "capabilities", [*(table for table in tables if table in CAPABILITIES), *(["fact"] if facts else [])]
    )
    meta: dict[str, Any] = {
        "quality": "complete",
        "clock": "epoch",
        "procs": procs,
        "coverage": [{"capability": name, "proc": number} for name in covered for number in range(len(procs))],
        "warnings": [],
        "facts": facts,
        "tables": tables,
    }
    found = Found(Source(file, "rows"), None, Hints(), 0)
    return [Loaded(found, place, meta)]


def _compare_against(case: Mapping[str, Any], told: Sequence[Contrary]) -> str:
    wanted, said = case.get("against"), [one.says for one in told]
    if wanted is None or (len(wanted) == len(said) and all(w in s for w, s in zip(wanted, said, strict=True))):
        return "" if all(one.evidence for one in told) else f"nothing is cited for: {'; '.join(said)}"
    return f"what speaks against it is {said}, expected {wanted}"


def _compare(expected: Any, findings: Sequence[Finding]) -> str:
    messages = "; ".join(f.message for f in findings[:3])
    if isinstance(expected, int):
        return "" if len(findings) == expected else f"{len(findings)} findings, expected {expected} ({messages})"
    if len(findings) != len(expected):
        return f"{len(findings)} findings, expected {len(expected)} ({messages})"
    for finding, wanted in zip(findings, expected, strict=True):
        for key, value in wanted.items():
            got = getattr(finding, key) if hasattr(finding, key) else finding.facts.get(key)
            matches = value in str(got) if key in _PROSE else got == value
            if not matches:
                return f"{key} is {got!r}, expected {value!r} ({finding.message})"
    return ""


_RULE = '''/*
title = "…"
severity = "high"
proves = """What a row of this rule shows beyond doubt."""
cannot_prove = """What it leaves open."""
message = "{who} …{at_step}"
fix = "…"
causes = [{ state = "rank-failed", of = "rank" }]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns
FROM log AS e
WHERE e.signature = '…' AND e.role <> 'noise'
ORDER BY e.ts_ns, e.artifact_id, e.row;
'''
_CASES = '''[[case]]
name = "fires on …"
finds = 1
[case.files]
"rank_0.log" = """
"""

[[case]]
name = "stays silent on …"
finds = 0
[case.files]
"rank_0.log" = """
"""
'''


def write_skeleton(rule_id: str, folder: Path) -> list[Path]:
    """Writes FOLDER/FAMILY/NAME.sql and its cases; RuleError when the id has no family or the rule exists."""
    family, _, name = rule_id.partition("-")
    if not family or not name or not rule_id.replace("-", "").isalnum():
        raise RuleError(f"{rule_id}: expected FAMILY-NAME, such as memory-fragmentation")
    path = folder / family / f"{name}.sql"
    if path.exists():
        raise RuleError(f"{path}: exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_RULE, encoding="utf-8")
    cases = path.with_suffix(".cases.toml")
    cases.write_text(_CASES, encoding="utf-8")
    return [path, cases]
