"""Stacks of all threads that py-spy, gdb, pstack or eu-stack printed into a log, read by the formats of such files.

A dump tells pids, seldom ranks, so whose process it shows is settled at the end: a command line that names a rank, a
pid that the log knows; else, where all dumps of one writer are of one process, the writer's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from forensics.artifact import Frame, Sink
from forensics.formats._log_processes import Processes
from forensics.formats._log_threads import HeldThread
from forensics.formats._thread_rows import MAX_THREADS
from forensics.formats._wait_reason import Wait
from forensics.formats.native_stacks import TextStacks, begins_stacks, heads_stacks, is_stack_line
from forensics.formats.py_spy import TextDump, begins_dump, heads_dump, is_dump_line

_MAX_OUTSIDE = 2  # blank lines within one dump
MAX_ABOVE = 8  # lines above the first thread that are looked at


@dataclass
class _Held:
    """Takes what a reader of dumps says, as its rows and as its sink. Coverage and quality are the log's."""

    threads: list[HeldThread] = field(default_factory=list)
    known: dict[int, dict[str, Any]] = field(default_factory=dict)
    facts: list[tuple[tuple[str, str], dict[str, Any]]] = field(default_factory=list)
    warnings: list[tuple[tuple[str, str, str], dict[str, Any]]] = field(default_factory=list)
    ts_ns: int | None = None  # of the dump that is being read
    n_dropped: int = 0

    def add(
        self, thread: str, *, line: int | None, proc: int = 0, state: str | None = None, wait: Wait | None = None,
        frames: Sequence[Frame] = (), ts_ns: int | None = None,
    ) -> None:  # fmt: skip
        if len(self.threads) >= MAX_THREADS:
            self.n_dropped += 1
        elif frames:  # else it may be a sentence that looks like the heading of a thread
            self.threads.append(HeldThread(thread, line, proc, state, wait, frames, ts_ns or self.ts_ns))

    def proc(self, number: int, **known: Any) -> None:
        self.known.setdefault(number, {}).update({key: value for key, value in known.items() if value is not None})

    def fact(self, key: str, value: str, **more: Any) -> None:
        self.facts.append(((key, value), more))

    def warn(self, code: str, message: str, hides: str, **where: Any) -> None:
        self.warnings.append(((code, message, hides), where))


class _Writer:
    """The dumps in the lines of one writer."""

    def __init__(self) -> None:
        self.py_spy, self.native = _Held(), _Held()
        self._dump = TextDump(self.py_spy, self.py_spy)  # type: ignore[arg-type]
        self._stacks = TextStacks(self.native, self.native)  # type: ignore[arg-type]

    def read(self, line: str, number: int, *, native: bool) -> None:
        if native:
            self._stacks.take(line, number)
        else:
            self._dump.take(line, number)

    def end(self, number: int) -> None:
        self._dump.end(number)
        self._stacks.end()


class DumpTexts:
    """Feed it lines while `is_open`, and those that `begins` tells."""

    def __init__(self, sink: Sink, processes: Processes) -> None:
        self._sink = sink
        self._processes = processes
        self._writers: dict[int, _Writer] = {}
        self._proc: int | None = None  # whose dump is open
        self._native = False
        self._n_blank = 0

    @property
    def is_open(self) -> bool:
        return self._proc is not None

    def take(
        self,
        proc: int,
        text: str,
        number: int,
        above: Callable[[], list[tuple[int, str]]],
        ts_ns: Callable[[], int | None],
    ) -> bool:
        """Whether a line is of a dump. `above` gives the lines before it without prefixes, the nearest last."""
        line = text.rstrip()
        if self._proc is None:
            native = begins_stacks(line)
            if not native and not begins_dump(line):
                return False
            self._begin(proc, above(), ts_ns(), native=native)
        elif proc != self._proc:
            return False
        self._n_blank = 0 if line else self._n_blank + 1
        is_line = is_stack_line if self._native else is_dump_line
        if self._n_blank > _MAX_OUTSIDE or (line and not is_line(line)):
            self._end(number)
            return False
        self._writers[proc].read(line, number, native=self._native)
        return True

    def _begin(self, proc: int, above: list[tuple[int, str]], ts_ns: int | None, *, native: bool) -> None:
        self._proc, self._native, self._n_blank = proc, native, 0
        writer = self._writers.setdefault(proc, _Writer())
        writer.py_spy.ts_ns = writer.native.ts_ns = ts_ns
        heads = heads_stacks if native else heads_dump
        head: list[tuple[int, str]] = []
        for number, line in reversed(above):
            if line.strip() and not heads(line):
                break
            head.append((number, line.rstrip()))
        for number, line in reversed(head):
            writer.read(line, number, native=native)

    def _end(self, number: int) -> None:
        if self._proc is not None:
            self._writers[self._proc].end(number)
        self._proc = None

    def close(self, add: Callable[[int, HeldThread], None]) -> None:
        """Hands the threads over with the processes of the log whose they are."""
        self._end(0)
        for proc, writer in self._writers.items():
            for held in (writer.py_spy, writer.native):
                numbers = {number: self._number(proc, known, held) for number, known in sorted(held.known.items())}
                for (key, value), more in held.facts:
                    self._sink.fact(key, value, **{**more, "proc": numbers.get(more.get("proc", 0), proc)})
                for warning, where in held.warnings:
                    self._sink.warn(*warning, **where)
                for thread in held.threads:
                    add(numbers.get(thread.proc, proc), thread)
                if held.n_dropped:
                    n = held.n_dropped
                    self._sink.warn(
                        "too-many-threads", f"{n} further threads were counted, not kept", "what they waited for"
                    )

    def _number(self, writer: int, known: dict[str, Any], held: _Held) -> int:
        rank, pid = known.get("rank"), known.get("pid")
        if rank is not None:
            return self._processes.of_rank(rank, pid=pid, host=known.get("host"), local_rank=known.get("local_rank"))
        found = None if pid is None else self._processes.of_pid(pid)
        if found is not None:
            return found
        if len(held.known) == 1 or pid is None:
            return writer
        return self._processes.new_of_pid(pid)
