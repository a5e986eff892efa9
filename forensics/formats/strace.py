"""What strace writes, with or without -f, -o, -t, -tt, -ttt, -r, -T, -y, -k: what each thread did when the trace ended.

One row for each thread: the system call that it was in, or polled with (`waiting`), or `running` between calls; of
those that ended only the processes. `ts_ns` is when that call began; the trace ends at `coverage.to_ns`, so that the
difference is how long it waited. Only -ttt gives absolute times: -t and -tt count from the first midnight, -r from the
first line. The stack is the call, and what -k shows above it.
"""

from __future__ import annotations

import re
import signal

from forensics.artifact import Frame, Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._dump_processes import DumpProcesses, ends_inside_line
from forensics.formats._strace_lines import Clock, Line, read_line, read_rest, read_stack_frame, split_note
from forensics.formats._strace_tasks import FORKS, MAX_STACK, SystemCall, Task, Tasks, awaited_child
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines, without_ansi
from forensics.formats._thread_rows import ThreadRows
from forensics.formats._wait_reason import Call
from forensics.formats._wait_table import SYSCALLS

VERSION = 1
TITLE = "strace of one or several processes"
PROVIDES = ("thread_state", "fact")

_MAX_LINE = 8192
_MAX_ARGUMENTS = 1024
_SURE = 86
_SHARE = 0.7
_LINES = 400

# Calls that any program makes; one of them must be there, since `f(x) = 1` is not only strace's.
_USUAL = {
    *SYSCALLS, *FORKS, "brk", "close", "exit", "exit_group", "fstat", "getpid", "gettid", "kill", "lseek", "madvise",
    "mmap", "mprotect", "munmap", "prctl", "restart_syscall", "rt_sigaction", "rt_sigprocmask", "sched_yield", "tgkill",
    "uname",
}  # fmt: skip
_OF_THREAD = re.compile(r"\.(\d{1,9})(?:\.[a-z]{2,4})?$")  # strace -ff -o NAME writes NAME.TID
_SIGNALS = {item.name: item.value for item in signal.Signals}


def recognise(head: Head) -> int:
    text = without_ansi(decode_text(head.data))
    lines = [line for line in head_lines(text, whole=head.whole)[:_LINES] if line.strip()]
    n_known, usual = 0, False
    for line in lines:
        rest, note = split_note(line)
        read = read_line(rest) if rest.strip() else None
        n_known += (
            read is not None
            or line.strip() == "<detached ...>"
            or note is not None
            or (usual and read_stack_frame(line) is not None)
        )
        usual = usual or (read is not None and read.said.kind != "signal" and _is_usual(read))
    return _SURE if usual and n_known >= _SHARE * len(lines) else 0


def _is_usual(line: Line) -> bool:
    said = line.said
    if said.kind not in {"call", "resumed"}:
        return True
    # What no source code looks like: a result, a cut call with its address, or a writer and a time.
    return said.name in _USUAL and (said.result is not None or line.time is not None or "0x" in said.text)


def load(source: Source, sink: Sink) -> None:
    trace = _Trace(source, sink)
    for number, text, _whole in numbered_lines(source, max_chars=_MAX_LINE):
        trace.take(without_ansi(text), number)
    trace.finish()


class _Trace:
    def __init__(self, source: Source, sink: Sink) -> None:
        self._source, self._sink = source, sink
        self._tasks = Tasks()
        self._clock = Clock()
        self._writer: Task | None = None  # of the last line: frames of -k follow it
        self._awaited: set[int] = set()
        self._torn: SystemCall | None = None  # whose line a note tore in two
        self._n_lines = self._n_read = 0

    def take(self, text: str, number: int) -> None:
        self._n_lines = number
        rest, note = split_note(text)
        if rest.strip():
            self._take_line(rest, number)
            self._torn = self._writer.call if note is not None and self._writer is not None else None
        if note is not None and note.attached:
            self._tasks.attach(note.pid, note.n_threads)
        elif note is not None:
            self._tasks.detach(note.pid)

    def _take_line(self, text: str, number: int) -> None:
        line = read_line(text)
        if line is None:
            self._take_rest(text)
            return
        self._n_read += 1
        ts_ns = self._clock.ns(line.time)
        task = self._writer = self._tasks.of(line.pid)
        if task is not None:
            task.is_root = task.is_root or (self._n_read == 1 and line.said.name == "execve")
            self._apply(task, line, number, ts_ns)

    def _take_rest(self, text: str) -> None:
        """What belongs to the line before: the second half of a torn one, or a frame of its stack."""
        writer, torn = self._writer, self._torn
        if writer is not None and torn is not None and writer.call is torn:
            if said := read_rest(text, torn.name):
                torn.arguments = (torn.arguments + said.text)[:_MAX_ARGUMENTS]
                self._return(writer, said.result)
            return
        frame = read_stack_frame(text) if self._writer is not None else None
        if frame is not None and self._writer is not None and len(self._writer.stack) < MAX_STACK:
            self._writer.stack.append(Call(*frame))

    def _apply(self, task: Task, line: Line, number: int, ts_ns: int | None) -> None:
        said = line.said
        if said.kind == "call":
            call = SystemCall(said.name, said.text[:_MAX_ARGUMENTS], number, ts_ns)
            task.begin(call)
            if said.name in {"wait4", "waitpid", "waitid"} and (child := awaited_child(call)):
                self._awaited.add(child)
            self._return(task, said.result)
        elif said.kind == "resumed":
            if task.call is None or task.call.name != said.name:
                task.begin(SystemCall(said.name, "", number, ts_ns))  # its beginning is older than the trace
            if task.call is not None:
                task.call.arguments = (task.call.arguments + said.text)[:_MAX_ARGUMENTS]
            self._return(task, said.result)
        elif said.kind == "stopped":
            task.stopped = True
        elif said.kind in {"exited", "killed"}:
            self._tasks.end(task, said.name, number)
        elif said.kind == "superseded":
            self._tasks.end(task, "0", number)

    def _return(self, task: Task, result: str | None) -> None:
        if result is None:
            return
        call = task.call
        task.end(result)
        if call is not None and call.name in FORKS and result.isdigit() and 0 < int(result[:10]) < 1 << 31:
            self._tasks.fork(task, call.arguments, int(result[:10]))

    def finish(self) -> None:
        rows, processes = ThreadRows(self._sink), DumpProcesses(self._sink)
        for pid in self._awaited:
            self._tasks.await_child(pid)
        if suffix := _OF_THREAD.search(self._source.own_name):
            self._tasks.name_only(int(suffix[1]))
        for task in self._tasks:
            if not self._shows(task):
                continue
            proc = self._number(task, processes)
            call = task.shown_call
            frames = [Frame(call.name), *(Frame(at.function, at.file) for at in task.stack)] if call else []
            rows.add(
                str(task.tid) if task.tid is not None else "main",
                line=call.line if call else task.ended_line or None,
                proc=proc,
                state=task.state(),
                wait=task.wait(),
                frames=frames,
                ts_ns=call.ts_ns if call else None,
            )
        rows.n_dropped += self._tasks.n_dropped
        rows.close()
        if not rows.kept:
            raise ArtifactError(f"{self._source.name}: no system call; expected the output of strace", byte=0)
        self._describe(rows)

    def _shows(self, task: Task) -> bool:
        """Not those of which the trace says only that they were there, nor commands that came and went."""
        if task.ended is None:
            return task.shown_call is not None or task.stopped
        is_first = task.is_root or (task.parent is None and task.leader is not None and task.leader == task.tid)
        return is_first or task.ended.startswith("SIG")

    def _number(self, task: Task, processes: DumpProcesses) -> int:
        pid = self._tasks.process_of(task)
        parent = self._tasks.process_of(task.parent) if task.parent is not None else None
        number = processes.number(pid, line=task.shown_call.line if task.shown_call else None)
        if parent is not None:
            processes.parent(number, parent, task.command_line)
        if task.command:
            processes.command(number, task.command, task.command_line)
        is_main = task.tid is None or task.tid == pid
        if task.ended is None or not is_main:
            return number
        code = int(task.ended) if task.ended.lstrip("-").isdigit() else None
        # Programs run many commands whose failure means nothing: only how strace's own ended is how the job did.
        if task.is_root and task.parent is None:
            processes.learn(number, exit_code=code, signal=_SIGNALS.get(task.ended))
        ended = f"exited with {code}" if code is not None else f"killed by {task.ended}"
        processes.tell(number, "end", ended, task.ended_line)
        return number

    def _describe(self, rows: ThreadRows) -> None:
        clock = self._clock
        if clock.kind is not None:
            self._sink.clock("epoch" if clock.kind == "epoch" else "relative")
        cut = ends_inside_line(self._source)
        if cut:
            self._sink.warn("truncated", "the trace ends inside a line", "what the last call waited for")
            self._sink.damaged("partial")
        complete = not cut and self._source.damage is None and not rows.n_dropped
        for proc, n in sorted(rows.kept.items()):
            self._sink.cover(
                "thread_state",
                proc=proc,
                complete=complete,
                n_read=self._n_read,
                n_kept=n,
                from_ns=clock.first,
                to_ns=clock.last,
            )
