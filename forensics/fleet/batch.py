"""A batch on one page: find jobs → leave out what still stands → analyze the others → pack rows → pages and metrics."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forensics.configuration import Configuration, read_configuration
from forensics.errors import ForensicsError
from forensics.fleet.drift import write_drift
from forensics.fleet.editions import edition as edition_of
from forensics.fleet.engines import run_orders
from forensics.fleet.job_runner import SCRATCH, Order, Result, stop_all
from forensics.fleet.jobs import Found, Job, chosen, find_jobs
from forensics.fleet.journal import ANALYZED, NOT_ANALYZED, Journal, Memory
from forensics.fleet.layout import Fleet
from forensics.fleet.lock import locked
from forensics.fleet.pages import write_pages
from forensics.fleet.publish import check_webhook, payload, send, write_metrics
from forensics.fleet.rows import write_row
from forensics.fleet.schedulers import RUNNING, read_pods, read_sacct
from forensics.fleet.warehouse import open_fleet, pack
from forensics.leftovers import remove_leftovers
from forensics.library import load_rules
from forensics.memory import parse_size

_MOST_OPEN = 3  # starts without an end, after which a job is put aside
_KEEPS = ("report", "case", "cache")


@dataclass(frozen=True)
class Plan:
    """What a user may choose; see `forensics batch --help`."""

    roots: Sequence[str] = ()
    listed: Path | None = None
    sacct: Sequence[Path] = ()
    pods: Sequence[Path] = ()
    every: bool = False
    engine: str = "local"
    workers: int = 0
    seconds: float | None = 900.0
    memory_limit: str | None = "4GB"
    disk_budget: str = "20GB"
    rules: Sequence[Path] = ()
    configuration: Path | None = None
    keep: str = "case"
    retry: bool = False
    wait_seconds: float = 0.0
    webhook: str = ""  # where to tell of new incidents; empty: nowhere
    site: str = ""  # address at which the fleet's pages are served, for links

    def check(self) -> None:
        if not self.roots and self.listed is None:
            raise ForensicsError("batch: nothing to look at; expected a folder or URL with jobs, or --jobs FILE")
        for name, size in (("memory-limit", self.memory_limit), ("disk-budget", self.disk_budget)):
            if size is not None and parse_size(size) is None:
                raise ForensicsError(f"{name}: {size!r}; expected a size such as 500MB or 4GB")
        if self.seconds is not None and not self.seconds > 0:
            raise ForensicsError(f"max-seconds: {self.seconds}; expected more than 0")
        if self.workers < 0:
            raise ForensicsError(f"workers: {self.workers}; expected at least 1, or 0 for one per core")
        if self.webhook:
            check_webhook(self.webhook)
        if self.keep not in _KEEPS:
            raise ForensicsError(f"keep: {self.keep!r}; expected {', '.join(_KEEPS)}")
        chosen = read_configuration(self.configuration) if self.configuration else Configuration()
        load_rules(self.rules, chosen.thresholds)  # what is wrong with these is no job's fault

    def n_workers(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))

    def bounds(self) -> str:
        return f"{self.seconds} s, {self.memory_limit}, {self.disk_budget}"


@dataclass
class Outcome:
    """What a batch did. `put_aside`: (job, reason) of those that could not be analyzed, earlier ones included."""

    run: int = 0
    n_found: int = 0
    n_completed: int = 0  # left out: they ended well by their exit state
    n_running: int = 0  # left out too
    n_standing: int = 0  # nothing changed
    n_unchanged: int = 0  # touched, but with the content of before
    n_analyzed: int = 0
    n_without: int = 0  # jobs of a scheduler without a file
    n_loose: int = 0
    put_aside: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    webhook_fault: str = ""


def run_batch(folder: Path, plan: Plan, on_result: Callable[[int, int, Result], None] = lambda *_: None) -> Outcome:
    """Analyzes what is new or changed below the roots into the fleet at `folder`.

    Raises ForensicsError for a plan that makes no sense, roots that cannot be listed, and Busy (a ForensicsError) where
    another batch is at work there; never for what happens to a job.
    """
    plan.check()
    start = time.monotonic()
    fleet = Fleet(folder.absolute())
    fleet.create()
    with locked(fleet.lock, wait_seconds=plan.wait_seconds):
        _remove_unfinished(fleet)
        remove_leftovers(SCRATCH)
        said = [one for path in plan.sacct for one in read_sacct(path)]
        said += [one for path in plan.pods for one in read_pods(path)]
        found = find_jobs(plan.roots, plan.listed, said, leave_out=fleet.folder)
        jobs = chosen(found.jobs, every=plan.every)
        outcome = _counted(found, jobs)
        program = edition_of(plan.rules, plan.configuration)
        with Journal(fleet.journal) as journal:
            outcome.run = journal.begin_run(program, time.time_ns())
            _Work(fleet, plan, journal, program, outcome, on_result).do(jobs)
        _finish(fleet, plan, program, outcome, start)
    return outcome


def _counted(found: Found, wanted: Sequence[Job]) -> Outcome:
    outcome = Outcome(n_found=len(found.jobs), n_without=len(found.without), n_loose=len(found.loose))
    outcome.n_running = sum(job.state == RUNNING for job in found.jobs)
    outcome.n_completed = len(found.jobs) - len(wanted) - outcome.n_running
    return outcome


@dataclass
class _Work:
    fleet: Fleet
    plan: Plan
    journal: Journal
    program: str
    outcome: Outcome
    on_result: Callable[[int, int, Result], None]

    def do(self, jobs: Sequence[Job]) -> None:
        todo: list[Job] = []
        suspects: list[Job] = []
        for job in jobs:
            memory = self.journal.jobs.get(job.key, Memory())
            if self._stands(job, memory):
                self.outcome.n_standing += 1
                if memory.status == NOT_ANALYZED:
                    self.outcome.put_aside.append((job.name, memory.reason))
            elif memory.n_open >= _MOST_OPEN and not self.plan.retry:
                self._put_aside(job, f"{memory.n_open} batches ended while it was analyzed")
            else:
                (suspects if memory.n_open else todo).append(job)
        crashed = self._analyze(todo, self.plan.n_workers())
        # Alone, so that what they do to this process is theirs.
        self._analyze(suspects, 1)
        self._analyze(crashed, 1, last=True)

    def _stands(self, job: Job, memory: Memory) -> bool:
        if memory.n_open or memory.stamp != _stamp(job) or memory.edition != self.program:
            return False
        if memory.status == NOT_ANALYZED:
            return memory.bounds == self.plan.bounds() and not self.plan.retry
        return memory.status == ANALYZED

    def _analyze(self, jobs: Sequence[Job], workers: int, *, last: bool = False) -> list[Job]:
        """Those that crashed their process are returned, to be tried once more, unless this was the `last` time."""
        by_key, again, n_done = {job.key: job for job in jobs}, [], 0
        running: set[str] = set()

        def start(order: Order) -> None:
            running.add(order.key)
            self.journal.start(order.key)

        results: Iterator[Result] = run_orders((self._order(j) for j in jobs), self.plan.engine, workers, start)
        try:
            for result in results:
                job = by_key[result.key]
                running.discard(job.key)
                n_done += 1
                if result.crashed and not last:
                    again.append(job)
                    continue
                self._take(job, result)
                self.on_result(n_done, len(jobs), result)
        except BaseException:  # Ctrl-C, SIGTERM, or a full disk: nothing that a job did
            stop_all()
            for key in running:
                self.journal.withdraw(key)
            raise
        return again

    def _order(self, job: Job) -> Order:
        memory = self.journal.jobs.get(job.key, Memory())
        same = memory.status == ANALYZED and memory.edition == self.program
        told_same = memory.stamp.partition(".")[2] == _stamp(job).partition(".")[2]
        return Order(
            fleet=str(self.fleet.folder),
            key=job.key,
            root=job.root,
            place=job.place,
            gathered=job.gathered,
            files=[(entry.name, entry.bytes) for entry in job.files],
            job=_columns(job),
            edition=self.program,
            run=self.outcome.run,
            content=memory.content,
            since=memory.since,
            stands=same and told_same,
            rules=[str(folder.absolute()) for folder in self.plan.rules],
            configuration=str(self.plan.configuration.absolute()) if self.plan.configuration else "",
            keep=self.plan.keep,
            seconds=self.plan.seconds,
            memory_limit=self.plan.memory_limit,
            disk_bytes=(parse_size(self.plan.disk_budget) or 0) // self.plan.n_workers(),
            modified_ns=max((entry.modified_ns for entry in job.files), default=0),
        )

    def _take(self, job: Job, result: Result) -> None:
        if result.status == NOT_ANALYZED:
            self._put_aside(job, result.reason)
            return
        known = self.journal.jobs.get(job.key, Memory())
        self.journal.end(
            job.key,
            status=ANALYZED,
            stamp=_stamp(job),
            content=result.content,
            edition=self.program,
            bounds=self.plan.bounds(),
            reason="",
            since=result.since or known.since or self.outcome.run,
        )
        if result.status == "unchanged":
            self.outcome.n_unchanged += 1
        else:
            self.outcome.n_analyzed += 1

    def _put_aside(self, job: Job, reason: str) -> None:
        row = {
            **_columns(job),
            "run": self.outcome.run,
            "status": NOT_ANALYZED,
            "reason": reason,
            "edition": self.program,
            "analyzed_ns": time.time_ns(),
            "ended_ns": _columns(job)["ended_ns"] or max((e.modified_ns for e in job.files), default=0) or None,
        }
        write_row(self.fleet.row(job.key), row)
        self.journal.end(
            job.key,
            status=NOT_ANALYZED,
            stamp=_stamp(job),
            content="",
            edition=self.program,
            bounds=self.plan.bounds(),
            reason=reason,
            since=self.outcome.run,
        )
        self.outcome.put_aside.append((job.name, reason))


def _stamp(job: Job) -> str:
    """FILES.SAID: changes with the files, or with what is said of the job."""
    said = hashlib.blake2b(repr(_columns(job)).encode("utf-8", "replace"), digest_size=6).hexdigest()
    return f"{job.stamp()}.{said}"


def _columns(job: Job) -> dict[str, Any]:
    """Columns of the job's row that are known before it is analyzed."""
    said = job.said
    elapsed = said.elapsed_s if said else None
    known_hours = said is not None and elapsed is not None and bool(said.n_gpus)
    return {
        "job": job.key,
        "name": job.name,
        "series": job.series,
        "place": job.place,
        "state": job.state,
        "state_origin": said.origin if said else job.why,
        "scheduler_id": said.id if said else None,
        "started_ns": said.started_ns if said else None,
        "ended_ns": said.ended_ns if said else None,
        "elapsed_s": elapsed,
        "n_gpus": said.n_gpus if said else None,
        "gpu_hours": elapsed * said.n_gpus / 3600 if known_hours and said and said.n_gpus and elapsed else None,
        "gpu_hours_origin": said.origin if known_hours and said else None,
        "bytes": job.bytes,
    }


def _remove_unfinished(fleet: Fleet) -> None:
    for folder in (fleet.rows, fleet.packed, fleet.folder):
        for path in folder.glob(".*.new"):
            path.unlink(missing_ok=True)


def _finish(fleet: Fleet, plan: Plan, program: str, outcome: Outcome, start: float) -> None:
    pack(fleet)
    with closing(open_fleet(fleet)) as con:
        write_drift(fleet, con)
    counts = {
        "run": outcome.run,
        "n_found": outcome.n_found,
        "n_analyzed": outcome.n_analyzed,
        "n_not_analyzed": len(outcome.put_aside),
        "n_completed": outcome.n_completed,
        "n_running": outcome.n_running,
    }
    with closing(open_fleet(fleet)) as con:
        write_pages(fleet, con, plan.rules, counts)
        outcome.seconds = time.monotonic() - start
        write_metrics(fleet, con, program, outcome.seconds, counts)
        if plan.webhook:
            outcome.webhook_fault = send(plan.webhook, payload(con, plan.site, counts))
