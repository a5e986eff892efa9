"""What `py-spy dump` prints, as text or with `--json`: threads of one or several Python processes and their frames.

py-spy stops a process to look at it, so a dump is one moment; it carries no time. `idle` and `active` are the operating
system's word, kept as `waiting` and `running` whatever the frames are; an active thread has a `wait_kind` only where
libraries wait by spinning (device, collectives). Frames of `--native` are kept; of `--locals` only what identifies a
queue, lock or process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from forensics.artifact import Frame, Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._dump_processes import DumpProcesses, ends_inside_line, place_of_heading
from forensics.formats._lenient_json import JsonWalk, as_int
from forensics.formats._text_lines import LineCounter, decode_text, head_lines, numbered_lines, read_text, without_ansi
from forensics.formats._thread_rows import ThreadRows
from forensics.formats._wait_reason import Call, wait_of

VERSION = 1
TITLE = "py-spy dump: text and --json"
PROVIDES = ("thread_state", "fact")

_MAX_LINE = 16_384
_MAX_JSON_BYTES = 128 << 20
_MAX_FRAMES = 4096  # read of one thread
_MAX_COMMAND_LINES = 200
_SURE = 90
_SHARE = 0.6  # of the lines that must be py-spy's: a log that quotes a dump is a log

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)", re.DOTALL)
_PARENT = re.compile(r"Parent Process (\d{1,10}): ")
_PYTHON = re.compile(r"Python v(\d[\w.+]{0,40})")
_THREAD = re.compile(r"Thread (\d{1,10}|0x[0-9a-fA-F]{1,16}) \(((?:active|idle)[+\w ]{0,20})\)(?:: \"(.{0,200})\")?")
_FRAME = re.compile(r" {4}(?=\S).* \([^()]{1,4096}\)$")
_DETAIL = re.compile(r" {8}(?:Arguments|Locals):$| {12}\S{1,200}: ")
_SELF = re.compile(r" {12}self: <.{0,200} at (0x[0-9a-fA-F]{1,16})>")
_SELF_VALUE = re.compile(r"<.{0,200} at (0x[0-9a-fA-F]{1,16})>")
_RULE = re.compile(r"-{20,}$")
_ERROR = re.compile(r"(?:Error: |Permission Denied|Failed to |Caused by|Reason: )")
_DOCUMENTS = re.compile(r"^\](\s{0,200})^\[", re.MULTILINE)


def recognise(head: Head) -> int:
    text = without_ansi(decode_text(head.data))
    if text.lstrip("\ufeff \t\r\n").startswith("["):
        keys = ('"thread_id"', '"os_thread_id"', '"owns_gil"', '"frames"')
        return _SURE if all(key in text for key in keys[:3]) or sum(key in text for key in keys) == len(keys) else 0
    lines = [line for line in head_lines(text, whole=head.whole) if line.strip()]
    n_threads = sum(_THREAD.match(line) is not None for line in lines)
    if not n_threads:
        return 0
    n_known = sum(is_dump_line(line) for line in lines)
    framed = any(_PROCESS.match(line) or _FRAME.match(line) for line in lines)
    return _SURE if framed and n_known >= _SHARE * len(lines) else 0


def begins_dump(line: str) -> bool:
    """Whether a line names a thread as py-spy does."""
    return _THREAD.fullmatch(line) is not None


def heads_dump(line: str) -> bool:
    """Whether a line may stand above the first thread of a process."""
    return (_PROCESS.match(line) or _PYTHON.match(line) or _PARENT.match(line)) is not None


def is_dump_line(line: str) -> bool:
    """Whether a line may be one of a dump."""
    patterns = (_FRAME, _THREAD, _DETAIL, _PROCESS, _PYTHON, _PARENT, _RULE)
    return any(pattern.match(line) for pattern in patterns)


def load(source: Source, sink: Sink) -> None:
    is_json = source.head(4096).text.lstrip("\ufeff \t\r\n").startswith("[")
    rows = ThreadRows(sink)
    if is_json:
        _JsonDump(source, sink, rows).read()
    else:
        _read_text(source, sink, rows)
    if not rows.kept:
        raise ArtifactError(f"{source.name}: no thread; expected the output of py-spy dump", byte=0)


@dataclass
class _Thread:
    """A thread as it is being read. `calls` innermost first."""

    name: str
    line: int
    proc: int
    active: bool
    holds_gil: bool
    frames: list[Frame] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def add(self, function: str, file: str | None, line: int | None) -> None:
        if len(self.frames) < _MAX_FRAMES:
            self.frames.append(Frame(function, file, line))
            self.calls.append(Call(function, file))

    @property
    def state(self) -> str:
        if self.holds_gil:
            return "holding-gil" if self.active else "waiting-with-gil"
        return "running" if self.active else "waiting"


def _read_text(source: Source, sink: Sink, rows: ThreadRows) -> None:
    dump, n_read, ends_cut = TextDump(sink, rows), 0, False
    for number, text, whole in numbered_lines(source, max_chars=_MAX_LINE):
        n_read = number
        line = without_ansi(text).rstrip()
        ends_cut = not dump.take(line, number) and whole and bool(line.strip())
    dump.end(n_read)
    cut = "the dump ends before the threads of its last process" if dump.is_bare else None
    _finish(source, sink, rows, n_read, "the dump ends inside a line" if ends_cut and ends_inside_line(source) else cut)


def _keep(thread: _Thread, rows: ThreadRows) -> None:
    wait = wait_of(thread.calls, spins=thread.active)
    rows.add(thread.name, line=thread.line, proc=thread.proc, state=thread.state, wait=wait, frames=thread.frames)


def _finish(source: Source, sink: Sink, rows: ThreadRows, n_read: int, damage: str | None) -> None:
    rows.close()
    if damage:
        sink.warn("truncated", damage, "threads and frames that follow")
        sink.damaged("partial")
    complete = not damage and source.damage is None and not rows.n_dropped
    for proc, n in sorted(rows.kept.items()):
        sink.cover("thread_state", proc=proc, complete=complete, n_read=n_read, n_kept=n)


class TextDump:
    """Reads what `py-spy dump` prints as text, line by line, `end` after the last one.

    `is_bare`: the last process had no thread so far.
    """

    def __init__(self, sink: Sink, rows: ThreadRows) -> None:
        self._sink, self._rows = sink, rows
        self._processes = DumpProcesses(sink)
        self._thread: _Thread | None = None
        self._proc: int | None = None
        self._command: list[str] | None = None  # while it may go on
        self._place: dict[str, Any] = {}
        self._n_errors = 0
        self.is_bare = False

    def end(self, number: int) -> None:
        self._end_thread()
        self._end_command(number)

    def take(self, line: str, number: int) -> bool:
        """Whether the line was one of py-spy's."""
        if match := _THREAD.match(line):
            self._start_thread(match, number)
        elif match := _PROCESS.match(line):
            self._start_process(match, number)
        elif self._command is not None:
            self._go_on_with_process(line, number)
        elif line.startswith("    ") and self._thread is not None:
            return self._take_frame(line)
        elif not line.strip() or _RULE.match(line):
            self._place = {} if line.strip() else self._place
        elif match := _PARENT.match(line):
            self._processes.parent(self._proc or 0, int(match[1]), number)
        else:
            self._take_other(line, number)
            return False
        return True

    def _start_process(self, match: re.Match[str], number: int) -> None:
        self._end_thread()
        self._end_command(number)
        self._proc = self._processes.number(int(match[1]), line=number, **self._place)
        self._place, self._command, self.is_bare = {}, [match[2]], True

    def _go_on_with_process(self, line: str, number: int) -> None:
        """The command line, which may hold line feeds, up to the line with Python's version."""
        if match := _PYTHON.match(line):
            self._processes.tell(self._proc or 0, "python", match[1], number, scope="version")
            self._end_command(number)
        elif self._command is not None and len(self._command) < _MAX_COMMAND_LINES:
            self._command.append(line)

    def _end_command(self, number: int) -> None:
        if self._command is not None:
            self._processes.command(self._proc or 0, "\n".join(self._command), number)
        self._command = None

    def _start_thread(self, match: re.Match[str], number: int) -> None:
        self._end_thread()
        self._end_command(number)
        self.is_bare = False
        if self._proc is None:
            self._proc = self._processes.number(None, **self._place)
        name = f"{match[1].lower()} {match[3]}" if match[3] else match[1].lower()
        status = match[2]
        self._thread = _Thread(name, number, self._proc, status.startswith("active"), "gil" in status)

    def _end_thread(self) -> None:
        if self._thread is not None:
            _keep(self._thread, self._rows)
        self._thread = None

    def _take_frame(self, line: str) -> bool:
        thread = self._thread
        if thread is None:
            return False
        if _FRAME.match(line):
            function, _, place = line.strip()[:-1].rpartition(" (")
            file, _, row = place.rpartition(":")
            thread.add(function, file if row.isdigit() else place, int(row[:10]) if row.isdigit() and file else None)
            return True
        if (found := _SELF.match(line)) and thread.calls and len(thread.calls) == len(thread.frames):
            thread.calls[-1] = thread.calls[-1]._replace(arguments=f"self={found[1]}")
        return line.startswith(" " * 8)

    def _take_other(self, line: str, number: int) -> None:
        if _ERROR.match(line):
            self._n_errors += 1
            if self._n_errors <= 20:
                self._sink.warn("no-stack", line[:500], "what that process was doing", line=number)
            return
        self._end_thread()
        self._place |= place_of_heading(line)


class _JsonDump:
    def __init__(self, source: Source, sink: Sink, rows: ThreadRows) -> None:
        self._source, self._sink, self._rows = source, sink, rows
        self._processes = DumpProcesses(sink)

    def read(self) -> None:
        text, more = read_text(self._source, _MAX_JSON_BYTES)
        joined = _DOCUMENTS.sub(lambda m: "," + m[1] + " ", text)  # several dumps, one after another; same positions
        lines, n_read = LineCounter(joined), 0
        walk = JsonWalk(joined, lambda path, first: len(path) == 1 and first == "{")
        for leaf in walk.leaves():
            n_read += 1
            # Behind damage, what is found next may be a frame of a thread that was lost.
            if len(leaf.path) == 1 and isinstance(leaf.value, dict) and isinstance(leaf.value.get("frames"), list):
                self._take(leaf.value, lines.at(leaf.position))
        lost = "the document ends early or is damaged" if walk.damage is not None else None
        damage = "the document is longer than is read" if more else lost
        _finish(self._source, self._sink, self._rows, n_read, damage)

    def _take(self, thread: dict[str, Any], line: int) -> None:
        proc = self._processes.number(as_int(thread.get("pid"), 1), line=line)
        about = thread.get("process_info")
        if isinstance(about, dict):
            self._take_process(proc, about, line)
        ident, pthread = as_int(thread.get("os_thread_id"), 1), as_int(thread.get("thread_id"), 1, (1 << 63) - 1)
        name = thread.get("thread_name")
        words = [str(ident) if ident is not None else f"0x{pthread:x}" if pthread is not None else ""]
        words += [name[:200]] if isinstance(name, str) else []
        active, holds_gil = thread.get("active") is True, thread.get("owns_gil") is True
        found = _Thread(" ".join(filter(None, words)) or "?", line, proc, active, holds_gil)
        frames = thread.get("frames")
        for frame in frames if isinstance(frames, list) else ():
            if isinstance(frame, dict):
                _add_frame(found, frame)
        _keep(found, self._rows)

    def _take_process(self, proc: int, about: dict[str, Any], line: int) -> None:
        command, parent = about.get("command_line"), about.get("parent")
        if isinstance(command, str):
            self._processes.command(proc, command, line)
        pid = as_int(parent.get("pid"), 1) if isinstance(parent, dict) else None
        if pid is not None:
            self._processes.parent(proc, pid, line)


def _add_frame(thread: _Thread, frame: dict[str, Any]) -> None:
    name, file = frame.get("name"), frame.get("filename") or frame.get("short_filename")
    if not isinstance(name, str):
        return
    number = as_int(frame.get("line"), 1, (1 << 31) - 1)
    thread.add(name, file if isinstance(file, str) else None, number)
    variables = frame.get("locals")
    for variable in variables[:1] if isinstance(variables, list) else ():
        text = variable.get("repr") if isinstance(variable, dict) and variable.get("name") == "self" else None
        if isinstance(text, str) and (found := _SELF_VALUE.match(text)) and len(thread.calls) == len(thread.frames):
            thread.calls[-1] = thread.calls[-1]._replace(arguments=f"self={found[1]}")
