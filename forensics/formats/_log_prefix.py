"""Takes the prefixes off a log line that launchers, containers and loggers put there, and keeps what they say.

Several may be nested (`node-3: [rank5]:[E1129 11:41:45.714 file.cpp:9] text`). The outermost time and the innermost
level and rank count. The text keeps its indentation, which tracebacks need.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from forensics.formats import _log_marks as marks
from forensics.formats._log_marks import LEVELS, Labels, Line

MAX_LAYERS = 8

DATE = r"(\d{4})[-/](\d\d)[-/](\d\d)[T _,-](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"
ZONE = r"(?:\s?(Z|[+-]\d\d:?\d\d)(?![\d:]))?"
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_LEVEL = r"(TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE)"
_MONTH = "(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"

# A Level after a time, with the separators that loggers put around it.
_AFTER_TIME = re.compile(
    rf"\s*(?:[-|:]\s*)?(?:\[?[\w.:-]{{1,60}}\]? - |\[(?!rank\d)[\w.:-]{{1,60}}\] ?)?"
    rf"\[?{_LEVEL}\]?\s*(?::|\||-|(?=\s|\[))|\s([DIWEFC])(?=\s[\w\[])"
)
# A time of day is one of a logger where its level follows; else the log as a whole has to show it.
_TIME_OF_DAY = rf"{_CLOCK}(?:[.,](\d{{1,9}}))?"
_LEVEL_FOLLOWS = (
    r"(?=\s*(?:[-|:]\s*)?(?:\[?[\w.:-]{1,60}\]? - |\[(?!rank\d)[\w.:-]{1,60}\] ?)?"
    rf"\[?{_LEVEL}\]?(?:\s|:|\||-|\[|$))"
)
RICH = re.compile(rf"\[(?:\d\d/\d\d/\d\d )?{_CLOCK}\] {_LEVEL} {{1,8}}(?=\S)")
_RICH_LEVEL = re.compile(rf" {_LEVEL} {{1,8}}(?=\S)")
_BLANK_TIME = re.compile(rf" {{11,24}}{_LEVEL} {{1,8}}(?=\S)")
_BRACKETS = re.compile(r"\s?\[(?:[\w./<>-]{1,80}:\d+(?::[\w<>]{1,60})?|tid \d+)\](?: -)?|\s?>>(?= )")
_BRACKETS_BEGIN = ("[", " [", ">", " >", "\t[", "\t>")


_Layer = tuple[re.Pattern[str], Callable[[Line, re.Match[str]], None]]


def _layers(*rows: tuple[str, Callable[[Line, re.Match[str]], None]]) -> list[_Layer]:
    return [(re.compile(pattern), action) for pattern, action in rows]


_NOT_ROLES = "step|epoch|iter|iteration|layer|batch|gpu|cuda|ep|item|test|case|block|stage|round|trial"
_BRACKETED = _layers(
    (r"\[rank(\d{1,400})\](?:: ?| |$)", marks.take_rank),
    (rf"\[(?!(?:{_NOT_ROLES})\d)([a-z](?:\w{{0,30}}?[a-z_])?)(\d{{1,5}})\]:", marks.take_role),
    (r"\[\d+,(\d{1,400})\]<(?:stdout|stderr|stddiag)>:(?: (?=\S))?", marks.take_rank),
    (r"\[\d+,mpirank:(\d{1,400}),[\w.-]{1,60}\]<(?:stdout|stderr)>:(?: (?=\S))?", marks.take_rank),  # SageMaker
    (r"\[pod/([\w.-]{1,120})/[\w.-]{1,80}\] ", marks.take_pod),
    (rf"\[{DATE}{ZONE}((?: (?:DP|TP|PP|EP)\d{{1,400}}){{1,4}})\] ?", marks.take_parallel),
    (rf"\[{DATE}{ZONE}\] ?", marks.take_iso),
    (
        rf"\[([VIWEFC])(?:(\d{{1,2}})(\d{{2}}) {_CLOCK}(?:\.(\d+))?)? ?"
        r"([\w./+-]{1,120}\.(?:cpp|h|hpp|cu|cc|py)):\d+\] ?",
        marks.take_c10,
    ),
    (rf"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH} +(\d+) {_CLOCK} (\d{{4}})\] ?", marks.take_ctime),
    (rf"\[{_MONTH} +(\d+) (\d{{4}}) {_CLOCK}\] ?", marks.take_fabric),
    (r"\[ *(\d{1,10}\.\d{3,9})\](?: \[ *[TC]\d+\])? ?", marks.take_boot),
    (rf"\[{_TIME_OF_DAY}\]{_LEVEL_FOLLOWS}", marks.take_clock),
    (rf"\[(\d\d)/(\d\d)/(\d\d) {_TIME_OF_DAY}\]{_LEVEL_FOLLOWS}", marks.take_short_date),
    (
        rf"\[{_LEVEL}\] (\d{{4}})-(\d\d)-(\d\d)-{_CLOCK} "
        r"\(PID:(\d{1,10}), Device:(\d{1,4}), RankID:(\d{1,400})\) ?",
        marks.take_ascend,
    ),
    (rf"(?:\[[A-Za-z_][\w.]{{0,80}}\])?\[{_LEVEL}(?:[|:][\w.:]{{1,80}})?\](?: -)? ?", marks.take_level),
)
_DIGITS = _layers(
    (
        rf"{DATE}{ZONE}(?: (?:stdout|stderr) ([FP])(?= |$)"
        r"| (?!NCCL)([\w.-]{1,120}) (kernel|[\w@./-]{1,60}\[\d+\]):)?",
        marks.take_dated,
    ),
    (rf"(\d\d)/(\d\d)/(\d{{4}}) {_CLOCK}(?:[.,](\d{{1,9}}))?", marks.take_us_date),
    (r"(\d{1,3}),(\d+),(\d+),[-c+][^;]{0,80};", marks.take_kmsg),
    (rf"{_TIME_OF_DAY}{_LEVEL_FOLLOWS}", marks.take_clock),
)
# Only where the whole log has it.
_TIMED_BRACKETED = _layers((rf"\[{_TIME_OF_DAY}\](?= |$)", marks.take_clock))
_TIMED_DIGITS = _layers((rf"{_TIME_OF_DAY}(?: (?:-|\|)(?= )|(?= |$))", marks.take_clock))
TIMED = re.compile(rf"(?:\[{_TIME_OF_DAY}\]|{_TIME_OF_DAY}(?: (?:-|\|)(?= )|(?=\s)))(?=\s|$)")
_LETTERS = _layers(
    (rf"([VIWEFC])(\d{{2}})(\d{{2}}) {_CLOCK}\.(\d{{3,9}})\s+(?:(\d+) )?([^\s\]]{{1,200}}):\d+\] ?", marks.take_glog),
    (rf"{_LEVEL} (\d\d)-(\d\d) {_CLOCK} (?:\[?([\w./-]{{1,120}}):\d+\]?) ?", marks.take_vllm),
    (rf"(INFO|WARNING|ERROR|STAGE|USDT|VERBOSE):{DATE} \d+:\d+ [\w.]{{1,80}}:\d+\] ?", marks.take_kineto),
    (rf"{_LEVEL}:([A-Za-z_][\w.]{{0,120}}):(?=\S)", marks.take_python),
    (r"(kern|user|daemon|syslog|auth|authpriv) *:(\w+) *: ?", marks.take_facility),
    (rf"{_MONTH} +(\d{{1,2}}) {_CLOCK} ([\w.-]{{1,120}}) ([\w./@-]{{1,60}})(?:\[\d+\])?: ?", marks.take_syslog),
    (r"((?:[\w.-]{1,80}/){1,20}[\w.-]{1,80}\.(?:py|cpp|cc)):\d+\] ?", marks.take_cut_glog),
    (r"(slurmstepd(?:-[\w.-]+)?|srun|slurmd|salloc|sbatch): (error|warning|fatal|info)(?=: )", marks.take_slurm),
)
_CARRIERS = (marks.take_dated, marks.take_syslog)
# What a line that starts with a letter must look like for one of the patterns above to be worth trying.
_LETTER_START = re.compile(
    rf"[VIWEFC]\d{{4}} |{_LEVEL}[ :]|(?:STAGE|USDT|VERBOSE):|(?:kern|user|daemon|syslog|auth)|{_MONTH} "
    r"|slurm|srun|salloc|sbatch|[\w.-]{1,80}/|[\w.-]{1,120}:\d{1,10}:\d"
)
_NCCL = re.compile(
    r"([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[(-?\d{1,4})\] (?=(?:[\w./-]+:\d+ (?:\([\w:<>~]+\) )?)?NCCL ([A-Z]+))"
)
_ACTOR = re.compile(r"\(([A-Za-z][\w .:-]{0,60}?)(?: rank=(\d{1,6}))?,?(?: pid=(\d{1,10}))(?:, ip=([\w.]+))?\) ?")
_AUTOSCALER = re.compile(r"\((?:autoscaler|raylet)[^)]{0,60}\) ?")
_INDENTED_TIME = re.compile(r" {1,4}\[\d{4}-\d\d-\d\d ")  # Megatron
_LENGTH_OF_DATE = len("[2026-03-01 ")
_REPEATED = re.compile(r" \[repeated (\d+)x across cluster\]")
_SRUN = re.compile(r" {0,4}(\d{1,5}):(?: |$)")
_HOST = re.compile(r"([A-Za-z][\w.-]{0,80}): ")
COMPOSE = re.compile(r"([A-Za-z0-9][\w.-]{0,80}) +\| ?")
_WRITER_RANK = re.compile(r"\[(?:PG [^\]]{0,80} )?[Rr](?:ank|ANK):? (\d{1,6})\]")
_COMPILE_ID = re.compile(r"\[(!?\d+/\d+[\w/]*)\](?: \[__(\w+)\])? ?")
# torch up to 2.2 writes `[TIME] [0/1] torch._dynamo.convert_frame: [WARNING] text`.
_TORCH_LOGGER = re.compile(rf"torch(?:\.\w{{1,60}}){{1,8}}: \[{_LEVEL}\](?: |$)")
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
        marks.mark(line, "compose", m[1])
    position = 0
    if labels.rich and (m := _BLANK_TIME.match(raw)):
        marks.take_blank_time(line, m)
        position = m.end()
    for _ in range(MAX_LAYERS):
        if raw.startswith(" ", position) and (m := _INDENTED_TIME.match(raw, position)):
            position = m.end() - _LENGTH_OF_DATE
        after = _strip_layer(raw, position, line, labels)
        if after == position:
            break
        position = after
    line.text = raw[position:] if position else raw
    _look_into_text(line)
    if labels.carried and line.level is None and line.writer is None and not line.more_stamps:
        line.prefixed = False
    labels.nested |= len(line.marks) > 1
    return line


def _strip_layer(raw: str, position: int, line: Line, labels: Labels) -> int:
    first = raw[position : position + 1]
    if first == "[":
        rows = [*_BRACKETED, *_TIMED_BRACKETED] if labels.timed else _BRACKETED
    elif first.isdigit():
        rows = [*_DIGITS, *_TIMED_DIGITS] if labels.timed else _DIGITS
    elif first == "(":
        return _strip_actor(raw, position, line)
    elif first.isalpha() and _LETTER_START.match(raw, position):
        rows = _LETTERS
    else:
        return _strip_label(raw, position, line, labels)
    for regex, action in rows:
        if m := regex.match(raw, position):
            action(line, m)
            if action is marks.take_slurm:
                return position  # the text of these is known with its writer
            # Behind what carried the line, it is as its writer wrote it.
            carried = action in _CARRIERS and not line.prefixed
            return _behind_space(raw, m.end()) if carried else _after(raw, m.end(), line, regex, labels)
    if first.isalpha() and (m := _NCCL.match(raw, position)):
        marks.take_nccl(line, m)
        return m.end()
    return _strip_label(raw, position, line, labels)


def _after(raw: str, position: int, line: Line, regex: re.Pattern[str], labels: Labels) -> int:
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
    elif labels.rich and (m := _RICH_LEVEL.match(raw, position)):
        marks.take_blank_time(line, m)
        position = m.end()
    if raw.startswith(_BRACKETS_BEGIN, position) and (m := _BRACKETS.match(raw, position)):
        position = m.end()
    if raw.startswith("[", position) and (m := _COMPILE_ID.match(raw, position)):
        line.compile_id, position = m[1], m.end()
    if raw.startswith("torch.", position) and (m := _TORCH_LOGGER.match(raw, position)):
        line.level, line.prefixed = LEVELS[m[1]], True
        return m.end()
    return _behind_space(raw, position)


def _behind_space(raw: str, position: int) -> int:
    return position + (raw[position - 1 : position] != " " and raw.startswith(" ", position))


def _strip_actor(raw: str, position: int, line: Line) -> int:
    if m := _ACTOR.match(raw, position):
        marks.take_actor(line, m)
        return m.end()
    if m := _AUTOSCALER.match(raw, position):
        line.writer = "ray"
        return m.end()
    return position


def _strip_label(raw: str, position: int, line: Line, labels: Labels) -> int:
    if labels.srun and line.rank is None and (m := _SRUN.match(raw, position)):
        marks.take_rank(line, m)
        return m.end()
    if labels.hosts and (m := _HOST.match(raw, position)) and m[1] in labels.hosts:
        line.host = m[1]
        marks.mark(line, "label", m[1])
        return m.end()
    return position


def _look_into_text(line: Line) -> None:
    text = line.text
    if text.startswith("[") and line.rank is None and (m := _WRITER_RANK.match(text)):
        marks.take_rank(line, m)
    if line.level is None and (m := _FIRST_LEVEL.match(text)):
        line.level = LEVELS[(m[1] or m[2]).upper()]
