"""One line of strace: who wrote it, when, and what it says."""

from __future__ import annotations

import re
from typing import NamedTuple

_DAY_NS = 86_400 * 10**9
_MAX_NS = 1 << 62
_EPOCH_SECONDS = 100_000_000  # a larger number at the start of a line is a time of day since 1970, not a difference
MAX_PID = (1 << 31) - 1

_PREFIX = re.compile(
    r"(?:\[pid +(?P<pid>\d{1,10})\] +|(?P<tid>\d{1,10}) +(?=[\d<+\-\[a-z_]))?"
    r" *(?:(?:(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)|(?P<seconds>\d{1,10}))(?:\.(?P<fraction>\d{1,9}))? +)?"
    r"(?:\(\+ *\d{1,10}\.\d{1,9}\) +)?(?:\[[ 0-9a-f?]{1,20}\] +)?"
)
_CALL = re.compile(r"([a-z_][a-z0-9_]{1,40})\(")
_RESUMED = re.compile(r"<\.\.\. ([a-z_][a-z0-9_]{1,40}) resumed>")
_SIGNAL = re.compile(r"--- (SIG[A-Z0-9_+]{1,12}) \{")
_STOPPED = re.compile(r"--- stopped by (SIG[A-Z0-9_+]{1,12}) ---")
_EXITED = re.compile(r"\+\+\+ exited with (-?\d{1,10}) \+\+\+")
_KILLED = re.compile(r"\+\+\+ killed by (SIG[A-Z0-9_+]{1,12})(?: \(core dumped\))? \+\+\+")
_SUPERSEDED = re.compile(r"\+\+\+ superseded by execve in pid (\d{1,10}) \+\+\+")
_NOTE = re.compile(r"strace: Process (\d{1,10}) (attached|detached)(?: with (\d{1,7}) threads?)?")
_STACK = re.compile(r" > (?P<file>[^()]{1,1000})(?:\((?P<function>.{0,1000}?)(?:\+0x[0-9a-f]{1,16})?\))?")
_DURATION = re.compile(r" <\d{1,10}\.\d{1,9}>$")


class Said(NamedTuple):
    """What a line says. `kind`: call | resumed | signal | stopped | exited | killed | superseded."""

    kind: str
    name: str  # of the system call or signal; the code of an exit
    text: str = ""  # arguments of a call, what is left of them when it was resumed
    result: str | None = None  # None while the call has not returned


class Line(NamedTuple):
    pid: int | None
    said: Said
    time: tuple[str, int] | None  # "day", "epoch" or "difference", and nanoseconds


class Note(NamedTuple):
    """strace's own word about a process."""

    pid: int
    attached: bool
    n_threads: int | None


def split_note(text: str) -> tuple[str, Note | None]:
    """A line without the note that strace wrote into it or instead of it."""
    start = text.find("strace: Process ")
    match = _NOTE.match(text, start) if start >= 0 else None
    if match is None:
        return text, None
    n_threads = int(match[3]) if match[3] else None
    return text[:start], Note(min(int(match[1]), MAX_PID), match[2] == "attached", n_threads)


def read_line(text: str) -> Line | None:
    """None for what strace did not write."""
    prefix = _PREFIX.match(text)
    if prefix is None:
        return None
    said = _said(text[prefix.end() :])
    if said is None:
        return None
    pid = prefix["pid"] or prefix["tid"]
    return Line(min(int(pid), MAX_PID) if pid else None, said, _time(prefix))


def read_rest(text: str, name: str) -> Said | None:
    """The end of a call whose line a note of strace tore in two: `, child_tidptr=0x7f…) = 11627`."""
    rest, result = _result(text)
    torn = result is not None or rest == "" or text.startswith((",", ")", "|"))
    return Said("resumed", name, rest, result) if torn else None


def read_stack_frame(text: str) -> tuple[str, str | None] | None:
    """Function and library of a line of `strace -k`."""
    match = _STACK.match(text)
    if match is None:
        return None
    return match["function"] or "??", match["file"].strip()


def _time(prefix: re.Match[str]) -> tuple[str, int] | None:
    fraction = int((prefix["fraction"] or "").ljust(9, "0"))
    if prefix["hour"]:
        seconds = (int(prefix["hour"]) * 60 + int(prefix["minute"])) * 60 + int(prefix["second"])
        return "day", seconds * 10**9 + fraction
    if prefix["seconds"] is None:
        return None
    seconds = int(prefix["seconds"])
    return "epoch" if seconds >= _EPOCH_SECONDS else "difference", seconds * 10**9 + fraction


def _said(body: str) -> Said | None:
    first = body[:1]
    if first in {"-", "+"}:
        return _ending(body)
    if first == "<":
        match = _RESUMED.match(body)
        return None if match is None else Said("resumed", match[1], *_result(body[match.end() :]))
    match = _CALL.match(body)
    return None if match is None else Said("call", match[1], *_result(body[match.end() :]))


def _ending(body: str) -> Said | None:
    patterns = (
        ("signal", _SIGNAL), ("stopped", _STOPPED), ("exited", _EXITED), ("killed", _KILLED),
        ("superseded", _SUPERSEDED),
    )  # fmt: skip
    for kind, pattern in patterns:
        if match := pattern.match(body):
            return Said(kind, match[1])
    return None


def _result(rest: str) -> tuple[str, str | None]:
    """Arguments, and what the call returned: `) = -1 ETIMEDOUT (Connection timed out) <0.1>`."""
    rest = rest.rstrip()
    for mark in ("<unfinished ...>", "<detached ...>"):
        if rest.endswith(mark):
            return rest[: -len(mark)].rstrip(), None
    start = rest.rfind(" = ")
    arguments = rest[:start].rstrip() if start >= 0 else ""
    if start < 0 or not arguments.endswith(")"):
        return rest, None
    return arguments[:-1], _DURATION.sub("", rest[start + 3 :].strip())


class Clock:
    """Nanoseconds of one trace. Times of day count from the first midnight, differences from the first line."""

    def __init__(self) -> None:
        self.kind: str | None = None
        self.first: int | None = None
        self.last: int | None = None
        self._days = 0

    def ns(self, time: tuple[str, int] | None) -> int | None:
        if time is None:
            return None
        kind, value = time
        self.kind = self.kind or kind
        if kind != self.kind:
            return None
        if kind == "difference":
            value += self.last or 0
        elif kind == "day":
            value += self._days
            if self.last is not None and value < self.last - _DAY_NS // 2:
                self._days += _DAY_NS
                value += _DAY_NS
        if value > _MAX_NS:
            return None
        if self.first is None:
            self.first = value
        self.last = max(value, self.last if self.last is not None else value)
        return value
