"""How long tasks waited for a processor: `perf sched latency`, `schedstat` and `sched` of /proc/PID, `pidstat -w`.

`schedstat` holds ns run, ns ready but waiting, and times that the task was given a processor; of a file with several
lines (one for each look, a time in front or not) the differences from line to line count. Rows: `run_delay_seconds`,
`n_switches` and `run_seconds` of one task; pidstat tells switches a second alone. Times inside are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import decode_text, head_lines, numbered_lines

VERSION = 1
TITLE = "Waits for a processor (perf sched latency, schedstat, pidstat -w)"
PROVIDES = ("sample.host",)

_MAX_LINE = 2000
_MAX_TASKS = 100_000
_PERF_HEAD = re.compile(
    r"\s{0,20}Task\s{1,200}\|\s{1,20}Runtime ms\s{1,20}\|\s{1,20}(?:Switches|Count)\s{1,20}\|"
    r"\s{1,20}Av(?:g|erage) delay ms"
)
_PERF_ROW = re.compile(
    r"\s{0,20}(?P<task>\S.{0,80}?):\(?(?P<which>\d{1,10})\)?\s{0,40}\|\s{0,40}(?P<run>[\d.]{1,20}) ms \|"
    r"\s{0,40}(?P<n>\d{1,18}) \|\s{0,40}(?:avg:\s{0,20})?(?P<delay>[\d.]{1,20}) ms \|"
)
_SCHEDSTAT = re.compile(r"(?:[\d.T:+Z-]{1,40} )?(\d{1,19}) (\d{1,19}) (\d{1,19})")
_SCHED_HEAD = re.compile(r"(?P<task>\S.{0,80}) \((?P<pid>\d{1,10}), #threads: \d{1,9}\)")
_SCHED_ROW = re.compile(
    r"(?:se\.(?:statistics\.)?)?(?P<key>wait_sum|nr_switches|nr_involuntary_switches|sum_exec_runtime)\s{1,200}:"
    r"\s{1,200}(?P<value>[\d.]{1,30})"
)
_PIDSTAT_HEAD = re.compile(r".{0,40}\bPID\s{1,40}cswch/s\s{1,20}nvcswch/s\s{1,20}Command")
_PIDSTAT_ROW = re.compile(
    r".{0,60}?\s(?P<pid>\d{1,10})\s{1,40}(?P<own>\d{1,12}\.\d\d)\s{1,40}(?P<forced>\d{1,12}\.\d\d)\s{1,20}"
    r"(?P<task>\S.{0,200})"
)

_Figure = tuple[str, str, float, str | None]  # name, task, value, unit


def recognise(head: Head) -> int:
    lines = [line[:_MAX_LINE] for line in head_lines(decode_text(head.data), whole=head.whole) if line.strip()]
    if any(_PERF_HEAD.match(line) or _PIDSTAT_HEAD.match(line) for line in lines[:10]):
        return 85
    if lines and _SCHED_HEAD.fullmatch(lines[0].strip()) and any(_SCHED_ROW.match(line) for line in lines):
        return 85
    is_schedstat = "schedstat" in head.name.rpartition("/")[2]
    return 85 if is_schedstat and lines and all(_SCHEDSTAT.fullmatch(line.strip()) for line in lines) else 0


def load(source: Source, sink: Sink) -> None:
    rows = SampleRows(sink, "host")
    reader = _Reader(source.name.rpartition("/")[2])
    n_lines = n_other = 0
    for number, text, _ in numbered_lines(source, max_chars=_MAX_LINE):
        if not text.strip():
            continue
        n_lines += 1
        figures = list(reader.figures(text))
        n_other += not figures and not reader.is_known
        for name, task, value, unit in figures:
            if rows.count < 3 * _MAX_TASKS:
                rows.add(name, value, line=number, entity=task, unit=unit)
    rows.flush()
    if not rows.count:
        raise ArtifactError(f"{source.name}: no row of a task; expected waits for a processor", byte=0)
    if n_other:
        sink.warn("other-lines", f"{n_other} lines tell of no task", "what they say")
    sink.proc(0)
    sink.cover("sample.host", complete=source.damage is None, n_read=n_lines, n_kept=n_lines - n_other)


class _Reader:
    """Figures of one line after the other; `is_known` says whether the last line was one of the form."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._form = "schedstat"
        self._task = name
        self._last: tuple[int, int, int] | None = None
        self.is_known = True

    def figures(self, text: str) -> Iterator[_Figure]:
        self.is_known = True
        if _PERF_HEAD.match(text):
            self._form = "perf"
        elif _PIDSTAT_HEAD.match(text):
            self._form = "pidstat"
        elif found := _SCHED_HEAD.fullmatch(text.strip()):
            self._form, self._task = "sched", f"{found['task']} {found['pid']}"
        elif self._form == "perf" and (found := _PERF_ROW.match(text)):
            task, n = f"{found['task']}:{found['which']}", float(found["n"])
            yield "run_delay_seconds", task, float(found["delay"]) * n / 1000, "s"
            yield "n_switches", task, n, None
            yield "run_seconds", task, float(found["run"]) / 1000, "s"
        elif self._form == "pidstat" and (found := _PIDSTAT_ROW.fullmatch(text)):
            task = f"{found['task'].strip()} {found['pid']}"
            yield "voluntary_switches_per_second", task, float(found["own"]), "1/s"
            yield "involuntary_switches_per_second", task, float(found["forced"]), "1/s"
        elif self._form == "sched":
            if found := _SCHED_ROW.match(text):
                yield from self._sched(found["key"], float(found["value"]))
        elif self._form == "schedstat" and (found := _SCHEDSTAT.fullmatch(text.strip())):
            yield from self._schedstat(int(found[1]), int(found[2]), int(found[3]))
        else:
            self.is_known = text.strip(" -") == ""

    def _sched(self, key: str, value: float) -> Iterator[_Figure]:
        if key in {"wait_sum", "sum_exec_runtime"}:
            yield "run_delay_seconds" if key == "wait_sum" else "run_seconds", self._task, value / 1000, "s"
        else:
            yield {"nr_switches": "n_switches"}.get(key, "n_involuntary_switches"), self._task, value, None

    def _schedstat(self, ran_ns: int, waited_ns: int, n: int) -> Iterator[_Figure]:
        before, self._last = self._last, (ran_ns, waited_ns, n)
        if before is None or any(new < old for new, old in zip(self._last, before, strict=True)):
            before = (0, 0, 0)
        yield "run_delay_seconds", self._task, (waited_ns - before[1]) / 1e9, "s"
        yield "n_switches", self._task, float(n - before[2]), None
        yield "run_seconds", self._task, (ran_ns - before[0]) / 1e9, "s"
