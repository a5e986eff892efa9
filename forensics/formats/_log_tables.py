"""Reads the table in which torchrun says which of its processes failed first, and the others that failed.

Two layouts: torch 1.9 and 1.10 (asterisks, "Root Cause:" first), and later ones (equals signs, "Failures:" first).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forensics.artifact import Frame
from forensics.formats._log_blocks import FRAME, HEADER, MESSAGE_CHARACTERS, exception_line

MAX_LINES = 100_000

_START = re.compile(r"\s*(?:(?P<root>Root Cause)(?: \(first observed failure\))?|(?:Other )?Failures):\s*$")
_ENTRY = re.compile(r"\s*\[(\d{1,6})\]:\s*$")
_FIELD = re.compile(r"\s{1,4}(time|host|rank|exitcode|error_file|traceback|msg)\s*: ?(.*)$")
_RULE = re.compile(r"\s*([-=*])\1{9,}\s*$")
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_EXIT = re.compile(r"(-?\d+) \(pid: (-?\d+)\)")


@dataclass
class Entry:
    """One failed process. `line` and `byte` are those of its exit code."""

    root: bool
    line: int
    byte: int | None
    texts: dict[str, str] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    exception: str | None = None
    message: list[str] = field(default_factory=list)
    indent: int = 0

    @property
    def rank(self) -> int | None:
        m = _RANK.match(self.texts.get("rank", ""))
        return int(m[1]) if m else None

    @property
    def local_rank(self) -> int | None:
        m = _RANK.match(self.texts.get("rank", ""))
        return int(m[2]) if m else None

    @property
    def exit_code(self) -> int | None:
        m = _EXIT.match(self.texts.get("exitcode", ""))
        return int(m[1]) if m else None

    @property
    def pid(self) -> int | None:
        m = _EXIT.match(self.texts.get("exitcode", ""))
        return int(m[2]) if m else None

    @property
    def host(self) -> str | None:
        host = self.texts.get("host", "").strip()
        return host if host and host != "<N/A>" else None


def starts_table(text: str) -> bool:
    return text.rstrip().endswith(":") and _START.match(text) is not None


class Table:
    """Feed it the lines from `Failures:` or `Root Cause` on; `entries` are complete when `feed` says False."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._root = False
        self._seen_root = False
        self._n_lines = 0
        self._in_traceback = False

    def feed(self, text: str, number: int, byte: int | None) -> bool:
        """Whether the line is part of the table."""
        self._n_lines += 1
        if self._n_lines > MAX_LINES:
            return False
        if m := _START.match(text):
            self._root = m["root"] is not None
            self._seen_root |= self._root
        elif m := _RULE.match(text):
            self._in_traceback = False
            return m[1] != "*" and not (m[1] == "=" and self._seen_root and self._root and bool(self.entries))
        elif _ENTRY.match(text):
            self._in_traceback = False
            self.entries.append(Entry(self._root, number, byte))
        elif text.strip():
            return self._take(text, number, byte)
        return True

    def _take(self, text: str, number: int, byte: int | None) -> bool:
        m = _FIELD.match(text) if self.entries else None
        if m is not None and not (self._in_traceback and m[1] not in {"time", "host"}):
            self._take_field(self.entries[-1], m[1], m[2], number, byte)
            return True
        if self._in_traceback:
            self._take_traceback(self.entries[-1], text)
            return True
        return text.lstrip().startswith("<")

    def _take_field(self, entry: Entry, name: str, value: str, number: int, byte: int | None) -> None:
        entry.texts[name] = value.strip()[:1000]
        if name == "exitcode":
            entry.line, entry.byte = number, byte
        if name == "traceback":
            self._in_traceback = HEADER in value
            if not self._in_traceback:
                entry.message.append(value.strip()[:1000])

    def _take_traceback(self, entry: Entry, text: str) -> None:
        if (m := FRAME.match(text)) and len(entry.frames) < 512 and not entry.exception:
            entry.indent = entry.indent or len(m[1])
            entry.frames.append(Frame((m[4] or "<module>").strip(), m[2], int(m[3])))
            return
        indent = len(text) - len(text.lstrip())
        if entry.exception:
            if sum(map(len, entry.message)) < MESSAGE_CHARACTERS:
                entry.message.append(text.strip())
        elif entry.frames and indent < entry.indent and (found := exception_line(text.strip())):
            entry.exception, first = found
            entry.message.append(first)
