"""Threads in the dumps of faulthandler inside a log: every one of them, not only the one that crashed.

The events of such blocks are `_log_tracebacks`' own; this keeps beside them which threads there were. faulthandler
names threads by their pthread address; a thread's state is told only by what its frames wait for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._thread_rows import ThreadRows
from forensics.formats._wait_reason import Call, Wait, wait_of

# Python 3.13 and newer name threads: `Thread 0x00007f071f8f56c0 [pt_data_pin] (most recent call first):`
THREAD = re.compile(
    r"(?P<current>Current thread|Thread) 0x(?P<address>[0-9a-fA-F]{1,16})(?: \[(?P<name>[^\]]{0,40})\])?"
    r" \(most recent call first\):"
)
_MAX_THREADS = 10_000  # of one dump
_MAX_FRAMES = 512


@dataclass
class DumpedThread:
    name: str
    line: int
    current: bool
    frames: list[Frame] = field(default_factory=list)  # innermost first


@dataclass
class Dump:
    """One dump as it is being read."""

    fatal: bool = False
    threads: list[DumpedThread] = field(default_factory=list)
    n_dropped: int = 0

    def start(self, match: re.Match[str], line: int) -> None:
        if len(self.threads) >= _MAX_THREADS:
            self.n_dropped += 1
            return
        address = f"0x{match['address'].lstrip('0') or '0'}".lower()
        name = f"{address} {match['name'].strip()}" if match["name"] else address
        self.threads.append(DumpedThread(name, line, match["current"].startswith("Current")))

    def add(self, frame: Frame) -> None:
        if self.threads and not self.n_dropped and len(self.threads[-1].frames) < _MAX_FRAMES:
            self.threads[-1].frames.append(frame)


@dataclass
class HeldThread:
    name: str
    line: int | None
    proc: int  # of the dump
    state: str | None
    wait: Wait | None
    frames: Sequence[Frame]
    ts_ns: int | None = None


class LogThreads:
    """Rows of `thread_state` of one log; stacks go where those of its events are."""

    def __init__(self, sink: Sink, stacks: Stacks) -> None:
        self._sink = sink
        self._rows = ThreadRows(sink, stacks)

    @property
    def any(self) -> bool:
        return bool(self._rows.kept)

    def add(self, dump: Dump, proc: int, ts_ns: int | None) -> None:
        for thread in dump.threads:
            wait = wait_of([Call(frame.function, frame.file) for frame in thread.frames])
            state = "crashed" if dump.fatal and thread.current else "waiting" if wait else None
            self._rows.add(
                thread.name, line=thread.line, proc=proc, state=state, wait=wait, frames=thread.frames, ts_ns=ts_ns
            )
        self._rows.n_dropped += dump.n_dropped

    def add_held(self, proc: int, thread: HeldThread) -> None:
        """A thread that another reader has found."""
        self._rows.add(
            thread.name, line=thread.line, proc=proc, state=thread.state, wait=thread.wait, frames=thread.frames,
            ts_ns=thread.ts_ns,
        )  # fmt: skip

    def close(self, *, complete: bool, n_read: int) -> None:
        """Emits what is left and declares the coverage of the processes that were dumped."""
        self._rows.close()
        for proc, n in sorted(self._rows.kept.items()):
            self._sink.cover("thread_state", proc=proc, complete=complete, n_read=n_read, n_kept=n)
