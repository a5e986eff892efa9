"""Turns records of metrics (a line of JSON, a row of a CSV) into samples, whatever the writer named its columns.

| column | becomes |
|---|---|
| `step`, `global_step`, `_step`, `iteration`, `iter`, also behind `train/` or `trainer/` | step; the first of them wins, the others stay samples |
| `time`, `timestamp`, `_timestamp`, `ts`, `datetime`, `date`, `wall_time`, `ts_ns` | ts_ns, when it is a date or a number since the epoch |
| `rank`, `global_rank`; `world_size`, `local_rank`, `pid`, `hostname`, `host` | the process |
| `gpu`, `gpu_id`, `gpu_index`, `device`, `device_index` | device, when it is a small integer |
| `metric`, `name` or `tag` beside `value` | the name of the sample |
| `param`, `parameter`, `module`, `layer`, `tensor`, `request`, `request_id`, `model`, `process` | entity |
| loss, gradient norm, learning rate, loss scale | their normalised names |
| `phase`, `mode`, `stage`, `split`, `subset` that says validation, evaluation or test | `loss` of that record is `val_loss`, `eval_loss`, `test_loss` |
| a name that ends in a unit of size (`rss_gb`, `reserved_mib`) | the name without it, in bytes |
| true, false | 1, 0 with unit `bool` |
| other texts | facts with the line's number while they are few, then only new ones |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forensics.artifact import Sink
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import as_float, as_int
from forensics.formats._log_printer import phase_of
from forensics.formats._quantities import epoch_ns, parse_number, parse_size, parse_time
from forensics.formats._samples import SampleRows, canonical_metric, folded
from forensics.redact import masked_value

STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter", "train/global_step", "trainer/global_step")
TIME_COLUMNS = ("time", "timestamp", "_timestamp", "ts", "datetime", "date", "wall_time", "ts_ns", "@timestamp")
_RANK_COLUMNS = ("rank", "global_rank")
_PROCESS_NUMBERS = ("world_size", "local_rank", "pid")
_HOST_COLUMNS = ("hostname", "host")
_DEVICE_COLUMNS = ("gpu", "gpu_id", "gpu_index", "device", "device_index")
_NAME_COLUMNS = ("metric", "name", "tag")
_ENTITY_COLUMNS = ("param", "parameter", "module", "layer", "tensor", "request", "request_id", "model", "process")
_PHASE_COLUMNS = ("phase", "mode", "stage", "split", "subset")
_INT32_MAX = 2**31 - 1
_MAX_RANK = 1_000_000
_NOT_DISTRIBUTED = -1  # what trainers give as rank where there is one process
_MAX_DEVICE = 1023

_SIZE_SUFFIX = re.compile(r"(.{1,400})(?<!per)[_./ ]\(?([kmgt]i?b|bytes)\)?", re.IGNORECASE)
_TIME_SUFFIX = re.compile(r".{1,400}[_./ ](ns|us|ms|sec|seconds)", re.IGNORECASE)
_OF_HOST = re.compile(r"(?:^|.{0,80}[_./])(?:host|swap|cpu|ram|rss|uss|pss|vms|shm|loadavg|disk)(?:[_./]|$)")

_MAX_PLANS = 256
_MAX_PLAN_CHARS = 50_000
_MAX_PROCESSES = 65_536
_MAX_LIST = 16
_MAX_LINE_FACTS = 256
_MAX_VALUES_OF_KEY = 16
_MAX_TEXT = 500


def is_known_metric(name: str) -> bool:
    """Whether a column is one that only metrics have."""
    return canonical_metric(name) in {"loss", "grad_norm", "learning_rate", "loss_scale"}


@dataclass(frozen=True)
class _Column:
    """What a column's name says of its values."""

    name: str  # normalised, without a unit of size
    unit: str | None
    factor: int
    source: str


def _column(label: str) -> _Column:
    size = _SIZE_SUFFIX.fullmatch(label)
    host = "host" if _OF_HOST.match(folded(label)) else "metrics"
    if size:
        factor = 1 if size[2].lower() == "bytes" else parse_size(f"1{size[2]}") or 1
        return _Column(canonical_metric(size[1]), "bytes", factor, host)
    time = _TIME_SUFFIX.fullmatch(label)
    return _Column(canonical_metric(label), time[1].lower() if time else None, 1, host)


class _Plan:
    """How to read records with the same columns; most files have a few sets of them."""

    def __init__(self, record: Mapping[str, object]) -> None:
        names = {folded(name): name for name in record}

        def present(wanted: Iterable[str]) -> list[str]:
            return [names[name] for name in wanted if name in names]

        self.steps, self.ranks = present(STEP_COLUMNS), present(_RANK_COLUMNS)
        self.devices, self.times = present(_DEVICE_COLUMNS), present(TIME_COLUMNS)
        self.entities, self.hosts = present(_ENTITY_COLUMNS), present(_HOST_COLUMNS)
        self.phases = present(_PHASE_COLUMNS)
        self.value = names.get("value")
        self.labels = present(_NAME_COLUMNS) if self.value is not None else []
        self.process = {key: names[key] for key in _PROCESS_NUMBERS if key in names}
        self.columns = {name: _column(name) for name in record}
        self._tell_apart(record)

    def _tell_apart(self, record: Mapping[str, object]) -> None:
        """Two columns never share a name; the mean loss of a whole run (HF Trainer) is not a step's."""
        taken: set[str] = set()
        for name, column in self.columns.items():
            mean = column.name == "loss" and name == "train_loss" and "train_runtime" in record
            if column.name in taken or mean:
                self.columns[name] = _Column(name, column.unit, column.factor, column.source)
            taken.add(self.columns[name].name)


@dataclass
class _Placed:
    """What a record says of itself besides its values, and the columns that say so."""

    step: int | None = None
    ts_ns: int | None = None
    rank: int | None = None
    device: int | None = None
    entity: str | None = None
    label: str | None = None
    phase: str | None = None
    used: set[str] = field(default_factory=set)

    def number(self, names: list[str], record: Mapping[str, object], most: int) -> int | None:
        """The first of the columns that holds an integer from 0 to `most`."""
        for name in names:
            value = record[name]
            number = as_int(value, 0, most)
            if number is None and isinstance(value, str):
                number = as_int(parse_number(value), 0, most)  # pandas writes integer columns as 3.0
            if number is not None:
                self.used.add(name)
                return number
        return None

    def text(self, names: list[str], record: Mapping[str, object]) -> str | None:
        """The first of the columns that holds a text."""
        for name in names:
            value = record[name]
            if isinstance(value, str) and value.strip():
                return value.strip()[:_MAX_TEXT]
        return None


class MetricRows:
    """`odd`: counts values that are no metric, where a file's writer would not write any."""

    def __init__(self, sink: Sink, odd: BadFields | None = None) -> None:
        self._sink = sink
        self._odd = odd
        self._misplaced = BadFields()  # steps and ranks that are none
        self._samples = SampleRows(sink, "metrics")
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._numbers: dict[int | None, int] = {}
        self._kept: dict[int, int] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._zoned: bool | None = None
        self._texts: list[tuple[int, str, str]] = []
        self._n_texts = 0
        self._seen_texts: dict[str, set[str]] = {}

    def add(self, record: Mapping[str, object], line: int) -> None:
        """Keeps one record: flat, names to numbers, booleans, texts or short lists."""
        plan = self._plan(record)
        self._misplaced.line = line
        at = self._place(plan, record)
        proc = self._proc(at, plan, record)
        if at.ts_ns is not None:
            low, high = self._spans.get(proc, (at.ts_ns, at.ts_ns))
            self._spans[proc] = (min(low, at.ts_ns), max(high, at.ts_ns))
        before = self._samples.count
        for name, value in record.items():
            if name in at.used or value is None:
                continue
            column = _column(at.label) if at.label is not None and name == plan.value else plan.columns[name]
            found = _values(name, column, value)
            if self._odd is not None and not found and value != [] and not isinstance(value, str):
                self._odd.count(name, value)
            for metric, number, unit in found:
                self._samples.add(
                    f"{at.phase}_loss" if at.phase and metric == "loss" else metric,
                    number,
                    step=at.step,
                    ts_ns=at.ts_ns,
                    line=line,
                    entity=at.entity,
                    device=at.device,
                    unit=unit,
                    proc=proc,
                    source=column.source,
                )
            if isinstance(value, str) and value.strip() and parse_number(value) is None:
                self._note_text(line, name, value)
        self._kept[proc] = self._kept.get(proc, 0) + self._samples.count - before

    def finish(self, n_read: int, *, complete: bool) -> int:
        """Emits what is left, with coverage and clock; the number of samples in all."""
        self._samples.flush()
        self._misplaced.tell(self._sink, partial=False)
        if self._zoned is not None:
            self._sink.clock("epoch" if self._zoned else "local")
        self._emit_texts()
        for proc, kept in self._kept.items():
            span = self._spans.get(proc, (None, None))
            if kept:
                self._sink.cover(
                    "sample", proc=proc, complete=complete, n_read=n_read, n_kept=kept, from_ns=span[0], to_ns=span[1]
                )
        return self._samples.count

    def _plan(self, record: Mapping[str, object]) -> _Plan:
        names = tuple(record)
        plan = self._plans.get(names)
        if plan is None:
            plan = _Plan(record)
            if len(self._plans) < _MAX_PLANS and sum(map(len, names)) < _MAX_PLAN_CHARS:
                self._plans[names] = plan
        return plan

    def _place(self, plan: _Plan, record: Mapping[str, object]) -> _Placed:
        at = _Placed()
        at.step = at.number(plan.steps, record, 2**62)
        at.rank = at.number(plan.ranks, record, _MAX_RANK)
        for names, found, least in ((plan.steps, at.step, 0), (plan.ranks, at.rank, _NOT_DISTRIBUTED)):
            for name in names if found is None else ():
                if not _is_from(least, record[name]):
                    self._misplaced.count(name, record[name])
        at.device = at.number(plan.devices, record, _MAX_DEVICE)
        at.entity = at.text(plan.entities, record)
        at.label = at.text(plan.labels, record)
        at.phase = phase_of(at.text(plan.phases, record) or "")
        if at.label is not None:
            at.used.update(name for name in plan.labels if record[name] == at.label)
        for name in plan.times:
            moment = self._time(record[name])
            if moment is not None:
                at.used.add(name)
                at.ts_ns = at.ts_ns or moment
        return at

    def _time(self, value: object) -> int | None:
        if isinstance(value, str):
            moment = parse_time(value)
            ns, zoned = (moment.ns, moment.zoned) if moment else (epoch_ns(value), True)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            ns, zoned = epoch_ns(value), True
        else:
            return None
        if ns is None:
            return None
        if self._zoned is None:
            self._zoned = zoned
        return ns if zoned == self._zoned else None  # one artifact has one clock

    def _proc(self, at: _Placed, plan: _Plan, record: Mapping[str, object]) -> int:
        known: dict[str, int] = {}
        for key, name in plan.process.items():
            number = as_int(record[name], 0, _INT32_MAX)
            if number is not None:
                known[key] = number
                at.used.add(name)
        host = at.text(plan.hosts, record)
        if host is not None:
            at.used.update(plan.hosts)
        if at.rank not in self._numbers:
            if len(self._numbers) >= _MAX_PROCESSES:
                return 0
            self._numbers[at.rank] = len(self._numbers)
            origin = "none" if at.rank is None else "content"
            if known or host or at.rank is not None:
                number = self._numbers[at.rank]
                self._sink.proc(number, rank=at.rank, rank_origin=origin, host=host, **known)
        return self._numbers[at.rank]

    def _note_text(self, line: int, name: str, value: str) -> None:
        self._n_texts += 1
        seen = self._seen_texts.setdefault(name, set()) if len(self._seen_texts) < _MAX_LINE_FACTS else set()
        new = value not in seen and len(seen) < _MAX_VALUES_OF_KEY
        if new:
            seen.add(value)
        if new or len(self._texts) < _MAX_LINE_FACTS:
            self._texts.append((line, name, value))

    def _emit_texts(self) -> None:
        few = self._n_texts <= _MAX_LINE_FACTS
        told: set[tuple[str, str]] = set()
        for line, name, value in self._texts[: 4 * _MAX_LINE_FACTS]:
            if few or (name, value) not in told:
                told.add((name, value))
                self._sink.fact(name[:_MAX_TEXT], masked_value(name, value)[:_MAX_TEXT], scope="option", line=line)


def _is_from(least: int, value: object) -> bool:
    """False for whole numbers that are no place: below `least`, or so large that they were not taken for one."""
    number = parse_number(value) if isinstance(value, str) else as_float(value)
    return number is None or isinstance(value, bool) or number % 1 != 0 or least <= number < 0


def _values(name: str, column: _Column, value: object) -> list[tuple[str, float, str | None]]:
    """(name, number, unit) of a value; none for texts."""
    if isinstance(value, bool):
        return [(column.name, float(value), "bool")]
    if isinstance(value, list):
        numbers = [(index, as_float(item)) for index, item in enumerate(value[:_MAX_LIST])]
        return [
            (f"{name}/{index}" if index else column.name, number * column.factor, column.unit)
            for index, number in numbers
            if number is not None
        ]
    number = parse_number(value) if isinstance(value, str) else as_float(value)
    if number is not None:
        return [(column.name, number * column.factor, column.unit)]
    size = parse_size(value) if isinstance(value, str) else None
    return [] if size is None else [(column.name, float(size), "bytes")]
