"""Decides what a whole message is: which catalogue entries, in which role, and when it is harmless or handled."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from forensics.formats._log_blocks import Block
from forensics.formats._log_catalogue import Catalogue, Match, Signature
from forensics.formats._log_fields import Value
from forensics.formats._log_marks import Labels, Line
from forensics.formats._log_prefix import parse
from forensics.formats._log_tables import Entry
from forensics.formats._log_time import Stamp

_HANDLED = re.compile(
    r"(?i)\b(?:re-?try(?:ing)?|will retry|try(?:ing)? again|skip(?:s|ped|ping)?|fall(?:s|ing)? ?-?back|falling back"
    r"|recover(?:ed|ing)|ignor(?:ed|ing)|continuing)\b"
)
_HANDLED_WORDS = ("try", "skip", "fall", "recover", "ignor", "continuing")  # what _HANDLED says, in short
_NOT_HANDLED = re.compile(
    r"(?i)exceed|max(?:imum)?[ _]retr|no more retr|giv(?:e|en|ing) up"
    r"|after \d+ (?:attempts|retries|tries)|retry count|Skipping step|Exception ignored"
)
_ERROR_TEXT = re.compile(
    r"\bERROR\b(?!_)|\bFATAL\b|\bCRITICAL\b|(?<![\w.])[A-Za-z]*Error: |(?<![\w-])[Ff]atal error|(?<![\w-])[Ee]rror: "
    r"|^Killed\b|Segmentation fault|core dumped|^Aborted\b|^Bus error"
)
# What shells say of a script's line: `run.sh: line 4: warpctl: command not found`, `run.sh: 4: x: not found`.
_SHELL_ERROR = re.compile(
    r"\S{1,200}: (?:line )?\d{1,6}: .{1,300}?(?:not found|No such file or directory|Permission denied|unbound variable"
    r"|bad substitution|ambiguous redirect|cannot execute.{0,60}|syntax error.{0,200})$|zsh: command not found: "
)
_ERROR_WORDS = (
    "rror", "ERROR", "FATAL", "CRITICAL", "Killed", "fault", "dumped", "Abort", "not found", "No such file",
    "Permission denied", "unbound variable", "bad substitution", "ambiguous redirect", "cannot execute",
)  # fmt: skip
_NOT_ERROR = re.compile(
    r"\b(?:0|no|without) errors?\b|ERROR=0|error: 0\b"
    r"|(?:mean|abs|max|l2|squared|train|val|test)\w*[ _][Ee]rror: [-\d.]",
    re.IGNORECASE,
)
_SOURCE_CODE = re.compile(r"\s*(?:raise |except |#|//|return |assert |print\(|logger?\.|log\.|self\.|if |\w+ = )")
UNNAMED_ERROR = "line.error"  # the class of an error-like line that no entry names
_LEVELS = {"error", "fatal"}
_FAILURES = {"primary", "symptom", "secondary"}
_WRITERS = {
    "kernel": "kernel", "nccl": "nccl", "slurmstepd": "slurm", "srun": "slurm", "slurmd": "slurm", "salloc": "slurm",
    "ray": "ray", "kineto": "kineto",
}  # fmt: skip


_Named = TypeVar("_Named", Match, Signature)


@dataclass
class Said:
    """One row's worth of what a message says."""

    source: str
    level: str | None
    signature: str | None
    cls: str
    role: str
    fields: dict[str, Value] = field(default_factory=dict)
    kind: str = ""


def judge(block: Block, text: str, matches: list[Match], expected: bool) -> list[Said]:
    """The rows of a finished block. `expected`: a test wanted the error."""
    facts: dict[str, Value] = {
        name: value for name, value in block.facts.items() if name not in {"current", "chain_line"}
    }
    context = "test-output" if expected else block.context
    if context is not None:
        facts["context"] = context
    matches = said_by(matches)
    handled = context is None and is_handled(block, text)
    said = [
        Said(m.source, block.level or m.level, m.name, m.cls, m.role, {**m.fields, **facts}, m.kind) for m in matches
    ]
    if block.exception is not None and leave_unnamed(matches):
        said.insert(0, Said("python", block.level or "error", None, *_unnamed(block), dict(facts)))
    elif block.exception is None and not matches:
        cls = "exception.unknown" if block.kind == "exception" else UNNAMED_ERROR
        if block.kind == "exception":
            facts["truncated"] = True
        said.append(Said(_source(block), block.level or "error", None, cls, "evidence", facts))
    for row in said:
        if context is not None:
            row.role = "noise"
        elif handled and (row.role in _FAILURES or row.cls == UNNAMED_ERROR):
            row.role, row.fields["handled"] = "evidence", True
    return said


def said_by(matches: list[_Named]) -> list[_Named]:
    """Matches or entries without disclaimers inside the message of something else."""
    return [m for m in matches if m.role != "noise"] or matches


def kinds(block: Block, matches: list[Match], exception_kind: Callable[[str, str], str]) -> list[str]:
    """What the rows of a message are counted under. `exception_kind`: of a class and type that no entry names."""
    if block.exception is None and not matches:
        return ["exception.unknown" if block.kind == "exception" else UNNAMED_ERROR]
    said = said_by(matches)
    found = [match.kind for match in said]
    if block.exception is not None and leave_unnamed(said):
        found.append(exception_kind(exception_class(block.exception), block.exception))
    return found


def leave_unnamed(matches: Iterable[Match | Signature]) -> bool:
    """Whether none of what an exception's message says names it."""
    return all(_names_nothing(match) for match in matches)


def _names_nothing(match: Match | Signature) -> bool:
    return match.role == "performance" or (match.role == "noise" and match.cls == "meta")


def _unnamed(block: Block) -> tuple[str, str]:
    """Class and role of an exception that no entry names; one that follows another is its consequence."""
    cls = exception_class(block.exception or "")
    role = {"exception.group": "secondary", "exception.warning": "evidence"}.get(cls)
    return cls, role or ("secondary" if "chain" in block.facts else "primary")


def exception_class(exception: str) -> str:
    """The class of an exception that no entry names."""
    if exception.endswith("ExceptionGroup"):
        return "exception.group"
    return "exception.warning" if exception.endswith("Warning") else "exception.unknown"


def _source(block: Block) -> str:
    return _WRITERS.get(block.writer or "", "python" if block.kind == "exception" else "job")


def is_handled(block: Block, text: str) -> bool:
    """Whether the program says, in the message's own line or those around it, that it goes on."""
    if block.writer == "kernel":
        return False
    near = [block.lead, block.follow] if block.kind == "exception" else [text, block.follow]
    return any(_goes_on(line[:500]) for line in near)


def _goes_on(line: str) -> bool:
    lowered = line.lower()
    if not any(word in lowered for word in _HANDLED_WORDS):  # the pattern alone would cost ten times as much
        return False
    return _HANDLED.search(line) is not None and not _NOT_HANDLED.search(line)


def judge_entry(entry: Entry, catalogue: Catalogue, block: Block) -> list[Said]:
    """The rows of one process in torchrun's table: its end, and what its traceback there says."""
    fields: dict[str, Value] = {}
    for name in ("rank", "local_rank", "exit_code", "pid", "host"):
        value = getattr(entry, name)
        if value is not None:
            fields[name] = value
    if time := entry.texts.get("time"):
        fields["error_time"] = time
    if (file := entry.texts.get("error_file", "")) and not file.startswith("<N/A>"):
        fields["error_file"] = file
    signature = catalogue.signatures["torchrun-root-cause" if entry.root else "torchrun-failure"]
    end = signature.settle(fields)
    rows = [Said(end.source, end.level, end.name, end.cls, end.role, end.fields)]
    if entry.exception:
        block.lines = entry.message
        matches = catalogue.match(f"{entry.exception}: {block.message}")
        rows += [Said(m.source, m.level, m.name, m.cls, m.role, {**m.fields, "via": "torchrun"}) for m in matches] or [
            Said("python", "error", None, "exception.unknown", "primary", {"via": "torchrun"})
        ]
    return rows


def table_time(text: str) -> Stamp | None:
    """The time of torchrun's table, `2026-11-29_11:41:45`, local."""
    return parse(text, Labels()).stamp


def may_be_error(level: str | None, text: str) -> bool:
    """Whether a line has the level or a word of an error."""
    beginning = text[:2000]
    return level in _LEVELS or any(word in beginning for word in _ERROR_WORDS)


def looks_like_error(line: Line, text: str | None = None) -> bool:
    """An error-like line that no entry names. `text`: of another line with such prefixes."""
    text = line.text if text is None else text
    beginning = text[:2000]
    if (
        not may_be_error(line.level, text)
        or ("rror" in beginning.lower() and _NOT_ERROR.search(beginning))
        or _SOURCE_CODE.match(text)
    ):
        return False
    if line.level in _LEVELS and line.prefixed:
        return True
    return _ERROR_TEXT.search(beginning) is not None or _SHELL_ERROR.match(text[:1000]) is not None


def line_facts(line: Line) -> dict[str, int | str]:
    """What prefixes say beyond process, time and level."""
    facts: dict[str, int | str] = {}
    if line.actor is not None:
        facts["actor"] = line.actor
    if line.repeated is not None:
        facts["repeated"] = line.repeated
    if line.compile_id is not None:
        facts["compile_id"] = line.compile_id
    return facts


class TestRun:
    """Follows the output of test runners: errors that a passing test provokes are expected."""

    _SESSION = re.compile(r"=+ test session starts =+")
    _FAILURES = re.compile(r"=+ (?:FAILURES|ERRORS|short test summary info) =+")
    _END = re.compile(r"=+ (?:\d+ \w+(?:, )?)+.* in [\d.]+s")
    _BEGIN = re.compile(r"(?:\S+\.py::\S+\s*$|test\w* \([\w.]+\)(?:\n|.)* \.\.\. *$)")
    _GOOD = re.compile(
        r"(?:(?:^|\.\.\. ?|::\S+ )skipped\b.*|(?:^|\.\.\. ?|\s|::\S+ )(?:ok|PASSED|XFAIL))\s*(?:\[ *\d+%\])?\s*$"
    )
    _BAD = re.compile(r"(?:\.\.\. ?|::\S+ |^)(?:FAIL|ERROR|FAILED)\s*(?:\[ *\d+%\])?\s*$")

    def __init__(self) -> None:
        self._in_session = False
        self._in_failures = False
        self._began: int | None = None

    @property
    def holding(self) -> bool:
        return self._began is not None

    def expected(self, line: int) -> bool:
        return self._in_session and not self._in_failures

    def note(self, text: str, number: int) -> int | None:
        """Takes a line; gives the line from which on events were expected when it is the verdict of a passed test."""
        if "=" in text[:4]:
            if self._SESSION.match(text):
                self._in_session, self._in_failures = True, False
            elif self._FAILURES.match(text):
                self._in_failures = True
            elif self._END.match(text):
                self._in_session = self._in_failures = False
        if self._BEGIN.match(text):
            self._began = number
            return None
        if self._began is not None:
            if self._GOOD.search(text):
                began, self._began = self._began, None
                return began
            if self._BAD.search(text):
                self._began = None
        return None
