"""What whole messages, tracebacks and tables of a log say, as events: catalogue entries, roles, stacks."""

from __future__ import annotations

from collections.abc import Mapping

from forensics.artifact import Sink, Stacks
from forensics.formats import _log_judge as judge
from forensics.formats._log_blocks import Block
from forensics.formats._log_catalogue import catalogue
from forensics.formats._log_cluster import ClusterTimes
from forensics.formats._log_processes import Processes
from forensics.formats._log_rows import Event, EventRows
from forensics.formats._log_sequences import Sequences
from forensics.formats._log_tables import Entry
from forensics.formats._log_threads import HeldThread, LogThreads
from forensics.formats._log_time import Clock

# Messages that say again what was said before: the watchdog's thread as it ends, and the C++ runtime after it.
_ECHOES = {"cpp-terminate", "nccl-watchdog-exception"}
_MAX_STACKS = 50_000
_SCHEDULERS = {"slurm", "kubernetes", "lsf", "scheduler"}


class Outcomes:
    """Takes finished blocks and entries of tables; owns their stacks."""

    def __init__(
        self, sink: Sink, events: EventRows, processes: Processes, clock: Clock, tests: judge.TestRun,
        sequences: Sequences,
    ) -> None:  # fmt: skip
        self._sink = sink
        self._events = events
        self._processes = processes
        self._clock = clock
        self._tests = tests
        self._sequences = sequences
        self._catalogue = catalogue()
        self._stacks = Stacks()
        self._n_stacks = 0
        self._threads = LogThreads(sink, self._stacks)
        self.cluster: ClusterTimes | None = None
        self.scheduled = False  # whether a scheduler spoke

    def close(self, *, complete: bool, n_read: int) -> None:
        self._threads.close(complete=complete, n_read=n_read)
        if self._n_stacks or self._threads.any:
            self._sink.emit("stack", self._stacks.table())

    def add_thread(self, proc: int, thread: HeldThread) -> None:
        self._threads.add_held(proc, thread)

    def finish(self, block: Block) -> None:
        if block.dump is not None:
            self._threads.add(block.dump, block.proc, block.ts_ns)
            if not block.lines:
                return
        frames = list(reversed(block.frames)) if block.kind == "fault" else block.frames
        text = f"{block.exception}: {block.message}" if block.exception else block.message
        matches = block.matches if block.matches is not None and len(block.lines) == 1 else self._catalogue.match(text)
        kinds = judge.kinds(block, matches, self._events.exception_kind)
        if self._events.full(block.proc, block.line).issuperset(kinds):
            self._events.drop(block.proc, kinds, block.line)
            self._sequences.learn(block, text, kinds)
            return
        stack_id = None
        if frames and self._n_stacks < _MAX_STACKS:
            stack_id = self._stacks.add(frames)
            self._n_stacks += 1
        echoes = any(match.name in _ECHOES for match in matches)
        for said in judge.judge(block, text, matches, self._tests.expected(block.line)):
            if echoes and said.signature not in _ECHOES and self._events.holds(None, said.signature):
                said.role, said.fields["repeats"] = "evidence", True
            self._add(block, said, stack_id)

    def _add(self, block: Block, said: judge.Said, stack_id: int | None) -> None:
        if said.source == "mpi":
            self._learn_rank(said.fields)
        self.scheduled |= said.source in _SCHEDULERS or (said.cls.startswith("sched.") and said.role == "primary")
        kind = said.kind
        if said.signature is None and block.exception is not None:
            kind = self._events.exception_kind(said.cls, block.exception)
        ts_ns = block.ts_ns
        if ts_ns is None and self.cluster is not None and said.source in _SCHEDULERS:
            ts_ns = self._clock.ns(self.cluster.stamp_of(block.line))
        self._events.add(
            Event(
                block.proc, block.line, block.byte, ts_ns, block.step, said.source, said.level, said.signature,
                said.cls, said.role, block.exception, block.message or None, stack_id, said.fields, kind,
            )
        )  # fmt: skip

    def _learn_rank(self, fields: Mapping[str, object]) -> None:
        """A launcher names one of its processes: which rank it is, where it ran, what ended it."""
        rank, pid, host, signal = (fields.get(name) for name in ("rank", "pid", "host", "signal"))
        if isinstance(rank, int):
            proc = self._processes.of_rank(
                rank, host=host if isinstance(host, str) else None, pid=pid if isinstance(pid, int) and pid else None
            )
            if isinstance(signal, int):
                self._sink.proc(proc, signal=signal)

    def add_entry(self, writer: int, entry: Entry) -> None:
        code = entry.exit_code
        proc = writer
        if entry.rank is not None:
            proc = self._processes.of_rank(entry.rank, host=entry.host, pid=entry.pid, local_rank=entry.local_rank)
            if code is not None:
                self._sink.proc(proc, exit_code=code if code >= 0 else None, signal=-code if code < 0 else None)
        stack_id = self._stacks.add(entry.frames)
        self._n_stacks += stack_id is not None
        block = Block(proc, "exception", entry.line, entry.line, entry.byte, exception=entry.exception)
        block.ts_ns = self._clock.ns(judge.table_time(entry.texts.get("time", "")))
        block.lines = entry.message
        for said in judge.judge_entry(entry, self._catalogue, block):
            if said.role != "evidence" and self._events.holds(proc, said.signature):
                said.role, said.fields["repeats"] = "evidence", True
            self._add(block, said, stack_id)
