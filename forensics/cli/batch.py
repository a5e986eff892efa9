"""`forensics batch ROOT…`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from forensics.fleet.batch import Outcome
    from forensics.fleet.job_runner import Result

_SHOWN = 20


def batch(
    *roots: str,
    out: Path,
    jobs: Path | None = None,
    sacct: Annotated[list[Path] | None, Parameter(negative="")] = None,
    pods: Annotated[list[Path] | None, Parameter(negative="")] = None,
    all: Annotated[bool, Parameter(negative="")] = False,
    engine: str = "local",
    workers: int = 0,
    max_seconds: float = 900.0,
    memory_limit: str = "4GB",
    disk_budget: str = "20GB",
    rules: Annotated[list[Path] | None, Parameter(negative="")] = None,
    config: Path | None = None,
    keep: Literal["report", "case", "cache"] = "case",
    retry: Annotated[bool, Parameter(negative="")] = False,
    wait: float = 0.0,
    webhook: str = "",
    site: str = "",
    quiet: bool = False,
) -> int:
    """Analyze the failed jobs below folders or URLs that are new or changed, and update the fleet's pages and metrics.

    Exits with 0 when every job could be analyzed, whatever was found (`forensics fleet gate` judges that), 1 when some
    could not, 2 where the batch itself could not run, as when another one is at work on the same fleet.

    Parameters
    ----------
    roots
        Folders with jobs, archives, or URLs that fsspec knows, such as s3://bucket/jobs, which need the extra
        torch-forensics[remote].
    out
        Folder of the fleet; made when it is not there.
    jobs
        File that names jobs: a folder, archive or URL per line, and after a tab failed, completed, running or unknown.
    sacct
        What `sacct -P` (or sacct's table, or `sacct --json`) printed. May be given several times.
    pods
        What `kubectl get pods -o json` printed. May be given several times.
    all
        Jobs too that are known to have completed: one that ends with 0 may have trained wrongly. Otherwise those that
        failed, or of which nothing tells how they ended.
    engine
        local, dask://HOST:PORT, or dask:///PATH of a scheduler file.
    workers
        Jobs at a time with the local engine; 0: one for each core.
    max_seconds
        Time of one job; at four fifths of it the analysis reports what it knows, at its end it is killed.
    memory_limit
        Memory of one job.
    disk_budget
        Disk space for files that have to be fetched or copied, for all jobs at a time.
    rules
        Further folder of rules; may be given several times.
    config
        TOML file with thresholds and suppressions, as for `forensics analyze`.
    keep
        report: report.html and report.json of each job; case: its case.duckdb too (about 8 MB each); cache: parsed
        artifacts too, so that a change of rules parses nothing again.
    retry
        Try jobs again that could not be analyzed.
    wait
        Seconds to wait for another batch on the same fleet.
    webhook
        Address that is told of new and regressed incidents as JSON; off when it is not given.
    site
        Address at which the fleet's folder is served, for the links in what the webhook is told.
    quiet
        Print nothing but errors.
    """
    from forensics.fleet.batch import Plan, run_batch

    plan = Plan(
        roots=roots,
        listed=jobs,
        sacct=sacct or (),
        pods=pods or (),
        every=all,
        engine=engine,
        workers=workers,
        seconds=max_seconds,
        memory_limit=memory_limit,
        disk_budget=disk_budget,
        rules=rules or (),
        configuration=config,
        keep=keep,
        retry=retry,
        wait_seconds=wait,
        webhook=webhook,
        site=site,
    )
    outcome = run_batch(out, plan, _shown_progress if sys.stderr.isatty() and not quiet else lambda *_: None)
    if outcome.webhook_fault:
        print(f"forensics: the webhook was not told: {outcome.webhook_fault}", file=sys.stderr)
    if not quiet:
        _print(outcome, out)
    return int(bool(outcome.put_aside))


def _shown_progress(done: int, total: int, result: Result) -> None:
    print(
        f"\r\x1b[K{done}/{total}  {result.key[:60]}  {result.verdict or result.status}",
        end="",
        file=sys.stderr,
        flush=True,
    )
    if done == total:
        print("\r\x1b[K", end="", file=sys.stderr)


def _print(outcome: Outcome, out: Path) -> None:
    standing = outcome.n_standing + outcome.n_unchanged
    print(
        f"Run {outcome.run}: {outcome.n_found} jobs found, {outcome.n_analyzed} analyzed, {standing} as before", end=""
    )
    print(f", {len(outcome.put_aside)} not analyzed" if outcome.put_aside else "", end="")
    print(f" in {outcome.seconds:.1f} s")
    if outcome.n_completed:
        print(
            f"  {outcome.n_completed} left out that ended well by their exit state;"
            " --all looks at them too, as such a job may have trained wrongly"
        )
    if outcome.n_running:
        print(f"  {outcome.n_running} left out that still run")
    for name, reason in outcome.put_aside[:_SHOWN]:
        print(f"  not analyzed: {name}: {reason}")
    if len(outcome.put_aside) > _SHOWN:
        print(f"  … and {len(outcome.put_aside) - _SHOWN} more")
    if outcome.n_without:
        print(f"  {outcome.n_without} jobs of the scheduler left no file below the roots")
    if outcome.n_loose:
        print(f"  {outcome.n_loose} files beside the jobs belong to none")
    print(f"Fleet: {out / 'index.html'}")
