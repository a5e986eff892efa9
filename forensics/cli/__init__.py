"""The `forensics` command: one module per command, loaded only when it is asked for."""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import Any

USAGE_ERROR = 2
# Said here so that listing the commands does not load them.
_COMMANDS = {
    "analyze": "Find out why a job failed, from the folder, file or archive that it left behind.",
    "query": "Ask a finished case a question in SQL.",
    "diff": "Compare a good run's case with a failed one's: what differs, the first divergence first.",
    "batch": "Analyze the failed jobs below folders or URLs that are new or changed, into a fleet.",
    "fleet": "Ask what batches learned of many jobs: query, gate.",
    "review": "Record what a reviewer says of findings, or list what was said.",
    "serve": "Show the reports of a folder in a browser on this machine, and record their reviews.",
    "pack": "Write a case with secrets masked into one archive, to send to someone else.",
    "schema": "Print the JSON schema of report.json.",
    "rules": "What the rule library knows: list, explain, new, test.",
    "formats": "List the artifact formats that are recognised.",
    "checkpoint-diff": "Compare two stored states tensor by tensor: what moved, and how far.",
    "checkpoint-collisions": "List stored keys that write the same parameter; a reversible patch keeps the first.",
    "collect": "Take evidence of a job that hangs now: stacks, waits, settings, device state.",
}
# What help says below the summary; every command exits with 2 where it could not run.
_EXITS = {
    "analyze": "Exits with 1 for a finding at or above --fail-on, 0 for none, 2 where it could not run or where there"
    " are artifacts and none of them told anything. A job that failed without such a finding exits with 0.",
    "diff": "Exits with 1 when something differs that both runs recorded, 0 when nothing does.",
    "batch": "Exits with 0 when every job could be analyzed, whatever was found, 1 when some could not.",
    "checkpoint-diff": "Exits with 1 when the states differ, 0 when every tensor is equal.",
    "checkpoint-collisions": "Exits with 1 when there are collisions, 0 when there are none or after a patch.",
}
_USAGES = {
    "batch": "Usage: forensics batch --out PATH [OPTIONS] ROOTS...",
    "collect": "Usage: forensics collect --out PATH [OPTIONS] PIDS...",
    "review": "Usage: forensics review [OPTIONS] CASE [FINGERPRINT]",
}
_GROUPS = {"rules", "fleet"}  # commands that have commands of their own


def main(arguments: list[str] | None = None) -> None:
    """Entry point; exits 0, 1 (something was found: each command says what) or 2 (usage or environment)."""
    # End like Ctrl-C does, so that what was built under a temporary name is removed; nohup has SIGHUP ignored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda got, _: sys.exit(128 + got))
    for stream in (sys.stdout, sys.stderr):  # texts of artifacts hold what the terminal's encoding may not have
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(arguments)
    except KeyboardInterrupt:
        sys.exit(130)


def _run(arguments: list[str] | None) -> None:
    from cyclopts import App, CycloptsError

    from forensics import __version__
    from forensics.errors import ForensicsError
    from forensics.imports import leave_out_pandas

    if arguments is None:  # this process is the command, not a caller's
        leave_out_pandas()

    app: Any = App(
        name="forensics",
        help="Says why a PyTorch job failed, from what it left behind.",
        version=__version__,
        result_action="return_value",
    )
    for name, summary in _COMMANDS.items():
        module = name.replace("-", "_")
        app.command(
            f"forensics.cli.{module}:{'app' if name in _GROUPS else module}",
            name=name,
            help=f"{summary}\n\n{_EXITS.get(name, '')}".rstrip(),
            **({"usage": _USAGES[name]} if name in _USAGES else {}),
        )
    try:
        _refuse_empty(sys.argv[1:] if arguments is None else arguments)
        code = app(arguments, exit_on_error=False, print_error=True)
    except CycloptsError:
        sys.exit(USAGE_ERROR)
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except ForensicsError as error:
        print(f"forensics: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except OSError as error:
        from forensics.errors import told

        print(f"forensics: {told(error)}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except Exception as error:  # 1 means a finding: a fault of this program must not look like one
        if os.environ.get("FORENSICS_DEBUG"):
            raise
        if "interrupt" in str(error).lower():  # how DuckDB reports Ctrl-C
            sys.exit(130)
        print(
            f"forensics: internal fault: {type(error).__name__}: {error} (FORENSICS_DEBUG=1 shows more)",
            file=sys.stderr,
        )
        sys.exit(USAGE_ERROR)
    sys.exit(code if isinstance(code, int) else 0)


_MAY_BE_EMPTY = {"--note", "--webhook", "--site"}


def _refuse_empty(arguments: list[str]) -> None:
    """An unset variable in a script gives an empty path; the current folder was not meant."""
    from forensics.errors import ForensicsError

    for number, argument in enumerate(arguments):
        option = arguments[number - 1] if number else ""
        option, value = argument.split("=", 1) if argument.startswith("--") and "=" in argument else (option, argument)
        if value.strip() or option in _MAY_BE_EMPTY:
            continue
        what = option if option.startswith("--") else "the path" if number == 1 else f"argument {number}"
        raise ForensicsError(f"{arguments[0]}: {what} is empty; expected a value ('.' for this folder)")
