"""The whole analysis on one page: discover → ingest → derive → judge → diagnose → report."""

from __future__ import annotations

import datetime
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forensics import briefing, diagnosis, document, ledger
from forensics.assembly import assemble_case
from forensics.case import open_for_rules
from forensics.citations import Citations
from forensics.configuration import Configuration, set_aside
from forensics.discovery import discover
from forensics.engine import Judgement, judge
from forensics.errors import ForensicsError
from forensics.finding import Finding, Verdict
from forensics.ingest import Loaded, ingest, remove_leftovers
from forensics.library import load_rules, load_views
from forensics.report.html import render_html
from forensics.report.view import Report

_SIZE = re.compile(r"[1-9][0-9]*(?:\.[0-9]+)?\s?[KMGT]i?B", re.IGNORECASE)


@dataclass(frozen=True)
class Settings:
    """What a user may choose. `rules`: folders of site rules; `configuration`: thresholds and suppressions."""

    rules: Sequence[Path] = ()
    configuration: Configuration = field(default_factory=Configuration)
    cache: Path | None = None
    threads: int = 2
    memory_limit: str | None = None
    max_seconds: float | None = None

    def check(self) -> None:
        """Raises ForensicsError for a bound that makes no sense, before any work is done."""
        if self.threads < 1:
            raise ForensicsError(f"threads: {self.threads}; expected at least 1")
        if self.max_seconds is not None and not self.max_seconds >= 0:
            raise ForensicsError(f"max-seconds: {self.max_seconds}; expected 0 or more")
        if self.memory_limit is not None and not _SIZE.fullmatch(self.memory_limit):
            raise ForensicsError(f"memory-limit: {self.memory_limit!r}; expected a size such as 500MB or 4GB")


@dataclass(frozen=True)
class Analysis:
    verdict: Verdict
    findings: Sequence[Finding]
    report: Report
    out: Path
    n_parsed: int  # artifacts that were parsed, not taken from the cache


def default_out(path: Path) -> Path:
    """NAME.forensics in the current folder, where NAME is that of the analyzed folder, file or archive."""
    return Path(f"{path.resolve().name or 'artifacts'}.forensics")


def job_name(path: Path) -> str:
    """What a report calls the job: the folder's name, with its parent's where it is only called "artifacts"."""
    real = path.resolve()
    return real.parent.name if real.name == "artifacts" and real.parent.name else real.name


def analyze(
    path: str | Path,
    out: str | Path | None = None,
    *,
    settings: Settings | None = None,
    on_progress: Callable[[str, int, int, str], None] = lambda *_: None,
) -> Analysis:
    """Analyzes a folder, file or archive; writes case.duckdb, report.json and report.html into `out`.

    `on_progress(stage, done, total, what)` is called as work goes on. Raises ForensicsError when `path` does not
    exist, a rule file is malformed, or `out` cannot be written; never for what is wrong inside artifacts.
    """
    chosen = settings or Settings()
    chosen.check()
    budget = ledger.Budget(chosen.max_seconds)
    path, out = Path(path), Path(out) if out is not None else default_out(Path(path))
    rules, views = load_rules(chosen.rules, chosen.configuration.thresholds), load_views(chosen.rules)
    if out.resolve() == path.resolve():
        raise ForensicsError(f"{out}: is the analyzed folder itself; expected another place for the results")
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(out, ".building-*")
    # The case is built beside its place and renamed: readers never meet a writer, and a kill leaves the old one.
    place, work = Path(tempfile.mkdtemp(prefix=".building-", dir=out)), Path(tempfile.mkdtemp(prefix="forensics-"))
    building = place / "case.duckdb"
    try:
        on_progress("discover", 0, 1, str(path))
        found = discover(path, work, outputs=out)
        loaded = ingest(
            found,
            chosen.cache or out / "cache",
            expired=budget.expired,
            on_artifact=lambda done, total, name: on_progress("ingest", done, total, name),
        )
        on_progress("derive", 0, 1, "case.duckdb")
        assemble_case(loaded, building, threads=chosen.threads, memory_limit=chosen.memory_limit)
        on_progress("judge", 0, len(rules), f"{len(rules)} rules")
        con = open_for_rules(building, chosen.memory_limit)
        try:
            citations = Citations(con, [item.found.source for item in loaded])
            judgement = judge(con, rules, views, citations, expired=budget.expired)
            set_aside(judgement, chosen.configuration.suppressions, datetime.date.today())
            verdict = diagnosis.diagnose(
                judgement.findings,
                ledger.read_outcome(con),
                ruled_out=ledger.ruled_out(judgement, rules),
                not_checked=ledger.not_checked(con, judgement, rules),
                earliest=ledger.earliest_anomaly(con, citations),
                confidence=ledger.calibration()["root_cause_is_right"],
            )
            report = briefing.brief(con, job_name(path), verdict, judgement, rules, citations)
        finally:
            con.close()
        ledger.record(building, judgement)
        building.replace(out / "case.duckdb")
        for name, content in (
            ("report.json", document.to_json(verdict, judgement, report)),
            ("report.html", render_html(report).encode("utf-8", "replace")),
        ):
            (place / name).write_bytes(content)
            (place / name).replace(out / name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    return _finished(verdict, judgement, report, out, loaded)


def _finished(verdict: Verdict, judgement: Judgement, report: Report, out: Path, loaded: Sequence[Loaded]) -> Analysis:
    parsed = sum(1 for item in loaded if item.folder is not None and not item.reused)
    return Analysis(verdict, judgement.findings, report, out, parsed)
