"""Runs the rules over a case: picks variants by capability, says why one did not run, survives a rule's fault."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb

from forensics.citations import Citations
from forensics.deadline import Deadline, Watch
from forensics.errors import RuleError
from forensics.finding import Evidence, Finding, format_message
from forensics.rule import Question, Rule, Variant, alternatives
from forensics.shared_views import SharedViews
from forensics.states import SEVERITIES, STATES

MAX_FINDINGS_PER_RULE = 200
MAX_CONTRARY = 3  # places that speak against a fault
RULE_SECONDS = 60
OUT_OF_TIME = "the time limit was reached"
_UNANSWERED = {"failed", "out-of-time"}
_PARAMETER = re.compile(r"\$([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class RuleRun:
    """`outcome`: found | nothing-found | not-run | out-of-time | failed, for one process (None: the job)."""

    rule: str
    variant: str | None
    proc_id: int | None
    outcome: str
    reason: str
    missing: str | None = None
    n_findings: int = 0
    strength: str = ""
    conclusive: bool = False


@dataclass(frozen=True)
class Contrary:
    """Rows that speak against the fault of a rule which found nothing, and what they say."""

    variant: str
    proc_id: int | None
    rank: int | None
    says: str
    evidence: Sequence[Evidence]


@dataclass
class Judgement:
    findings: list[Finding] = field(default_factory=list)
    against: dict[str, list[Contrary]] = field(default_factory=dict)  # by rule
    set_aside: list[tuple[Finding, str]] = field(default_factory=list)  # by the site's configuration, with its reason
    runs: list[RuleRun] = field(default_factory=list)
    n_unlisted: Counter[str] = field(default_factory=Counter)  # findings of a rule beyond MAX_FINDINGS_PER_RULE


@dataclass(frozen=True)
class _Coverage:
    """Which processes have which capability; None stands for evidence of the job as a whole."""

    procs: Mapping[str, set[int | None]]
    complete_to: Mapping[tuple[str, int | None], int]  # end of a complete record, ns
    latest: int | None  # end of all evidence, ns

    def missing(self, need: str, proc: int | None) -> bool:
        """`need` may name alternatives, "log_event|log_event.kernel": one of them is enough."""
        return not any(
            held and (proc is None or proc in held or None in held)
            for held in (self.procs.get(name, set()) for name in alternatives(need))
        )

    def reaches_the_end(self, need: str, proc: int | None) -> bool:
        """Whether the record is complete up to the last time that any evidence of the case has."""
        ends = [self.complete_to.get((name, who), -1) for name in alternatives(need) for who in (proc, None)]
        end = max(ends)
        return self.latest is not None and end >= self.latest


class _Question:
    """What a rule may ask: one SELECT at a time, with its thresholds as parameters."""

    def __init__(self, con: duckdb.DuckDBPyConnection, rule: Rule, deadline: Deadline) -> None:
        self._con = con
        self._deadline = deadline
        self.thresholds: Mapping[str, float] = {name: threshold.value for name, threshold in rule.thresholds.items()}

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        if self._deadline.expired():  # between statements there is nothing to interrupt
            raise RuleError("out of time")
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
    deadline: Deadline | None = None,
) -> Judgement:
    """Findings and runs of all rules over a case opened by `case.open_for_rules`, in the order of rule ids.

    The rule that the deadline interrupts and those that are left then are recorded as out of time.
    """
    until = deadline or Deadline()
    with Watch(con) as watch:
        bench = _Bench(con, citations, until, SharedViews(con, views, until), watch)
        for rule in rules:
            if until.expired():
                bench.judgement.runs.append(RuleRun(rule.id, None, None, "out-of-time", OUT_OF_TIME))
            else:
                bench.judge(rule)
    for number, finding in enumerate(bench.judgement.findings):
        finding.id = number
    return bench.judgement


def _read_coverage(con: duckdb.DuckDBPyConnection) -> _Coverage:
    procs: dict[str, set[int | None]] = {}
    complete_to: dict[tuple[str, int | None], int] = {}
    rows = con.execute("SELECT capability, proc_id, complete, to_ns FROM coverage").fetchall()
    for capability, proc, complete, to_ns in rows:
        procs.setdefault(capability, set()).add(proc)
        if complete and to_ns is not None:
            complete_to[capability, proc] = max(to_ns, complete_to.get((capability, proc), to_ns))
    return _Coverage(procs, complete_to, max((row[3] for row in rows if row[3] is not None), default=None))


class _Bench:
    """Judges rule after rule over one case."""

    def __init__(
        self,
        con: duckdb.DuckDBPyConnection,
        citations: Citations,
        deadline: Deadline,
        views: SharedViews,
        watch: Watch,
    ) -> None:
        self._con = con
        self._citations = citations
        self._deadline = deadline
        self._views = views
        self._watch = watch
        self._coverage = _read_coverage(con)
        query = "SELECT id, attempt, rank, host, device FROM proc ORDER BY id"
        self._processes: dict[int | None, Sequence[Any]] = {row[0]: row for row in con.execute(query).fetchall()}
        query = "SELECT id, clock_error_ns, timeline, run FROM artifact"
        self._artifacts = {row[0]: row[1:] for row in con.execute(query).fetchall()}
        self.judgement = Judgement()

    def judge(self, rule: Rule) -> None:
        everyone: list[int | None] = list(self._processes) if rule.scope == "process" else []
        everyone = everyone or [None]
        settled: dict[int | None, RuleRun] = {}
        missing: dict[int | None, str] = {}
        for variant in rule.variants:
            able = []
            for proc in everyone:
                if proc in settled and (settled[proc].outcome != "nothing-found" or settled[proc].conclusive):
                    continue
                lacking = next((need for need in variant.needs if self._coverage.missing(need, proc)), None)
                if lacking is None:
                    able.append(proc)
                else:
                    missing.setdefault(proc, lacking)
            for proc, run in self._run(rule, variant, able).items() if able else ():
                # What stands is the strongest variant that ran, unless a weaker one found something.
                if run.outcome in _UNANSWERED and proc in settled:  # a fault is never hidden behind another variant
                    self.judgement.runs.append(run)
                elif proc not in settled or run.outcome == "found" or settled[proc].outcome in _UNANSWERED:
                    settled[proc] = run
        for proc in everyone:
            unable = RuleRun(rule.id, None, proc, "not-run", f"needs {missing.get(proc, '')}", missing.get(proc))
            self.judgement.runs.append(settled.get(proc, unable))

    def _run(self, rule: Rule, variant: Variant, able: Sequence[int | None]) -> dict[int | None, RuleRun]:
        if variant.sql:
            self._views.make(variant.sql)
        else:
            self._views.make_all()
        within = self._deadline.within(RULE_SECONDS)
        try:
            question = _Question(self._con, rule, within)
            contrary: list[dict[str, Any]] = []
            with self._watch.until(within):
                rows = question.rows(variant.sql) if variant.sql else [dict(row) for row in _call(variant, question)]
            if not rows and variant.against:
                self._views.make(variant.against)
                with self._watch.until(within):
                    contrary = question.rows(variant.against)
            _check_rows(rule, [*rows, *contrary])
            asked = set(able)
            rows, contrary = (
                [row for row in given if rule.scope == "job" or row.get("proc_id") in asked or None in asked]
                for given in (rows, contrary)
            )
            findings = [self._finding(rule, variant, row) for row in rows[:MAX_FINDINGS_PER_RULE]]
            against = [self._contrary(variant, row) for row in contrary[:MAX_CONTRARY]]
        except Exception as error:  # one rule's fault must not stop the others, whatever it is
            outcome, reason = "failed", f"{type(error).__name__}: {error}"[:1000]
            if self._deadline.expired():
                outcome, reason = "out-of-time", OUT_OF_TIME
            elif within.expired():
                reason = f"the rule took longer than {RULE_SECONDS} s"
            return {proc: RuleRun(rule.id, variant.name, proc, outcome, reason) for proc in able}
        self.judgement.findings += findings
        self.judgement.against.setdefault(rule.id, []).extend(against)
        self.judgement.n_unlisted[rule.id] += len(rows) - len(findings)
        n_of = Counter(row.get("proc_id") for row in rows)
        runs: dict[int | None, RuleRun] = {}
        for proc in able:
            n = len(rows) if proc is None else n_of[proc]
            # Proof that is whole to the end and shows nothing settles the question: weaker evidence is not asked.
            whole = all(self._coverage.reaches_the_end(need, proc) for need in variant.needs)
            conclusive = variant.strength == "proof" and whole
            reason = f"judged by {', '.join(variant.needs)}"
            outcome = "found" if n else "nothing-found"
            runs[proc] = RuleRun(
                rule.id, variant.name, proc, outcome, reason, None, n, strength=variant.strength, conclusive=conclusive
            )
        return runs

    def _contrary(self, variant: Variant, row: Mapping[str, Any]) -> Contrary:
        proc_id = row.get("proc_id")
        rank = self._processes.get(proc_id, (None,) * 5)[2]
        return Contrary(variant.name, proc_id, rank, str(row["says"]), _evidence(row, self._citations))

    def _finding(self, rule: Rule, variant: Variant, row: dict[str, Any]) -> Finding:
        _, attempt, rank, host, device = self._processes.get(row.get("proc_id"), (None,) * 5)
        rank = row["rank"] if row.get("rank") is not None else rank
        step = row.get("step")
        clock_error_ns, timeline, run = self._artifacts.get(row.get("artifact_id"), (None, None, None))
        named = {
            **row,
            "rank": rank,
            "who": (f"Rank {rank}" if rank is not None else "The process") + (f" of {run}" if run else ""),
            "at_step": "" if step is None else f" at step {step}",
        }
        severity = row.get("severity") or rule.severity
        if severity not in SEVERITIES:
            raise RuleError(f"{rule.id}: severity {severity!r} is none of {', '.join(SEVERITIES)}")
        finding = Finding(
            id=-1,
            rule=rule.id,
            title=rule.title,
            variant=variant.name,
            severity=severity,
            strength=row.get("strength") or variant.strength,
            role=row.get("role") or rule.role,
            message=format_message(rule.message, named),
            fix=_own(row, "fix") or format_message(rule.fix, named),
            proves=_own(row, "proves") or variant.proves,
            cannot_prove=_own(row, "cannot_prove") or rule.cannot_prove,
            causes=_states(row, "causes", rule.causes),
            requires=_states(row, "requires", rule.requires),
            attempt=attempt,
            proc_id=row.get("proc_id"),
            rank=rank,
            host=row.get("host") or host,
            device=row["device"] if row.get("device") is not None else device,
            step=step,
            ts_ns=row.get("ts_ns"),
            clock_error_ns=clock_error_ns,
            timeline=timeline,
            evidence=_evidence(row, self._citations),
            facts={key: value for key, value in row.items() if key not in _NOT_FACTS and value is not None},
        )
        finding.fingerprint = _fingerprint(finding, row)
        return finding


def _own(row: Mapping[str, Any], column: str) -> str:
    """What a row says for itself where the rule's text does not hold for it; nothing in it is a placeholder."""
    return " ".join(str(row.get(column) or "").split())


def _states(row: Mapping[str, Any], column: str, given: Sequence[Mapping[str, str]]) -> Sequence[Mapping[str, str]]:
    """A row may name its own states, as a list of texts, where the rule's do not hold for all of its rows."""
    own = row.get(column)
    if own is None:
        return given
    unknown = [state for state in own if state not in STATES]
    if unknown:
        raise RuleError(f"{column}: unknown states {unknown}")
    return [{"state": state} for state in own]


def _check_rows(rule: Rule, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises RuleError for rows that could not be recorded or would be left out without a word."""
    for row in rows:
        if rule.scope == "process" and "proc_id" not in row:
            raise RuleError("rows have no proc_id; a rule of scope process says whose each row is")
        for column in ("artifact_id", "row", "proc_id", "rank", "step", "ts_ns", "line", "byte", "device"):
            value = row.get(column)
            if value is not None and (not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63):
                raise RuleError(f"{column} is {value!r}; expected an integer of 64 bits")


def _call(variant: Variant, question: Question) -> Iterable[Mapping[str, Any]]:
    if variant.function is None:
        raise RuleError(f"variant {variant.name} has neither SQL nor a function")
    return variant.function(question)


_NOT_FACTS = {
    "artifact_id",
    "table",
    "causes",
    "requires",
    "row",
    "proc_id",
    "line",
    "byte",
    "evidence",
    "severity",
    "strength",
    "role",
    "fix",
    "proves",
    "cannot_prove",
    "key",
    "text",
    "note",
}


def _evidence(row: Mapping[str, Any], citations: Citations) -> list[Evidence]:
    places = [row, *(row.get("evidence") or [])]
    cited: list[Evidence] = []
    for n, place in enumerate(places[:50]):
        evidence = citations.cite(place)
        call = citations.cite_call(place, evidence) if evidence and n == 0 else None
        cited += [e for e in (evidence, call) if e and all(e.label() != other.label() for other in cited)]
    return cited


def _fingerprint(finding: Finding, row: Mapping[str, Any]) -> str:
    """Rule, rank, step and the decisive words: equal over re-runs of the analysis and over renamed files."""
    words = str(row.get("key") or re.sub(r"[\d.]+", "#", finding.message))
    text = f"{finding.rule}\0{finding.attempt}\0{finding.rank}\0{finding.step}\0{words}"
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=12).hexdigest()
