"""`forensics analyze PATH`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter


def analyze(
    path: str,
    /,
    *,
    out: Path | None = None,
    fail_on: Literal["critical", "high", "medium", "info", "never"] = "high",
    rules: Annotated[list[Path] | None, Parameter(negative="")] = None,
    config: Path | None = None,
    cache: Path | None = None,
    memory_limit: str | None = None,
    threads: int = 2,
    max_seconds: float | None = None,
    format: Literal["text", "markdown", "json", "sarif", "junit"] = "text",
    redact: bool = True,
    quiet: bool = False,
) -> int:
    """Find out why a job failed, from the folder, file or archive that it left behind.

    Writes report.html, report.json and case.duckdb, and prints the verdict. Exits with 1 for a finding at or above
    --fail-on, 0 for none, 2 where it could not run or where there are artifacts and none of them told anything.

    Parameters
    ----------
    path
        Folder, file or archive (.tar*, .zip) with the job's artifacts.
    out
        Folder for the results; default ./NAME.forensics.
    fail_on
        Exit with 1 when a finding has at least this severity. The exit code follows the findings alone: a job that
        failed, of which no rule says more than a lower severity, exits with 0; "medium" or "info" are stricter.
    rules
        Further folder of rules; may be given several times.
    config
        TOML file with [thresholds."RULE"] tables and [[suppress]] entries (rule, reason, expires).
    cache
        Folder for parsed artifacts; default OUT/cache.
    memory_limit
        Bound for the processes that load artifacts together, and for the database after them, such as 4GB; default
        four fifths of what the machine or its cgroup has for loading, less for the database, which uses the disk. What
        a process's share is too little for is loaded again alone; one process always gets 256 MiB.
    threads
        Artifacts that are loaded at a time, and threads of the database while it is filled.
    max_seconds
        Stop loading, building the case and judging after this time and report what is known: 0.6 of it for loading,
        up to 0.85 for building the case.
    format
        How the result is printed: text, markdown (for a ticket), json (report.json), sarif, junit.
    redact
        Mask tokens, passwords and names of home folders in what is printed, report.html and report.json;
        --no-redact shows the texts of artifacts as they are. case.duckdb and its cache hold them as they are either
        way, but for settings with secret names, which are masked as they are read: `forensics pack` masks a case too.
    quiet
        Print nothing.
    """
    from forensics.cli import USAGE_ERROR
    from forensics.configuration import Configuration, read_configuration
    from forensics.pipeline import Settings
    from forensics.pipeline import analyze as run
    from forensics.redact import masking

    settings = Settings(
        rules=rules or [],
        configuration=read_configuration(config) if config else Configuration(),
        cache=cache,
        threads=threads,
        memory_limit=memory_limit,
        max_seconds=max_seconds,
    )
    with masking(redact), _Progress(quiet) as progress:
        result = run(path, out, settings=settings, on_progress=progress)
    if not quiet:
        _print(result, format)
    if result.n_unread:
        said = f"{result.unread}; {result.out / 'report.html'} says more of each"
        print(f"forensics: {path}: {said}", file=sys.stderr)
        return USAGE_ERROR
    worst = min((_RANKED.index(f.severity) for f in result.findings), default=len(_RANKED))
    return int(fail_on != "never" and worst <= _RANKED.index(fail_on))


_RANKED = ("critical", "high", "medium", "info")


def _print(result: Any, form: str) -> None:
    if form == "json":
        print((result.out / "report.json").read_text(encoding="utf-8"), end="")
    elif form == "markdown":
        from forensics.report.markdown import render_markdown

        print(render_markdown(result.report))
    elif form == "sarif":
        from forensics.report.sarif import render_sarif

        print(render_sarif(result.report), end="")
    elif form == "junit":
        from forensics.report.junit import render_junit

        print(render_junit(result.report), end="")
    else:
        from forensics.report.terminal import render_terminal

        print(render_terminal(result.report, colour=sys.stdout.isatty()))
        print(f"\nReport: {result.out / 'report.html'}")


class _Progress:
    """A line on the terminal while work goes on; nothing when stderr is no terminal."""

    def __init__(self, quiet: bool) -> None:
        self._show = not quiet and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Progress:
        if self._show:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[what]}"),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("discover", total=None, what="")
        return self

    def __call__(self, stage: str, done: int, total: int, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=stage, completed=done, total=total, what=what[-60:])

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
