"""A line without its prefixes, and what each kind of prefix says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from forensics.formats._log_time import MONTHS, Stamp, dayless_stamp, full_stamp, time_ns, yearless_stamp

LEVELS = {
    **dict.fromkeys(("TRACE", "DEBUG", "VERBOSE", "D", "V", "USDT"), "debug"),
    **dict.fromkeys(("INFO", "NOTICE", "I", "STAGE", "NOTE"), "info"),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("ERROR", "ERR", "E", "SEVERE"), "error"),
    **dict.fromkeys(("FATAL", "CRITICAL", "F", "C", "EMERG", "ALERT", "CRIT", "PANIC"), "fatal"),
}
RANK_DIGITS = 6
_KERNEL_LEVELS = ["fatal", "fatal", "fatal", "error", "warning", "info", "info", "debug"]


@dataclass(slots=True)
class Line:
    """A line without its prefixes."""

    text: str
    marks: tuple[tuple[str, str], ...] = ()  # which writer the prefixes name, the outermost first: kind and name
    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    place: str | None = None  # the host that NCCL names in its own lines
    pid: int | None = None
    actor: str | None = None
    device: int | None = None
    stamp: Stamp | None = None
    level: str | None = None
    writer: str | None = None
    compile_id: str | None = None
    repeated: int | None = None
    no_rank: str | None = None  # the digits of a rank that no job has
    partial: bool = False
    prefixed: bool = False  # by a logger: a time, a level or a writer, not only a rank or host
    time_at: int | None = None  # where the hour of the stamp stands in the whole line
    more_stamps: tuple[tuple[int, int], ...] = ()  # where further stamps stand, which do not count

    @property
    def names_a_process(self) -> bool:
        marks = (self.rank, self.local_rank, self.host, self.place, self.pid, self.actor)
        return any(mark is not None for mark in marks)


@dataclass
class Labels:
    """Which of the ambiguous prefixes a log uses; settled by its beginning."""

    srun: bool = False
    compose: bool = False  # docker compose: "name  | text"
    hosts: set[str] = field(default_factory=set)
    timed: bool = False  # lines begin with an hour, minute and second, whatever follows
    rich: bool = False  # the handler of rich writes it, which leaves out a time that is that of the line before
    carried: bool = False  # each line has a time that what carried the log put there, those of tracebacks, too
    nested: bool = False  # one writer's mark inside another's was met

    @property
    def by_digits(self) -> bool:
        """Whether digits, not words, decide which lines have a label."""
        return self.srun or bool(self.hosts)


def take_iso(line: Line, m: re.Match[str]) -> None:
    if line.stamp is not None:
        line.prefixed, line.more_stamps = True, (*line.more_stamps, (m.start(1), m.end(7 if m[7] else 6)))
        return
    ns = time_ns(m[4], m[5], m[6], m[7])
    _set_stamp(line, full_stamp(int(m[1]), int(m[2]), int(m[3]), ns, m[8]), m.start(4))


def _set_stamp(line: Line, stamp: Stamp | None, time_at: int | None = None) -> None:
    line.prefixed = True
    if line.stamp is None:
        line.stamp, line.time_at = stamp, time_at


def mark(line: Line, kind: str, name: str) -> None:
    line.marks = (*line.marks, (kind, name))


def take_rank(line: Line, m: re.Match[str]) -> None:
    _set_rank(line, m[1])


def _set_rank(line: Line, digits: str) -> None:
    """A rank of more digits than any job has processes is none: what it marks has an unknown writer."""
    if len(digits) > RANK_DIGITS:
        line.no_rank = digits[:40]
        return
    line.rank = int(digits)
    mark(line, "rank", digits)


def take_role(line: Line, m: re.Match[str]) -> None:
    line.local_rank = int(m[2])
    mark(line, "local", m[2])


def take_pod(line: Line, m: re.Match[str]) -> None:
    line.host = m[1]
    mark(line, "pod", m[1])


def take_actor(line: Line, m: re.Match[str]) -> None:
    line.actor = m[1].strip()
    if m[2]:
        line.rank = int(m[2])
    line.pid = int(m[3])
    line.host = m[4] or line.host
    mark(line, "actor", f"{m[3]} {m[4]}")


def take_dated(line: Line, m: re.Match[str]) -> None:
    prefixed = line.prefixed
    take_iso(line, m)
    if m[9]:  # container log of Kubernetes
        line.prefixed, line.partial = prefixed, m[9] == "P"
    elif m[11]:  # journal
        _journal(line, m[10], m[11], prefixed)
    elif _is_carriers(m):
        line.prefixed = prefixed


def _is_carriers(m: re.Match[str]) -> bool:
    """Whether a time is one that container runtimes put before each line: of nanoseconds, with a zone."""
    return bool(m[8] and m[7] and len(m[7]) > 6)


def _journal(line: Line, host: str, writer: str, prefixed: bool) -> None:
    """What journald and syslog say: a prefix of a logger only where the kernel is the writer."""
    line.host, line.writer = host, writer.partition("[")[0].rstrip(":")
    line.prefixed = prefixed or line.writer == "kernel"
    mark(line, "syslog", host)


def take_parallel(line: Line, m: re.Match[str]) -> None:
    take_iso(line, m)
    parts = dict(re.findall(r"(DP|TP|PP|EP)(\d+)", m[9]))
    if set(parts) == {"TP"}:
        _set_rank(line, parts["TP"])
    line.actor = m[9].strip()


def take_glog(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7])), m.start(4))
    line.writer = m[9]


def take_c10(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[1]], m[8], True
    if m[2]:
        _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7])), m.start(4))


def take_vllm(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer = LEVELS[m[1]], m[7]
    _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], None)), m.start(4))


def take_ctime(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[6]), MONTHS[m[1]], int(m[2]), time_ns(m[3], m[4], m[5], None), None), m.start(3))
    line.writer = line.writer or "kernel"  # dmesg -T


def take_fabric(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[3]), MONTHS[m[1]], int(m[2]), time_ns(m[4], m[5], m[6], None), None), m.start(4))


def take_boot(line: Line, m: re.Match[str]) -> None:
    seconds, fraction = m[1].split(".")
    _set_stamp(line, Stamp("boot", int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))))
    line.writer = "kernel"


def take_facility(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS.get(m[2].upper(), line.level)
    line.writer = "kernel" if m[1] == "kern" else m[1]
    line.prefixed = True


def take_kmsg(line: Line, m: re.Match[str]) -> None:
    line.level = _KERNEL_LEVELS[int(m[1]) & 7]
    _set_stamp(line, Stamp("boot", int(m[3]) * 1000))
    line.writer = "kernel"


def take_syslog(line: Line, m: re.Match[str]) -> None:
    prefixed = line.prefixed
    _set_stamp(line, yearless_stamp(MONTHS[m[1]], int(m[2]), time_ns(m[3], m[4], m[5], None)), m.start(3))
    _journal(line, m[6], m[7], prefixed)


def take_us_date(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[3]), int(m[1]), int(m[2]), time_ns(m[4], m[5], m[6], m[7]), None), m.start(4))


def take_python(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[1]], m[2], True


def take_level(line: Line, m: re.Match[str]) -> None:
    line.level, line.prefixed = LEVELS[m[1]], True


def take_ascend(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, full_stamp(int(m[2]), int(m[3]), int(m[4]), time_ns(m[5], m[6], m[7], None), None), m.start(5))
    line.pid, line.device = int(m[8]), int(m[9])
    _set_rank(line, m[10])


def take_kineto(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, full_stamp(int(m[2]), int(m[3]), int(m[4]), time_ns(m[5], m[6], m[7], m[8]), None), m.start(5))
    line.writer = "kineto"


def take_nccl(line: Line, m: re.Match[str]) -> None:
    line.place, line.device = m[1], int(m[3])
    line.pid = line.pid if line.actor is not None else int(m[2])
    line.level, line.writer, line.prefixed = LEVELS.get(m[4], "info"), "nccl", True


def take_cut_glog(line: Line, m: re.Match[str]) -> None:
    line.writer, line.prefixed = m[1], True


def take_slurm(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[2].upper()], m[1], True


def take_clock(line: Line, m: re.Match[str]) -> None:
    """A time of day; on the second and further layers it is the logger's own and does not count."""
    if line.stamp is not None:
        line.prefixed, line.more_stamps = True, (*line.more_stamps, (m.start(1), m.end(4 if m[4] else 3)))
        return
    _set_stamp(line, dayless_stamp(m[1], m[2], m[3], m[4]), m.start(1))


def take_short_date(line: Line, m: re.Match[str]) -> None:
    """Month, day and year of two digits, as rich writes them."""
    ns = time_ns(m[4], m[5], m[6], m[7])
    _set_stamp(line, full_stamp(2000 + int(m[3]), int(m[1]), int(m[2]), ns, None), m.start(4))


def take_blank_time(line: Line, m: re.Match[str]) -> None:
    line.level, line.prefixed = LEVELS[m[1]], True
