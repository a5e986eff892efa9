"""Takes evidence of processes that hang now: stacks, waits, settings, device state. Nothing is killed.

Everything is optional: a tool that is absent or not allowed is noted, and the rest goes on. py-spy stops a process for
some milliseconds while it reads the stacks. A signal is sent only to a process that handles it.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import orjson

from forensics.errors import ForensicsError
from forensics.redact import masked_text, masked_value

_TIMEOUT_SECONDS = 30
_MAX_BYTES = 8 << 20  # of one file of /proc or output of one tool
_MAX_PROCESSES = 512
_MAX_DUMP_BYTES = 256 << 20
_STATUS_FILES = ("status", "limits", "cgroup", "oom_score", "io", "schedstat")
# Of the whole host; each is (file name, command).
_HOST_COMMANDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("nvidia-smi.txt", ("nvidia-smi",)),
    ("nvidia-smi-q.txt", ("nvidia-smi", "-q")),
    ("nvidia-smi-processes.csv", ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv")),
    ("dmesg.log", ("dmesg", "--time-format", "iso")),
    ("ibstat.txt", ("ibstat",)),
)
_DEFAULT_DUMP = "/tmp/nccl_trace_rank_"  # noqa: S108 - where PyTorch writes it
_HOST_FILES = ("meminfo", "loadavg", "uptime", "pressure/memory", "pressure/io")


@dataclass(frozen=True)
class Taken:
    """One thing that was tried: `path` relative to the folder when it worked, else `note` says why not."""

    what: str
    path: str | None
    note: str = ""


@dataclass
class _Collector:
    out: Path
    taken: list[Taken] = field(default_factory=list)

    def keep(self, what: str, name: str, content: bytes) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[:_MAX_BYTES])
        self.taken.append(Taken(what, name, f"cut at {_MAX_BYTES} bytes" if len(content) > _MAX_BYTES else ""))

    def miss(self, what: str, note: str) -> None:
        self.taken.append(Taken(what, None, note))

    def copy(self, what: str, name: str, file: Path) -> None:
        try:
            with file.open("rb") as stream:
                self.keep(what, name, stream.read(_MAX_BYTES + 1))
        except OSError as error:
            self.miss(what, error.strerror or str(error))

    def run(self, what: str, name: str, command: Sequence[str]) -> None:
        program = shutil.which(command[0])
        if program is None:
            self.miss(what, f"{command[0]} is not installed")
            return
        try:
            done = subprocess.run((program, *command[1:]), capture_output=True, timeout=_TIMEOUT_SECONDS, check=False)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            self.miss(what, str(error)[:200])
            return
        if done.stdout.strip():
            self.keep(what, name, done.stdout)
        if done.returncode != 0 or not done.stdout.strip():
            said = (done.stderr or b"no output").decode("utf-8", "replace").strip().split("\n")[-1][:200]
            self.miss(what, f"exit code {done.returncode}: {said}")


def collect(
    pids: Sequence[int], out: Path, *, children: bool = True, samples: int = 2, interval_seconds: float = 5.0
) -> list[Taken]:
    """Collects evidence of the processes (with `children`, also of those below them) into the folder `out`.

    Stacks are taken `samples` times, `interval_seconds` apart: what moved between them does not hang. Raises
    ForensicsError when none of the processes exists, or `out` cannot be written.
    """
    living = [pid for pid in pids if Path(f"/proc/{pid}").is_dir()]
    if not living:
        raise ForensicsError(f"collect: no process {', '.join(map(str, pids))}; expected ids of processes that run now")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ForensicsError(f"{out}: {error.strerror}; expected a folder that can be written") from error
    collector = _Collector(out)
    for pid in set(pids) - set(living):
        collector.miss(f"process {pid}", "does not exist")
    parents = dict(_parents())
    wanted = _with_children(living, parents) if children else list(dict.fromkeys(living))
    if len(wanted) > _MAX_PROCESSES:
        collector.miss(
            f"{len(wanted) - _MAX_PROCESSES} more processes", f"only the first {_MAX_PROCESSES} are looked at"
        )
    folders = {pid: _folder_of(pid, parents) for pid in wanted[:_MAX_PROCESSES]}
    for pid, folder in folders.items():
        _describe(collector, pid, folder)
    for number in range(max(1, samples)):
        if number:
            time.sleep(interval_seconds)
        for pid, folder in folders.items():
            _take_stacks(collector, pid, folder, number + 1)
    for pid, folder in folders.items():
        _signal_faulthandler(collector, pid)
        _ask_flight_recorder(collector, pid, folder)
    for name, command in _HOST_COMMANDS:
        collector.run(" ".join(command), f"host/{name}", command)
    for name in _HOST_FILES:
        collector.copy(f"/proc/{name}", f"host/{name.replace('/', '-')}.txt", Path("/proc") / name)
    _write_manifest(collector, list(folders))
    return collector.taken


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                # The command in parentheses may itself hold spaces and parentheses.
                yield int(entry.name), int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue


def _with_children(pids: Sequence[int], parents: dict[int, int]) -> list[int]:
    below: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = list(pids)
    while waiting:
        pid = waiting.pop(0)
        if pid not in found and pid != os.getpid():
            found.append(pid)
            waiting += sorted(below.get(pid, ()))
    return found


def _environment(pid: int) -> dict[str, str]:
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (part.decode("utf-8", "replace").partition("=") for part in data[:_MAX_BYTES].split(b"\0") if part)
    return {name: value for name, _, value in pairs}


def _folder_of(pid: int, parents: dict[int, int]) -> str:
    """rank_R/pid_P where the process, or the one that started it, knows its rank."""
    at: int | None = pid
    for _ in range(8):
        known = _environment(at) if at else {}
        rank = known.get("RANK") or known.get("SLURM_PROCID") or known.get("OMPI_COMM_WORLD_RANK") or ""
        if rank.isdigit():
            return f"rank_{int(rank)}/pid_{pid}"
        at = parents.get(at) if at else None
    return f"pid_{pid}"


def _describe(collector: _Collector, pid: int, folder: str) -> None:
    known = _environment(pid)
    if known:
        text = "".join(
            f"{name}={masked_value(name, value)}\n" for name, value in sorted(known.items()) if "\n" not in value
        )
        collector.keep(f"environment of {pid}", f"{folder}/env.txt", text.encode("utf-8", "replace"))
    else:
        collector.miss(f"environment of {pid}", "not readable: expected the same user, or root")
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        command = masked_text(b" ".join(words).decode("utf-8", "replace"))
        collector.keep(f"command of {pid}", f"{folder}/command.txt", f"command: {command}\n".encode())
    except OSError as error:
        collector.miss(f"command of {pid}", error.strerror or str(error))
    for name in _STATUS_FILES:
        collector.copy(f"{name} of {pid}", f"{folder}/{name}.txt", Path(f"/proc/{pid}/{name}"))
    collector.keep(f"threads of {pid}", f"{folder}/threads.txt", _threads(pid).encode("utf-8", "replace"))


def _threads(pid: int) -> str:
    """A line a thread: id, name, state, and the kernel function that it waits in."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"), key=lambda path: int(path.name)):
        read = {}
        for name in ("comm", "wchan", "syscall", "stat"):
            try:
                read[name] = (task / name).read_text(errors="replace").strip()
            except OSError:
                read[name] = "?"
        state = read["stat"].rpartition(")")[2].split()[:1] or ["?"]
        lines.append(
            f"tid {task.name} {read['comm']!r} state {state[0]} wchan {read['wchan']} syscall {read['syscall']}\n"
        )
    return "".join(lines)


def _take_stacks(collector: _Collector, pid: int, folder: str, number: int) -> None:
    what = f"stacks of {pid}, {number}"
    collector.run(what, f"{folder}/py-spy-{number}.txt", ("py-spy", "dump", "--pid", str(pid)))
    if collector.taken[-1].path is None:
        collector.run(f"{what} (gdb)", f"{folder}/gdb-{number}.txt", _gdb(pid))
    collector.copy(f"kernel {what}", f"{folder}/kernel-stack-{number}.txt", Path(f"/proc/{pid}/stack"))


def _gdb(pid: int) -> tuple[str, ...]:
    return (
        "gdb",
        "-p",
        str(pid),
        "-batch",
        "-nx",
        "-ex",
        "set pagination off",
        "-ex",
        "thread apply all bt",
        "-ex",
        "detach",
    )


def _signal_faulthandler(collector: _Collector, pid: int) -> None:
    """SIGUSR2 makes the recorders, and jobs that registered it, write all stacks; others would be killed by it."""
    what = f"faulthandler signal to {pid}"
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next((int(line.split()[1], 16) for line in status.split("\n") if line.startswith("SigCgt:")), 0)
        if not caught >> (signal.SIGUSR2 - 1) & 1:
            collector.miss(what, "the process does not handle SIGUSR2; not sent")
            return
        os.kill(pid, signal.SIGUSR2)
    except (OSError, ValueError) as error:
        collector.miss(what, str(error))
        return
    collector.taken.append(Taken(what, None, "SIGUSR2 sent: the stacks are where the job writes them"))


def _ask_flight_recorder(collector: _Collector, pid: int, folder: str) -> None:
    """Writes to the pipe that makes NCCL's flight recorder dump, when the job has one, and copies what appears."""
    known = _environment(pid)
    pipe = known.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE") or known.get("TORCH_FR_DUMP_PIPE_FILE")
    rank = known.get("RANK", "")
    if not pipe or not rank.isdigit():
        return
    what, path = f"flight recorder of {pid}", Path(f"{pipe}{rank}.pipe")
    prefix = known.get("TORCH_FR_DUMP_TEMP_FILE") or known.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE") or _DEFAULT_DUMP
    dump = Path(f"{prefix}{rank}")
    before = dump.stat().st_mtime_ns if dump.exists() else 0
    try:
        pipe_end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(pipe_end, b"1")
        finally:
            os.close(pipe_end)
    except OSError as error:
        collector.miss(what, f"{path}: {error.strerror}")
        return
    for _ in range(50):
        time.sleep(0.1)
        if dump.exists() and dump.stat().st_mtime_ns > before and dump.stat().st_size:
            break
    if not dump.exists() or dump.stat().st_size > _MAX_DUMP_BYTES:
        collector.miss(what, f"{dump}: no dump appeared within 5 s, or it is too large")
        return
    target = collector.out / folder / f"nccl_trace_rank_{int(rank)}"
    shutil.copyfile(dump, target)
    collector.taken.append(Taken(what, str(target.relative_to(collector.out))))


def _write_manifest(collector: _Collector, pids: list[int]) -> None:
    facts = {"host": socket.gethostname(), "collected_ns": time.time_ns(), "pids": pids}
    lines = orjson.dumps(facts | {"taken": [asdict(one) for one in collector.taken]}, option=orjson.OPT_INDENT_2)
    (collector.out / "collected.json").write_bytes(lines)
