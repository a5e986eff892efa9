"""Takes the prefixes off a log line that launchers, containers and loggers put there, and keeps what they say.

Several may be nested (`node-3: [rank5]:[E1129 11:41:45.714 file.cpp:9] text`). The outermost time and the innermost
level and rank count. The text keeps its indentation, which tracebacks need.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from forensics.formats._log_time import MONTHS, Stamp, full_stamp, time_ns, yearless_stamp

MAX_LAYERS = 8
LEVELS = {
    **dict.fromkeys(("TRACE", "DEBUG", "VERBOSE", "D", "V", "USDT"), "debug"),
    **dict.fromkeys(("INFO", "NOTICE", "I", "STAGE", "NOTE"), "info"),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("ERROR", "ERR", "E", "SEVERE"), "error"),
    **dict.fromkeys(("FATAL", "CRITICAL", "F", "C", "EMERG", "ALERT", "CRIT", "PANIC"), "fatal"),
}
_KERNEL_LEVELS = ["fatal", "fatal", "fatal", "error", "warning", "info", "info", "debug"]


@dataclass(slots=True)
class Line:
    """A line without its prefixes."""

    text: str
    rank: int | None = None
    local_rank: int | None = None
    host: str | None = None
    pid: int | None = None
    actor: str | None = None
    device: int | None = None
    stamp: Stamp | None = None
    level: str | None = None
    writer: str | None = None
    compile_id: str | None = None
    repeated: int | None = None
    partial: bool = False
    prefixed: bool = False  # by a logger: a time, a level or a writer, not only a rank or host
    time_at: int | None = None  # where the hour of the stamp stands in the whole line
    more_stamps: tuple[tuple[int, int], ...] = ()  # where further stamps stand, which do not count

    @property
    def names_a_process(self) -> bool:
        marks = (self.rank, self.local_rank, self.host, self.pid, self.actor)
        return any(mark is not None for mark in marks)


@dataclass
class Labels:
    """Which of the ambiguous prefixes a log uses; settled by its beginning."""

    srun: bool = False
    compose: bool = False  # docker compose: "name  | text"
    hosts: set[str] = field(default_factory=set)

    @property
    def by_digits(self) -> bool:
        """Whether digits, not words, decide which lines have a label."""
        return self.srun or bool(self.hosts)


DATE = r"(\d{4})[-/](\d\d)[-/](\d\d)[T _-](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
ZONE = r"(?:\s?(Z|[+-]\d\d:?\d\d)(?![\d:]))?"
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_LEVEL = r"(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE)"
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

# A Level after a time, with the separators that loggers put around it.
_AFTER_TIME = re.compile(
    rf"\s*(?:[-|:]\s*)?(?:\[?[\w.:-]{{1,60}}\]? - |\[(?!rank\d)[\w.:-]{{1,60}}\] ?)?"
    rf"\[?{_LEVEL}\]?\s*(?::|\||-|(?=\s|\[))|\s([DIWEFC])(?=\s[\w\[])"
)
_BRACKETS = re.compile(r"\s?\[(?:[\w./<>-]{1,80}:\d+(?::[\w<>]{1,60})?|tid \d+)\](?: -)?|\s?>>(?= )")
_BRACKETS_BEGIN = ("[", " [", ">", " >", "\t[", "\t>")


def _iso(line: Line, m: re.Match[str]) -> None:
    if line.stamp is not None:
        line.prefixed, line.more_stamps = True, (*line.more_stamps, (m.start(1), m.end(7 if m[7] else 6)))
        return
    ns = time_ns(m[4], m[5], m[6], m[7])
    _set_stamp(line, full_stamp(int(m[1]), int(m[2]), int(m[3]), ns, m[8]), m.start(4))


def _set_stamp(line: Line, stamp: Stamp | None, time_at: int | None = None) -> None:
    line.prefixed = True
    if line.stamp is None:
        line.stamp, line.time_at = stamp, time_at


def _rank(line: Line, m: re.Match[str]) -> None:
    line.rank = int(m[1])


def _role(line: Line, m: re.Match[str]) -> None:
    line.local_rank = int(m[2])


def _mpi(line: Line, m: re.Match[str]) -> None:
    line.rank = int(m[1])


def _pod(line: Line, m: re.Match[str]) -> None:
    line.host = m[1]


def _actor(line: Line, m: re.Match[str]) -> None:
    line.actor = m[1].strip()
    if m[2]:
        line.rank = int(m[2])
    if m[3]:
        line.pid = int(m[3])
    line.host = m[4] or line.host


def _dated(line: Line, m: re.Match[str]) -> None:
    _iso(line, m)
    if m[9]:  # container log of Kubernetes
        line.prefixed, line.partial = False, m[9] == "P"
    elif m[11]:  # journal
        line.host, line.writer = m[10], m[11]


def _parallel(line: Line, m: re.Match[str]) -> None:
    _iso(line, m)
    parts = dict(re.findall(r"(DP|TP|PP|EP)(\d+)", m[9]))
    if set(parts) == {"TP"}:
        line.rank = int(parts["TP"])
    line.actor = m[9].strip()


def _glog(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7])), m.start(4))
    line.writer = m[9]


def _c10(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[1]], m[8], True
    if m[2]:
        _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], m[7])), m.start(4))


def _vllm(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer = LEVELS[m[1]], m[7]
    _set_stamp(line, yearless_stamp(int(m[2]), int(m[3]), time_ns(m[4], m[5], m[6], None)), m.start(4))


def _ctime(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[6]), MONTHS[m[1]], int(m[2]), time_ns(m[3], m[4], m[5], None), None), m.start(3))
    line.writer = line.writer or "kernel"  # dmesg -T


def _fabric(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[3]), MONTHS[m[1]], int(m[2]), time_ns(m[4], m[5], m[6], None), None), m.start(4))


def _boot(line: Line, m: re.Match[str]) -> None:
    seconds, fraction = m[1].split(".")
    _set_stamp(line, Stamp("boot", int(seconds) * 10**9 + int(fraction[:9].ljust(9, "0"))))
    line.writer = "kernel"


def _facility(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS.get(m[2].upper(), line.level)
    line.writer = "kernel" if m[1] == "kern" else m[1]
    line.prefixed = True


def _kmsg(line: Line, m: re.Match[str]) -> None:
    line.level = _KERNEL_LEVELS[int(m[1]) & 7]
    _set_stamp(line, Stamp("boot", int(m[3]) * 1000))
    line.writer = "kernel"


def _syslog(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, yearless_stamp(MONTHS[m[1]], int(m[2]), time_ns(m[3], m[4], m[5], None)), m.start(3))
    line.host, line.writer = m[6], m[7]


def _us_date(line: Line, m: re.Match[str]) -> None:
    _set_stamp(line, full_stamp(int(m[3]), int(m[1]), int(m[2]), time_ns(m[4], m[5], m[6], m[7]), None), m.start(4))


def _python(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[1]], m[2], True


def _level(line: Line, m: re.Match[str]) -> None:
    line.level, line.prefixed = LEVELS[m[1]], True


def _ascend(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, full_stamp(int(m[2]), int(m[3]), int(m[4]), time_ns(m[5], m[6], m[7], None), None), m.start(5))
    line.pid, line.device, line.rank = int(m[8]), int(m[9]), int(m[10])


def _kineto(line: Line, m: re.Match[str]) -> None:
    line.level = LEVELS[m[1]]
    _set_stamp(line, full_stamp(int(m[2]), int(m[3]), int(m[4]), time_ns(m[5], m[6], m[7], m[8]), None), m.start(5))
    line.writer = "kineto"


def _nccl(line: Line, m: re.Match[str]) -> None:
    line.host, line.pid, line.device = m[1], int(m[2]), int(m[3])
    line.level, line.writer, line.prefixed = LEVELS.get(m[4], "info"), "nccl", True


def _cut_glog(line: Line, m: re.Match[str]) -> None:
    line.writer, line.prefixed = m[1], True


def _slurm(line: Line, m: re.Match[str]) -> None:
    line.level, line.writer, line.prefixed = LEVELS[m[2].upper()], m[1], True


_Layer = tuple[re.Pattern[str], Callable[[Line, re.Match[str]], None]]


def _layers(*rows: tuple[str, Callable[[Line, re.Match[str]], None]]) -> list[_Layer]:
    return [(re.compile(pattern), action) for pattern, action in rows]


_NOT_ROLES = "step|epoch|iter|iteration|layer|batch|gpu|cuda|ep|item|test|case|block|stage|round|trial"
_BRACKETED = _layers(
    (r"\[rank(\d{1,6})\](?:: ?| |$)", _rank),
    (rf"\[(?!(?:{_NOT_ROLES})\d)([a-z]\w{{0,30}}?)(\d{{1,5}})\]:", _role),
    (r"\[\d+,(\d+)\]<(?:stdout|stderr|stddiag)>: ?", _mpi),
    (r"\[\d+,mpirank:(\d+),[\w.-]{1,60}\]<(?:stdout|stderr)>: ?", _mpi),  # SageMaker
    (r"\[pod/([\w.-]{1,120})/[\w.-]{1,80}\] ", _pod),
    (rf"\[{DATE}{ZONE}((?: (?:DP|TP|PP|EP)\d+)+)\] ?", _parallel),
    (rf"\[{DATE}{ZONE}\] ?", _iso),
    (
        rf"\[([VIWEFC])(?:(\d{{1,2}})(\d{{2}}) {_CLOCK}(?:\.(\d+))?)? ?"
        r"([\w./+-]{1,120}\.(?:cpp|h|hpp|cu|cc|py)):\d+\] ?",
        _c10,
    ),
    (rf"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} +(\d+) {_CLOCK} (\d{{4}})\] ?", _ctime),
    (rf"\[{_MONTH} +(\d+) (\d{{4}}) {_CLOCK}\] ?", _fabric),
    (r"\[ *(\d{1,10}\.\d{3,9})\](?: \[ *[TC]\d+\])? ?", _boot),
    (
        rf"\[{_LEVEL}\] (\d{{4}})-(\d\d)-(\d\d)-{_CLOCK} \(PID:(\d+), Device:(\d+), RankID:(\d+)\) ?",
        _ascend,
    ),
    (rf"(?:\[[A-Za-z_][\w.]{{0,80}}\])?\[{_LEVEL}(?:[|:][\w.:]{{1,80}})?\](?: -)? ?", _level),
)
_DIGITS = _layers(
    (
        rf"{DATE}{ZONE}(?: (?:stdout|stderr) ([FP])(?= |$)"
        r"| (?!NCCL)([\w.-]{1,120}) (kernel|[\w@./-]{1,60}\[\d+\]):)?",
        _dated,
    ),
    (rf"(\d\d)/(\d\d)/(\d{{4}}) {_CLOCK}(?:[.,](\d{{1,9}}))?", _us_date),
    (r"(\d{1,3}),(\d+),(\d+),[-c+][^;]{0,80};", _kmsg),
)
_LETTERS = _layers(
    (rf"([VIWEFC])(\d{{2}})(\d{{2}}) {_CLOCK}\.(\d{{3,9}})\s+(?:(\d+) )?([^\s\]]{{1,200}}):\d+\] ?", _glog),
    (rf"{_LEVEL} (\d\d)-(\d\d) {_CLOCK} (?:\[?([\w./-]{{1,120}}):\d+\]?) ?", _vllm),
    (rf"(INFO|WARNING|ERROR|STAGE|USDT|VERBOSE):{DATE} \d+:\d+ [\w.]{{1,80}}:\d+\] ?", _kineto),
    (rf"{_LEVEL}:([A-Za-z_][\w.]{{0,120}}):(?=\S)", _python),
    (r"(kern|user|daemon|syslog|auth|authpriv) *:(\w+) *: ?", _facility),
    (rf"{_MONTH} +(\d{{1,2}}) {_CLOCK} ([\w.-]{{1,120}}) ([\w./@-]{{1,60}})(?:\[\d+\])?: ?", _syslog),
    (r"((?:[\w.-]{1,80}/){1,20}[\w.-]{1,80}\.(?:py|cpp|cc)):\d+\] ?", _cut_glog),
    (r"(slurmstepd(?:-[\w.-]+)?|srun|slurmd|salloc|sbatch): (error|warning|fatal|info)(?=: )", _slurm),
)
# What a line that starts with a letter must look like for one of the patterns above to be worth trying.
_LETTER_START = re.compile(
    rf"[VIWEFC]\d{{4}} |{_LEVEL}[ :]|(?:STAGE|USDT|VERBOSE):|(?:kern|user|daemon|syslog|auth)|{_MONTH} "
    r"|slurm|srun|salloc|sbatch|[\w.-]{1,80}/|[\w.-]{1,120}:\d{1,10}:\d"
)
_NCCL = re.compile(
    r"([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[(-?\d{1,4})\] (?=(?:[\w./-]+:\d+ (?:\([\w:<>~]+\) )?)?NCCL ([A-Z]+))"
)
_ACTOR = re.compile(r"\(([A-Za-z][\w .:-]{0,60}?)(?: rank=(\d+))?,?(?: pid=(\d+))(?:, ip=([\w.]+))?\) ?")
_AUTOSCALER = re.compile(r"\((?:autoscaler|raylet)[^)]{0,60}\) ?")
_INDENTED_TIME = re.compile(r" {1,4}\[\d{4}-\d\d-\d\d ")  # Megatron
_REPEATED = re.compile(r" \[repeated (\d+)x across cluster\]")
_SRUN = re.compile(r" {0,4}(\d{1,5}):(?: |$)")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,80}): ")
COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) +\| ?")
_WRITER_RANK = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr](?:ank|ANK):? (\d{1,6})\]")
_COMPILE_ID = re.compile(r"\[(!?\d+/\d+[\w/]*)\](?: \[__(\w+)\])? ?")
_FIRST_LEVEL = re.compile(rf"\W{{0,3}}(?:{_LEVEL}\b|(error|warning|fatal): )")


def parse(raw: str, labels: Labels) -> Line:
    """The line without its prefixes."""
    line = Line(raw)
    if " across cluster]" in raw and (m := _REPEATED.search(raw)):
        line.repeated = int(m[1])
        line.text = raw = raw[: m.start()] + raw[m.end() :]
    if labels.compose and (m := COMPOSE.match(raw)):
        line.host, raw = m[1], raw[m.end() :]
        line.text = raw
    position = len(raw) - len(raw.lstrip(" ")) if _INDENTED_TIME.match(raw) else 0
    for _ in range(MAX_LAYERS):
        after = _strip_layer(raw, position, line, labels)
        if after == position:
            break
        position = after
    line.text = raw[position:] if position else raw
    _look_into_text(line)
    return line


def _strip_layer(raw: str, position: int, line: Line, labels: Labels) -> int:
    first = raw[position : position + 1]
    if first == "[":
        rows = _BRACKETED
    elif first.isdigit():
        rows = _DIGITS
    elif first == "(":
        return _strip_actor(raw, position, line)
    elif first.isalpha() and _LETTER_START.match(raw, position):
        rows = _LETTERS
    else:
        return _strip_label(raw, position, line, labels)
    for regex, action in rows:
        if m := regex.match(raw, position):
            if action is _slurm:
                action(line, m)
                return position  # the text of these is known with its writer
            action(line, m)
            return _after(raw, m.end(), line, regex)
    if first.isalpha() and (m := _NCCL.match(raw, position)):
        _nccl(line, m)
        return m.end()
    return _strip_label(raw, position, line, labels)


def _after(raw: str, position: int, line: Line, regex: re.Pattern[str]) -> int:
    """Goes on behind a time: level, module and separators that belong to the same logger."""
    if regex.pattern.startswith((r"\[rank", r"\[(?!", r"\[\d+,", r"\[pod")):
        # A rank between time and level: the level is still that of the logger.
        m = _AFTER_TIME.match(raw, position) if line.rank is not None and line.stamp and not line.level else None
        if m is None:
            return position
    else:
        m = _AFTER_TIME.match(raw, position) if raw[position - 1 : position] not in {"]", ";"} else None
    if m:
        line.level = LEVELS[m[1] or m[2]]
        line.prefixed = True
        position = m.end()
    if raw.startswith(_BRACKETS_BEGIN, position) and (m := _BRACKETS.match(raw, position)):
        position = m.end()
    if raw.startswith("[", position) and (m := _COMPILE_ID.match(raw, position)):
        line.compile_id, position = m[1], m.end()
    return position + (raw[position - 1 : position] != " " and raw.startswith(" ", position))


def _strip_actor(raw: str, position: int, line: Line) -> int:
    if m := _ACTOR.match(raw, position):
        _actor(line, m)
        return m.end()
    if m := _AUTOSCALER.match(raw, position):
        line.writer = "ray"
        return m.end()
    return position


def _strip_label(raw: str, position: int, line: Line, labels: Labels) -> int:
    if labels.srun and line.rank is None and (m := _SRUN.match(raw, position)):
        line.rank = int(m[1])
        return m.end()
    if labels.hosts and line.host is None and (m := _HOST.match(raw, position)) and m[1] in labels.hosts:
        line.host = m[1]
        return m.end()
    return position


def _look_into_text(line: Line) -> None:
    text = line.text
    if text.startswith("[") and line.rank is None and (m := _WRITER_RANK.match(text)):
        line.rank = int(m[1])
    if line.level is None and (m := _FIRST_LEVEL.match(text)):
        line.level = LEVELS[(m[1] or m[2]).upper()]
