"""The threads of a strace: which process each belongs to, and what it was doing when the trace ended.

strace names threads by their kernel ids and says nowhere which of them share a process, except where it saw them made
(`clone`), attached to them by the process, or where one asked for its process id.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from forensics.formats._wait_reason import Call, Wait, wait_of
from forensics.formats._wait_table import SYSCALLS

MAX_TASKS = 50_000
_MAX_DESCRIPTORS = 4096  # of one process that are remembered by what they are open to
_MAX_COPIED = 500_000  # descriptors that children inherit, in all
_N_SPINS = 8
MAX_STACK = 256

_POLLS = {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2"}
FORKS = {"clone", "clone3", "fork", "vfork"}
_NO_EVENT = ("-1 ETIMEDOUT", "-1 EINTR", "?")  # "? ERESTARTSYS": a signal came, the call goes on after it
_NEUTRAL = {"clock_gettime", "getpid", "gettid", "getppid", "gettimeofday", "rt_sigprocmask", "rt_sigaction"}
# With -y: 5<TCP:[127.0.0.1:50000->127.0.0.1:29500]>
_OPEN_TO = r"(?:<(.{0,300}?)>(?=[,)\]} ]|$))?"
_DESCRIPTOR = re.compile(r"(-?\d{1,9})" + _OPEN_TO)
_IN_POLL = re.compile(r"fd=(\d{1,9})" + _OPEN_TO)
_NUMBER = re.compile(r"-?\d{1,10}")
_PIDS = re.compile(r"(?:P_PID|P_PIDFD), (\d{1,10})")
_TEXT = re.compile(r'"((?:[^"\\]|\\.){0,1000})"')
_PAIR = re.compile(r"\[(\d{1,9})[^\]]{0,300}, (\d{1,9})")
_INTERRUPTED = re.compile(r"<\.\.\. resuming interrupted ([a-z_0-9]{1,40}) \.\.\.>")
_NVIDIA = re.compile(r"/dev/nvidia|_IOC\([^,]{1,60}, 0x46,")  # 0x46: the magic number of NVIDIA's driver


@dataclass
class SystemCall:
    name: str
    arguments: str
    line: int
    ts_ns: int | None

    @property
    def thing(self) -> str:
        return self.arguments.partition(",")[0]


@dataclass
class Task:
    """A thread. `tid` None: strace did not name it, since it was the only one."""

    tid: int | None
    leader: int | None = None  # process id, where something told it
    is_root: bool = False  # strace was started with it or on it
    maker: Task | None = None  # the thread of the same process that made it
    parent: Task | None = None  # a thread of the process that forked its own
    call: SystemCall | None = None  # in progress
    last: SystemCall | None = None
    pending: SystemCall | None = None  # a wait that timed out or was interrupted, and nothing has happened since
    n_spins: int = 0
    uses_device: bool = False
    stopped: bool = False
    ended: str | None = None  # the code of an exit, or the signal
    ended_line: int = 0
    command: str = ""
    command_line: int | None = None
    stack: list[Call] = field(default_factory=list)  # of the last call, innermost first
    descriptors: dict[int, str] = field(default_factory=dict)

    def begin(self, call: SystemCall) -> None:
        self.call, self.stopped, self.stack = call, False, []
        if (before := self.pending) and (before.name, before.thing) == (call.name, call.thing):
            call.ts_ns = before.ts_ns  # the same wait goes on
        if not self.uses_device and call.name in {"openat", "open", "ioctl"}:
            self.uses_device = _NVIDIA.search(call.arguments[:400]) is not None

    def end(self, result: str) -> None:
        call, self.call = self.call, None
        if call is None:
            return
        self.last = call
        if call.name == "getpid" and result.isdigit():
            self.leader = int(result[:9])
        elif call.name in {"execve", "execveat"} and result == "0":
            self.leader = self.leader or self.tid
            self.command = " ".join(text[:200] for text in _TEXT.findall(call.arguments[:2000].partition("[")[2])[:40])
            self.command_line = call.line
        self._note_progress(call, result)
        if call.name in {"openat", "open", "pipe", "pipe2", "socket", "socketpair", "eventfd2", "accept4", "close"}:
            self._note_descriptor(call, result)

    def _note_progress(self, call: SystemCall, result: str) -> None:
        spins = call.name == "sched_yield" or (
            call.name == "ioctl" and _NVIDIA.search(call.arguments[:400]) is not None
        )
        if call.name not in _NEUTRAL:
            self.n_spins = self.n_spins + 1 if spins else 0
        timed_out = call.name in _POLLS and re.match(r"0(?: \(Timeout\))?$", result) is not None
        if timed_out or (result.startswith(_NO_EVENT) and not call.name.startswith("exit")):
            self.pending = call
        elif call.name in SYSCALLS and not _is_idle(call, result):
            self.pending = None

    def _note_descriptor(self, call: SystemCall, result: str) -> None:
        known = self.descriptors
        if call.name == "close":
            number = _NUMBER.match(call.arguments)
            if number:
                known.pop(int(number[0]), None)
            return
        if len(known) >= _MAX_DESCRIPTORS or result.startswith("-"):
            return
        if pair := _PAIR.search(call.arguments) if call.name in {"pipe", "pipe2", "socketpair"} else None:
            kind = "pipe" if call.name.startswith("pipe") else "socketpair"
            known[int(pair[1])] = known[int(pair[2])] = f"{kind} {pair[1]}-{pair[2]}"
        elif (number := _NUMBER.match(result)) and call.name not in {"pipe", "pipe2", "socketpair"}:
            path = _TEXT.search(call.arguments) if call.name.startswith("open") else None
            known[int(number[0])] = path[1][:200] if path else call.name.rstrip("24")

    @property
    def shown_call(self) -> SystemCall | None:
        """The call that tells most of what the thread does."""
        return self.call or self.pending or (self.last if self.ended is None else None)

    def state(self) -> str:
        if self.ended is not None:
            return "killed" if self.ended.startswith("SIG") else "exited"
        if self.stopped:
            return "stopped"
        if self.call is None and self.n_spins >= _N_SPINS:
            return "running"
        return "waiting" if self.call or self.pending else "running"

    def wait(self) -> Wait | None:
        if self.stopped:
            return None
        if self.call is None and self.n_spins >= _N_SPINS and self.last is not None:
            return Wait("device", self.last.name) if self.uses_device else None
        call = self.call or self.pending
        if call is None:
            return None
        wait = _wait_of_call(call, self.descriptors)
        outer = wait_of(self.stack) if self.stack else None
        if outer is None or outer.on in {None, call.name}:
            return wait
        on = f"{wait.on} {outer.on}" if wait.on and wait.on != call.name else outer.on
        return Wait(outer.kind or wait.kind, on)


def _is_idle(call: SystemCall, result: str) -> bool:
    """Whether a call is no sign of progress: waking others, or looking whether a child is still there."""
    return (call.name == "futex" and "FUTEX_WAKE" in call.arguments[:80]) or (call.name == "wait4" and result == "0")


def _wait_of_call(call: SystemCall, descriptors: dict[int, str]) -> Wait:
    name, arguments = call.name, call.arguments[:4000]
    if name == "restart_syscall":
        match = _INTERRUPTED.match(arguments)
        # Where the kernel does not tell, strace says "read", the call with the number 0.
        name = match[1] if match and match[1] != "read" else ""
        return Wait(SYSCALLS.get(name, (None, 0))[0], name or None)
    kind, index = SYSCALLS.get(name, (None, 0))
    if name == "futex" and not re.search(r"FUTEX_(?:WAIT|LOCK_PI)", arguments[:120]):
        kind = None
    if kind is None:
        return Wait(None, "sleep" if name.endswith("nanosleep") else name)
    if kind == "io":
        return _wait_of_io(name, arguments, index, descriptors)
    if kind == "child":
        return Wait(kind, str(awaited_child(call) or "any"))
    return Wait(kind, arguments.partition(",")[0].strip() or name)


def awaited_child(call: SystemCall) -> int | None:
    """The process id that wait4 or waitid is told to wait for; None for any."""
    match = _PIDS.match(call.arguments) or _NUMBER.match(call.arguments)
    number = int(match[match.lastindex or 0]) if match else -1
    return number if number > 0 else None


def _wait_of_io(name: str, arguments: str, index: int, descriptors: dict[int, str]) -> Wait:
    if name == "ioctl" and _NVIDIA.search(arguments[:400]):
        return Wait("device", _descriptor(arguments, descriptors) or name)
    if name in {"poll", "ppoll"}:
        found = [_named(m[1], m[2], descriptors) for m in _IN_POLL.finditer(arguments[:1000])]
        return Wait("io", ", ".join(found[:4]) or name)
    if name in {"select", "pselect6"}:
        sets = re.findall(r"\[([\d ]{1,200})\]", arguments[:1000])
        found = [_named(number, None, descriptors) for numbers in sets for number in numbers.split()]
        return Wait("io", ", ".join(found[:4]) or name)
    if index or name in {"access", "execve", "lstat", "mkdir", "open", "rename", "stat", "unlink"}:
        path = _TEXT.search(arguments)
        return Wait("io", path[1] if path and path[1] else name)
    return Wait("io", _descriptor(arguments, descriptors) or name)


def _descriptor(arguments: str, descriptors: dict[int, str]) -> str | None:
    match = _DESCRIPTOR.match(arguments)
    return None if match is None else _named(match[1], match[2], descriptors)


def _named(number: str, shown: str | None, descriptors: dict[int, str]) -> str:
    what = shown or descriptors.get(int(number))
    return f"fd {number} {what}" if what else f"fd {number}"


class Tasks:
    """All threads in the order in which the trace shows them."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}
        self._unnamed: Task | None = None
        self._live: set[int] = set()
        self._wide: list[int] = []  # processes that strace attached to with several threads
        self._any_call = False
        self._n_copied = 0
        self.n_dropped = 0

    def __iter__(self) -> Iterator[Task]:
        if self._unnamed is not None:
            yield self._unnamed
        yield from self._tasks.values()

    def attach(self, pid: int, n_threads: int | None) -> None:
        """strace says that it looks at a process from now on, or at a new thread."""
        task = self._get(pid)
        if task is not None and (n_threads is not None or not self._any_call):
            task.leader, task.is_root = pid, True
            if n_threads is not None and n_threads > 1:
                self._wide.append(pid)

    def detach(self, pid: int) -> None:
        self._live.discard(pid)

    def of(self, pid: int | None) -> Task | None:
        """The thread that wrote a line; None when there are too many."""
        self._any_call = True
        if pid is not None:
            self._name_first(pid)
            return self._get(pid)
        if self._unnamed is None and len(self._live) == 1:
            return self._tasks[next(iter(self._live))]
        if self._unnamed is None:
            self._unnamed = Task(None, is_root=True)
        return self._unnamed

    def _name_first(self, pid: int) -> None:
        """A prefix that names a thread which nobody made names the one that had no name so far."""
        if self._unnamed is None or pid in self._tasks:
            return
        task, self._unnamed = self._unnamed, None
        task.tid = pid
        if task.command:
            task.leader = task.leader or pid
        self._tasks = {pid: task, **self._tasks}
        self._live.add(pid)

    def name_only(self, tid: int) -> None:
        """The file's name tells the id of its only thread, which may be any of its process."""
        if self._unnamed is not None and not self._tasks:
            self._unnamed.tid, self._unnamed.is_root = tid, bool(self._unnamed.command)

    def _get(self, pid: int, *, is_traced: bool = True) -> Task | None:
        task = self._tasks.get(pid)
        if task is not None and is_traced and task.ended is None:
            self._live.add(pid)
        if task is None:
            if len(self._tasks) >= MAX_TASKS:
                self.n_dropped += 1
                return None
            task = self._tasks[pid] = Task(pid)
            if is_traced:
                self._live.add(pid)
        return task

    def fork(self, maker: Task, arguments: str, pid: int) -> None:
        """clone or fork returned: a thread of the same process, or a child."""
        task = self._get(pid, is_traced=False)  # not before strace says so
        if task is None or task is maker:
            return
        if "CLONE_THREAD" in arguments:
            task.maker, task.descriptors = maker, maker.descriptors
        else:
            task.leader, task.parent = pid, maker
            if not task.descriptors and self._n_copied < _MAX_COPIED:
                self._n_copied += len(maker.descriptors)
                task.descriptors = dict(maker.descriptors)

    def await_child(self, pid: int) -> None:
        """Only processes are waited for: a thread with this id is the first one of a process."""
        task = self._tasks.get(pid)
        if task is not None and task.maker is None:
            task.leader = task.leader or pid

    def end(self, task: Task, how: str, line: int) -> None:
        # What a thread was in when its process was killed tells more than its end.
        task.pending = (task.call or task.pending) if how.startswith("SIG") else None
        task.ended, task.ended_line, task.call = how, line, None
        if task.tid is not None:
            self._live.discard(task.tid)

    def process_of(self, task: Task) -> int | None:
        """The process id of a thread, by all that the trace told; None unknown."""
        seen: set[int] = set()
        at: Task | None = task
        while at is not None and id(at) not in seen:
            if at.leader is not None:
                return at.leader
            seen.add(id(at))
            last, at = at, at.maker
        if last.is_root and last.tid is not None:
            return last.tid
        return self._wide[0] if len(self._wide) == 1 else None
