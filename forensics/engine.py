"""Runs the rules over a case: picks variants by capability, says why one did not run, keeps one fault from stopping all."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from forensics.citations import Citations
from forensics.errors import RuleError
from forensics.finding import Evidence, Finding, format_message
from forensics.rule import Rule, Variant
from forensics.states import SEVERITIES

MAX_FINDINGS_PER_RULE = 200
RULE_SECONDS = 60
_PARAMETER = re.compile(r"\$([a-z_][a-z0-9_]*)")


@dataclass(frozen=True)
class RuleRun:
    """`outcome`: found | nothing-found | not-run | failed, for one process (None: the job)."""

    rule: str
    variant: str | None
    proc_id: int | None
    outcome: str
    reason: str
    missing: str | None = None
    n_findings: int = 0


@dataclass
class Judgement:
    findings: list[Finding] = field(default_factory=list)
    runs: list[RuleRun] = field(default_factory=list)


@dataclass(frozen=True)
class _Coverage:
    """Which processes have which capability; None stands for evidence of the job as a whole."""

    procs: Mapping[str, set[int | None]]
    complete: set[tuple[str, int | None]]

    def missing(self, need: str, proc: int | None) -> bool:
        held = self.procs.get(need) or self.procs.get(need.partition(":")[0], set())
        return not (held and (proc is None or proc in held or None in held))

    def is_complete(self, need: str, proc: int | None) -> bool:
        return (need, proc) in self.complete or (need, None) in self.complete


class _Question:
    """What a rule may ask: one SELECT at a time, with its thresholds as parameters."""

    def __init__(self, con: duckdb.DuckDBPyConnection, rule: Rule) -> None:
        self._con = con
        self.thresholds = {name: threshold.value for name, threshold in rule.thresholds.items()}

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        statements = self._con.extract_statements(sql)
        if len(statements) != 1 or not statements[0].type.name.startswith("SELECT"):
            raise RuleError("a rule may only ask one SELECT at a time")
        known = {**self.thresholds, **parameters}
        used = {name: known[name] for name in set(_PARAMETER.findall(sql)) if name in known}
        cursor = self._con.execute(sql, used)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def judge(
    con: duckdb.DuckDBPyConnection,
    rules: Sequence[Rule],
    views: Sequence[str],
    citations: Citations,
    *,
    expired: Callable[[], bool] = lambda: False,
) -> Judgement:
    """Findings and runs of all rules over a case opened by `case.open_for_rules`, in the order of rule ids.

    Once `expired()` is true, the rules that are left are recorded as failed for lack of time.
    """
    for view in views:
        con.execute(view)
    coverage = _read_coverage(con)
    processes = {row[0]: row for row in con.execute("SELECT id, attempt, rank, host, device, pid FROM proc ORDER BY id").fetchall()}
    errors = dict(con.execute("SELECT id, clock_error_ns FROM artifact").fetchall())
    judgement = Judgement()
    for rule in rules:
        if expired():
            judgement.runs.append(RuleRun(rule.id, None, None, "failed", "the time limit was reached"))
            continue
        _judge_rule(con, rule, coverage, processes, errors, citations, judgement)
    for number, finding in enumerate(judgement.findings):
        finding.id = number
    return judgement


def _read_coverage(con: duckdb.DuckDBPyConnection) -> _Coverage:
    procs: dict[str, set[int | None]] = {}
    complete = set()
    for capability, proc, whole in con.execute("SELECT capability, proc_id, complete FROM coverage").fetchall():
        procs.setdefault(capability, set()).add(proc)
        if whole:
            complete.add((capability, proc))
    return _Coverage(procs, complete)


def _judge_rule(
    con: duckdb.DuckDBPyConnection,
    rule: Rule,
    coverage: _Coverage,
    processes: Mapping[int, Any],
    errors: Mapping[int, int | None],
    citations: Citations,
    judgement: Judgement,
) -> None:
    subjects: list[int | None] = [None] if rule.scope == "job" or not processes else list(processes)
    settled: dict[int | None, RuleRun] = {}
    missing: dict[int | None, str] = {}
    for variant in rule.variants:
        able = []
        for proc in subjects:
            if proc in settled and settled[proc].outcome != "nothing-found":
                continue
            lacking = next((need for need in variant.needs if coverage.missing(need, proc)), None)
            if lacking is None:
                able.append(proc)
            else:
                missing.setdefault(proc, lacking)
        if not able:
            continue
        _run_variant(con, rule, variant, able, processes, errors, citations, settled, judgement)
        # A complete record that shows nothing settles the question; weaker evidence is not asked again.
        subjects = [
            p
            for p in subjects
            if not (p in able and settled[p].outcome == "nothing-found" and all(coverage.is_complete(n, p) for n in variant.needs))
        ]
    for proc in [None] if rule.scope == "job" or not processes else list(processes):
        unable = RuleRun(rule.id, None, proc, "not-run", f"needs {missing.get(proc, '')}", missing.get(proc))
        judgement.runs.append(settled.get(proc, unable))


def _run_variant(
    con: duckdb.DuckDBPyConnection,
    rule: Rule,
    variant: Variant,
    able: Sequence[int | None],
    processes: Mapping[int, Any],
    errors: Mapping[int, int | None],
    citations: Citations,
    settled: dict[int | None, RuleRun],
    judgement: Judgement,
) -> None:
    timer = threading.Timer(RULE_SECONDS, con.interrupt)
    timer.start()
    try:
        question = _Question(con, rule)
        rows = question.rows(variant.sql) if variant.sql else [dict(row) for row in _call(variant, question)]
        findings = [
            _finding(rule, variant, row, processes, errors, citations)
            for row in rows
            if rule.scope == "job" or row.get("proc_id") in able or None in able
        ][:MAX_FINDINGS_PER_RULE]
    except Exception as error:  # one rule's fault must not stop the others, whatever it is
        reason = f"{type(error).__name__}: {error}"[:1000]
        settled.update({proc: RuleRun(rule.id, variant.name, proc, "failed", reason) for proc in able})
        return
    finally:
        timer.cancel()
    judgement.findings += findings
    for proc in able:
        n = len(findings) if proc is None else sum(f.proc_id == proc for f in findings)
        outcome = "found" if n else "nothing-found"
        needs = ", ".join(variant.needs)
        settled[proc] = RuleRun(rule.id, variant.name, proc, outcome, f"judged by {needs}", None, n)


def _call(variant: Variant, question: _Question) -> Iterable[Mapping[str, Any]]:
    if variant.function is None:
        raise RuleError(f"variant {variant.name} has neither SQL nor a function")
    return variant.function(question)


def _finding(
    rule: Rule,
    variant: Variant,
    row: dict[str, Any],
    processes: Mapping[int, Any],
    errors: Mapping[int, int | None],
    citations: Citations,
) -> Finding:
    process = processes.get(row.get("proc_id"), (None,) * 6)  # type: ignore[call-overload]
    rank = row.get("rank") if row.get("rank") is not None else process[2]
    device = row.get("device") if row.get("device") is not None else process[4]
    step = row.get("step")
    named = {
        **row,
        "rank": rank,
        "who": f"Rank {rank}" if rank is not None else "The process",
        "at_step": "" if step is None else f" at step {step}",
    }
    severity = row.get("severity") or rule.severity
    if severity not in SEVERITIES:
        raise RuleError(f"{rule.id}: severity {severity!r} is none of {', '.join(SEVERITIES)}")
    message = format_message(rule.message, named)
    finding = Finding(
        id=-1,
        rule=rule.id,
        title=rule.title,
        variant=variant.name,
        severity=severity,
        strength=row.get("strength") or variant.strength,
        role=row.get("role") or rule.role,
        message=message,
        fix=format_message(row.get("fix") or rule.fix, named) if "{" in (row.get("fix") or rule.fix) else row.get("fix") or rule.fix,
        causes=rule.causes,
        requires=rule.requires,
        attempt=process[1],
        proc_id=row.get("proc_id"),
        rank=rank,
        host=row.get("host") or process[3],
        device=device,
        step=step,
        ts_ns=row.get("ts_ns"),
        clock_error_ns=errors.get(row.get("artifact_id", -1)),
        evidence=_evidence(row, citations),
        facts={k: v for k, v in row.items() if k not in _NOT_FACTS and v is not None},
    )
    finding.fingerprint = _fingerprint(finding, row)
    return finding


_NOT_FACTS = {"artifact_id", "row", "proc_id", "line", "byte", "evidence", "severity", "strength", "role", "fix", "key", "text"}


def _evidence(row: Mapping[str, Any], citations: Citations) -> list[Evidence]:
    places = [row, *(row.get("evidence") or [])]
    cited: list[Evidence] = []
    for place in places[:50]:
        evidence = citations.cite(place)
        if evidence and all(evidence.label() != other.label() for other in cited):
            cited.append(evidence)
    return cited


def _fingerprint(finding: Finding, row: Mapping[str, Any]) -> str:
    """Rule, rank, step and the decisive words: equal over re-runs of the analysis and over renamed files."""
    words = str(row.get("key") or re.sub(r"[\d.]+", "#", finding.message))
    text = f"{finding.rule}\0{finding.attempt}\0{finding.rank}\0{finding.step}\0{words}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
