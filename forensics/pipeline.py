"""The whole analysis on one page: discover → ingest → derive → judge → diagnose → report."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forensics import briefing, diagnosis, document, ledger
from forensics.assembly import assemble_case
from forensics.case import first_case_aside, open_for_rules
from forensics.children import Children
from forensics.citations import Citations
from forensics.configuration import Configuration, set_aside
from forensics.deadline import Deadline
from forensics.discovery import check_there, discover
from forensics.earliest import earliest_anomaly
from forensics.engine import Judgement, judge
from forensics.errors import ForensicsError
from forensics.finding import Finding, Verdict
from forensics.ingest import Loaded, ingest, remove_unfinished
from forensics.leftovers import remove_leftovers, temporary_folder
from forensics.library import load_rules, load_views
from forensics.loading import no_space
from forensics.memory import parse_size, usable_bytes
from forensics.rarity import rarest_line
from forensics.report.html import render_html
from forensics.report.view import Report
from forensics.reviews import read_reviews, with_reviews

# Shares of --max-seconds after which loading and the building of the case stop, so that what is known is judged too.
_INGEST_SHARE, _ASSEMBLY_SHARE = 0.6, 0.85

_BUILDING, _WORKING = ".building-", "forensics-work-"  # folders of a run, in its results and for temporary files


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
        if self.memory_limit is not None and parse_size(self.memory_limit) is None:
            raise ForensicsError(f"memory-limit: {self.memory_limit!r}; expected a size such as 500MB or 4GB")


@dataclass(frozen=True)
class Analysis:
    verdict: Verdict
    findings: Sequence[Finding]
    report: Report
    out: Path
    n_parsed: int  # artifacts that were parsed, not taken from the cache
    n_unread: int = 0  # artifacts, where none of them gave anything
    unread: str = ""  # why they gave nothing, in a sentence


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
    deadline = Deadline(chosen.max_seconds)
    path, out = Path(path), Path(out) if out is not None else default_out(Path(path))
    check_there(path)
    rules, views = load_rules(chosen.rules, chosen.configuration.thresholds), load_views(chosen.rules)
    if out.resolve() == path.resolve():
        raise ForensicsError(f"{out}: is the analyzed folder itself; expected another place for the results")
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(_BUILDING, out)
    remove_leftovers(_WORKING)
    # The case is built beside its place and renamed: readers never meet a writer, and a kill leaves the old one.
    place, work = temporary_folder(_BUILDING, out), temporary_folder(_WORKING)
    building = place / "case.duckdb"
    try:
        with first_case_aside(place):
            loaded = _load(path, work, out, chosen, deadline.share(_INGEST_SHARE), on_progress)
        on_progress("derive", 0, 1, "case.duckdb")
        missing = assemble_case(
            loaded,
            building,
            threads=chosen.threads,
            memory_limit=chosen.memory_limit,
            deadline=deadline.share(_ASSEMBLY_SHARE),
        )
        remove_unfinished(loaded)
        on_progress("judge", 0, len(rules), f"{len(rules)} rules")
        con = open_for_rules(building, chosen.memory_limit)
        try:
            sources = [item.found.source for item in loaded]
            citations = Citations(con, sources)
            # Silence over a part of the case is no answer.
            judgement = judge(con, rules, views, citations, deadline=Deadline(0) if missing else deadline)
            set_aside(judgement, chosen.configuration.suppressions, datetime.date.today())
            outcome, earliest = ledger.read_outcome(con), earliest_anomaly(con, citations)
            if earliest is None and outcome.failed and not judgement.findings:
                earliest = rarest_line(con, sources, citations)
            verdict = diagnosis.diagnose(
                judgement.findings,
                outcome,
                ruled_out=ledger.ruled_out(judgement, rules),
                not_checked=ledger.not_checked(con, judgement, rules),
                earliest=earliest,
                confidence=ledger.calibration()["root_cause_is_right"],
                unlisted=judgement.n_unlisted,
            )
            cut = _cut_off(chosen.max_seconds, loaded, missing, judgement)
            report = briefing.brief(con, job_name(path), verdict, judgement, rules, citations, cut)
            report = with_reviews(report, read_reviews(out))
        finally:
            con.close()
        ledger.record(building, judgement)
        (place / "report.json").write_bytes(document.to_json(verdict, judgement, report))
        (place / "report.html").write_bytes(render_html(report).encode("utf-8", "replace"))
        for name in ("case.duckdb", "report.json", "report.html"):  # only when all of them are whole
            (place / name).replace(out / name)
    except Exception as error:
        if full := no_space(error):
            raise ForensicsError(f"{out}: {full}; expected room for the case; free some or change --out") from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(place, ignore_errors=True)
    return _finished(verdict, judgement, report, out, loaded)


def _load(
    path: Path,
    work: Path,
    out: Path,
    chosen: Settings,
    deadline: Deadline,
    on_progress: Callable[[str, int, int, str], None],
) -> list[Loaded]:
    """Every artifact below `path`, loaded in child processes, which end with this call."""
    memory_bytes = parse_size(chosen.memory_limit) if chosen.memory_limit else None
    cache = chosen.cache or out / "cache"
    with Children(chosen.threads, memory_bytes or usable_bytes(), work) as children:
        on_progress("discover", 0, 1, str(path))
        return ingest(
            discover(path, work, leave_out=(out, cache), deadline=deadline),
            cache,
            children=children,
            deadline=deadline,
            on_artifact=lambda done, total, name: on_progress("ingest", done, total, name),
        )


def _cut_off(seconds: float | None, loaded: Sequence[Loaded], missing: Sequence[str], judgement: Judgement) -> str:
    """What the time limit kept from being done, in a sentence; empty when it was not reached."""
    codes = [{w["code"] for w in item.meta["warnings"]} for item in loaded]
    late = [item for item, said in zip(loaded, codes, strict=True) if "time-limit" in said]
    n_absent = sum(item.folder is None for item in late)
    unasked = {run.rule for run in judgement.runs if run.outcome == "out-of-time"}
    parts = [
        f"{n_absent} of {len(loaded)} artifacts were not loaded" if n_absent else "",
        f"{len(late) - n_absent} only in part" if len(late) > n_absent else "",
        f"{', '.join(missing)} did not reach the case" if missing else "",
        f"{len(unasked)} rules were not asked" if unasked else "",
    ]
    said = "; ".join(part for part in parts if part)
    return f"The time limit of {seconds:g} s was reached: {said}." if said else ""


def _finished(verdict: Verdict, judgement: Judgement, report: Report, out: Path, loaded: Sequence[Loaded]) -> Analysis:
    parsed = sum(1 for item in loaded if item.folder is not None and not item.reused)
    said_something = any(item.tables() or item.meta["coverage"] or item.meta["facts"] for item in loaded)
    n_unread = 0 if said_something else len(loaded)
    return Analysis(verdict, judgement.findings, report, out, parsed, n_unread, _unread(loaded) if n_unread else "")


def _unread(loaded: Sequence[Loaded]) -> str:
    """Why artifacts, none of which gave anything, gave nothing: they could not be read, or time or evidence lacked."""
    n_late = sum(any(w["code"] == "time-limit" for w in item.meta["warnings"]) for item in loaded)
    n_bad = sum(item.meta["quality"] in {"failed", "partial"} for item in loaded) - n_late
    n_read = len(loaded) - n_late - n_bad
    parts = [
        f"none of {n_bad} artifacts could be read"
        if n_bad == len(loaded)
        else f"{n_bad} could not be read" * bool(n_bad),
        f"{n_late} not read before the time limit" if n_late else "",
        f"{n_read} could be read and hold nothing that is recognised" if n_read else "",
    ]
    said = ", ".join(part for part in parts if part)
    return said if n_bad == len(loaded) else f"none of {len(loaded)} artifacts told anything: {said}"
