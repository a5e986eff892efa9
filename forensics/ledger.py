"""Between the case and the diagnosis: reads what the verdict needs beside findings, and records what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from forensics.case import MEMORY_LIMIT, arrow_type, case_columns, connect
from forensics.diagnosis import Crash, Exit, Outcome, not_checked_rules
from forensics.engine import Contrary, Judgement, RuleRun
from forensics.finding import NotChecked, RuledOut
from forensics.models.testimony import quoting_artifacts
from forensics.report.text import one_line
from forensics.rule import Rule, alternatives
from forensics.states import CAPABILITIES, SETTLED_BY, STRENGTHS


def read_outcome(con: duckdb.DuckDBPyConnection) -> Outcome:
    """What the evidence says of the end: completion of the last attempt, and failures that nothing shows survived."""
    rows = con.execute(
        """
        SELECT o.result, o.strength, o.artifact_id, o.line, o.detail, coalesce(a.path, ''), p.rank,
            o.attempt = max(o.attempt) OVER (), o.attempt
        FROM outcome AS o
        LEFT JOIN artifact AS a ON a.id = o.artifact_id
        LEFT JOIN proc AS p ON p.id = o.proc_id
        ORDER BY o.attempt, o.artifact_id, o.line, o.result, o.detail
        """
    ).fetchall()
    quoting = quoting_artifacts(con)
    rows = [r for r in rows if r[2] not in quoting]
    exits = [Exit(r[0] == "completed", r[5].rpartition("/")[0], r[6]) for r in rows if r[1] == "proof"]
    lines = {r[2]: r[3] for r in rows if r[0] == "completed" and r[2] is not None and r[3] is not None}
    last_words = set(con.execute("SELECT artifact_id, line FROM fact WHERE key = 'ends_in'").fetchall())
    known = Outcome(None, None, exits, lines, _last_attempt(con), quoting, last_words, _crashes(con))
    failed = [r for r in rows if r[0] == "failed" and not known.is_superseded(r[8])]
    failed = [r for r in failed if r[1] == "proof" or not known.survived(r[2], r[5], r[3], r[6])]
    last_failed = {r[2]: r[3] or 0 for r in failed if r[2] is not None}
    completed = [
        r for r in rows if r[0] == "completed" and r[7] and (r[1] == "proof" or last_failed.get(r[2], -1) < (r[3] or 0))
    ]
    machine_logs = _machine_logs(con)
    if completed and all(r[2] in machine_logs for r in failed):
        known, failed = replace(known, machine_logs=machine_logs), []
    return replace(known, completed=_words(completed), failed=_words(failed), handled=_handled(con, quoting))


def _machine_logs(con: duckdb.DuckDBPyConnection) -> frozenset[int]:
    """Logs in which the kernel or a driver alone speaks, of any process of the machine, and names none of the job's."""
    rows = con.execute(
        """
        SELECT artifact_id FROM log WHERE role <> 'noise' GROUP BY artifact_id
        HAVING bool_and(
            source IN ('kernel', 'driver')
            AND coalesce(fields ->> 'pid' NOT IN (SELECT CAST(pid AS VARCHAR) FROM proc WHERE pid IS NOT NULL), true)
        )
        """
    ).fetchall()
    return frozenset(row[0] for row in rows)


def _handled(con: duckdb.DuckDBPyConnection, quoting: Set[int]) -> str | None:
    """Errors that a log of the job calls caught; a message that two catalogue entries name counts once."""
    row = con.execute(
        """
        SELECT count(DISTINCT (e.artifact_id, e.line)), min_by((split_part(e.message, chr(10), 1), a.path, e.line),
            (e.ts_ns IS NULL, e.ts_ns, e.artifact_id, e.row))
        FROM log AS e JOIN artifact AS a ON a.id = e.artifact_id
        WHERE e.fields ->> 'handled' = 'true' AND e.class <> 'exception.warning'
          AND NOT list_contains(?::INTEGER[], e.artifact_id)
        """,
        [sorted(quoting)],
    ).fetchone()
    if row is None or not row[0]:
        return None
    n, (message, path, line) = row
    return f'{"an error" if n == 1 else f"{n:,} errors, first"}, "{one_line(message, 160)}" ({path}:{line})'


def _crashes(con: duckdb.DuckDBPyConnection) -> list[Crash]:
    """Errors that are no other's echo and in which a log, or a stream of errors, ends."""
    rows = con.execute(
        """
        SELECT f.artifact_id, f.line, a.path,
            error_text(e.exception, briefly(split_part(e.message, chr(10), 1), 160)),
            (
                SELECT list(DISTINCT [s.artifact_id, s.line] ORDER BY [s.artifact_id, s.line]) FROM log_event AS s
                WHERE s.proc_id IS NOT DISTINCT FROM e.proc_id AND s.line IS NOT NULL
                  AND s.class IN (
                      SELECT said.class FROM log AS said
                      WHERE said.artifact_id = e.artifact_id
                        AND (said.line = e.line OR (said.line < e.line AND said.exception = e.fields ->> 'after'))
                  )
            )
        FROM fact AS f
        JOIN artifact AS a ON a.id = f.artifact_id
        JOIN log AS e ON e.artifact_id = f.artifact_id AND e.line = f.line AND e.exception = f.value
        WHERE f.key IN ('ends_in', 'errors_end_in') AND e.role = 'primary'
          AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
        ORDER BY e.ts_ns NULLS LAST, f.artifact_id, f.line, e.row
        """
    ).fetchall()
    return [Crash(aid, line, path, text, frozenset(map(tuple, alike or ()))) for aid, line, path, text, alike in rows]


def _last_attempt(con: duckdb.DuckDBPyConnection) -> int | None:
    """The attempt that decides; None where there is one only, or where names only number runs."""
    row = con.execute(
        "SELECT CASE WHEN count(DISTINCT attempt) > 1 AND count(*) FILTER (WHERE attempt_origin = 'run') = 0"
        " THEN max(attempt) END FROM proc"
    ).fetchone()
    return row[0] if row else None


def _words(rows: Sequence[Sequence[Any]]) -> str | None:
    """The strongest of these statements, with its place."""
    best = min(rows, key=lambda r: STRENGTHS.index(r[1]), default=None)
    if best is None:
        return None
    where = f" ({best[5]}:{best[3]})" if best[5] and best[3] else f" ({best[5]})" if best[5] else ""
    return f"{best[4]}{where}"


_MAX_SAID = 2  # processes of which it is said what speaks against a fault


def ruled_out(judgement: Judgement, rules: Sequence[Rule]) -> list[RuledOut]:
    """Rules whose strongest variant ran and found nothing, those against which rows speak first.

    For how many of the processes it could is said.
    """
    known = {rule.id: rule for rule in rules}
    found = {run.rule for run in judgement.runs if run.outcome == "found"}
    n_runs = Counter(run.rule for run in judgement.runs)
    silent: dict[str, list[RuleRun]] = {}
    for run in judgement.runs:
        if _is_answered(run, known[run.rule], judgement) and run.rule not in found:
            silent.setdefault(run.rule, []).append(run)
    out = []
    for rule, runs in silent.items():
        n_all = n_runs[rule]
        scope = "" if n_all == len(runs) else f" ({len(runs)} of {n_all} processes left such evidence)"
        told = [
            one for one in judgement.against.get(rule, ()) if one.evidence and any(_is_of(one, run) for run in runs)
        ]
        says = _said_against(told) or _without_sign(runs[0], known[rule])
        places = [place for one in told for place in one.evidence]
        out.append(RuledOut(rule, known[rule].title, runs[0].variant or "", f"{says}{scope}.", places))
    return sorted(out, key=lambda one: not one.evidence)


def _said_against(told: Sequence[Contrary]) -> str:
    """What the rows say, rank by rank where it is not the same of all."""
    if len({one.says for one in told}) == 1:
        return told[0].says
    return "; ".join(one.says if one.rank is None else f"Rank {one.rank}: {one.says}" for one in told[:_MAX_SAID])


def _without_sign(run: RuleRun, rule: Rule) -> str:
    needs = next(variant.needs for variant in rule.variants if variant.name == run.variant)
    read = [CAPABILITIES[name].meaning for need in needs for name in alternatives(need)[:1]]
    return f"No sign in: {'; '.join(dict.fromkeys(read))}"


def _is_of(told: Contrary, run: RuleRun) -> bool:
    return told.variant == run.variant and (told.proc_id is None or run.proc_id in {None, told.proc_id})


def _is_answered(run: RuleRun, rule: Rule, judgement: Judgement) -> bool:
    """Silence of anything weaker than the best that a rule can ask is no answer; rows that speak against it are."""
    if run.outcome != "nothing-found":
        return False
    if run.strength != STRENGTHS[-1] and any(_is_of(one, run) for one in judgement.against.get(run.rule, ())):
        return True
    best = rule.variants[0]
    asked = {need for variant in rule.variants if variant.name == run.variant for need in variant.needs}
    return run.variant == best.name or (run.strength != STRENGTHS[-1] and set(best.needs) <= asked)


def not_checked(con: duckdb.DuckDBPyConnection, judgement: Judgement, rules: Sequence[Rule]) -> list[NotChecked]:
    """What could not be asked, most relevant first, and the evidence that would have let it.

    First what would tell the cause of symptoms at hand, then rules that ran for no process or only as an indication
    that found nothing, those that share a missing capability together, the largest group first.
    """
    known = {rule.id: rule for rule in rules}
    covered = {row[0] for row in con.execute("SELECT DISTINCT capability FROM coverage").fetchall()}
    settled = {
        run.rule for run in judgement.runs if run.outcome == "found" or _is_answered(run, known[run.rule], judgement)
    }
    missing: dict[str, str] = {}
    failed: dict[str, tuple[str, str]] = {}
    for run in judgement.runs:
        if run.outcome == "out-of-time":
            failed.setdefault(run.rule, ("time-limit", f"not asked to the end: {run.reason}"))
        elif run.outcome == "failed":
            failed.setdefault(run.rule, ("rule-fault", f"the rule itself failed: {run.reason}"))
        elif run.rule not in settled and run.rule not in missing:
            missing[run.rule] = run.missing or _best_need(known[run.rule], run.variant)
    needs = Counter(missing.values())
    ranked = sorted(missing.items(), key=lambda item: (-needs[item[1]], item[1], item[0]))
    wanted = [*_wanted_by_symptoms(judgement, covered), *((r, n) for r, n in ranked if r not in failed)]
    faults = [NotChecked(r, known[r].title, code, why, "") for r, (code, why) in failed.items()]
    return [*not_checked_rules([(rule, known[rule].title, need) for rule, need in wanted]), *faults]


def _wanted_by_symptoms(judgement: Judgement, covered: set[str]) -> list[tuple[str, str]]:
    """(rule, capability) of evidence that is absent and would tell what the symptoms found are consequences of."""
    wanted = [
        (finding.rule, need)
        for finding in judgement.findings
        if finding.role == "symptom"
        for state in finding.requires
        for need in SETTLED_BY.get(state["state"], ())
        if need not in covered
    ]
    return list(dict.fromkeys(wanted))


def _best_need(rule: Rule, ran: str | None) -> str:
    """A capability that the strongest variant needs and the one that ran does not."""
    had = {need for variant in rule.variants if variant.name == ran for need in variant.needs}
    wanted = [need for variant in rule.variants for need in variant.needs if need not in had]
    return wanted[0] if wanted else rule.variants[0].needs[0]


@lru_cache(maxsize=1)
def calibration() -> dict[str, Any]:
    """calibration.json: how often root causes of each grade were right on labelled cases, and on how many."""
    measured: dict[str, Any] = orjson.loads(Path(__file__).with_name("calibration.json").read_bytes())
    return measured


def record(path: Path, judgement: Judgement) -> None:
    """Writes findings and rule runs into the case."""
    con = connect(path, memory_limit=MEMORY_LIMIT)
    try:
        con.execute("BEGIN")
        for f in judgement.findings:
            con.execute(
                f"INSERT INTO finding VALUES ({', '.join('?' * 18)})",
                [
                    f.id,
                    f.rule,
                    f.variant,
                    f.severity,
                    f.strength,
                    f.confidence,
                    f.attempt,
                    f.proc_id,
                    f.rank,
                    f.step,
                    f.ts_ns,
                    f.message,
                    orjson.dumps([dict(c) for c in f.causes]).decode(),
                    orjson.dumps([dict(r) for r in f.requires]).decode(),
                    f.explained_by,
                    orjson.dumps([e.position() for e in f.evidence]).decode(),
                    orjson.dumps(f.facts, default=str).decode(),
                    f.fingerprint,
                ],
            )
        if judgement.runs:
            kinds = case_columns()["rule_run"]
            columns = zip(
                *((r.rule, r.variant, r.proc_id, r.outcome, r.reason, r.missing, r.n_findings) for r in judgement.runs),
                strict=True,
            )
            given = pa.table(
                {
                    name: pa.array(column, arrow_type(kind))
                    for (name, kind), column in zip(kinds.items(), columns, strict=True)
                }
            )
            con.register("given_runs", given)
            con.execute("INSERT INTO rule_run SELECT * FROM given_runs")
            con.unregister("given_runs")
        con.execute("COMMIT")
    finally:
        con.close()
