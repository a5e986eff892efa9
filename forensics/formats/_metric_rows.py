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
| a name that ends in a unit of size (`rss_gb`, `reserved_mib`) | the name without it, in bytes |
| true, false | 1, 0 with unit `bool` |
| other texts | facts with the line's number while they are few, then only new ones |
"""  # noqa: E501

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forensics.artifact import Sink
from forensics.formats._lenient_json import as_float, as_int
from forensics.formats._quantities import epoch_ns, parse_number, parse_size, parse_time
from forensics.formats._samples import SampleRows, canonical_metric, folded
from forensics.formats._secrets import masked_value

STEP_COLUMNS = ("step", "global_step", "_step", "iteration", "iter", "train/global_step", "trainer/global_step")
TIME_COLUMNS = ("time", "timestamp", "_timestamp", "ts", "datetime", "date", "wall_time", "ts_ns", "@timestamp")
_RANK_COLUMNS = ("rank", "global_rank")
_PROCESS_NUMBERS = ("world_size", "local_rank", "pid")
_HOST_COLUMNS = ("hostname", "host")
_DEVICE_COLUMNS = ("gpu", "gpu_id", "gpu_index", "device", "device_index")
_NAME_COLUMNS = ("metric", "name", "tag")
_ENTITY_COLUMNS = ("param", "parameter", "module", "layer", "tensor", "request", "request_id", "model", "process")
_INT32_MAX = 2**31 - 1
_MAX_RANK = 1_000_000
_MAX_DEVICE = 1023

_SIZE_SUFFIX = re.compile(r"(.{1,400})(?<!per)[_./ ]\(?([kmgt]i?b|bytes)\)?", re.IGNORECASE)
_TIME_SUFFIX = re.compile(r".{1,400}[_./ ](ns|us|ms|sec|seconds)", re.IGNORECASE)
_OF_HOST = re.compile(r"(?:^|.{0,80}[_./])(?:host|swap|cpu|ram|rss|uss|pss|vms|shm|loadavg|disk)(?:[_./]|$)")

_MAX_LINE_FACTS = 256
_MAX_VALUES_OF_KEY = 16
_MAX_TEXT = 500


def is_known_metric(name: str) -> bool:
    """Whether a column is one that only metrics have."""
    return canonical_metric(name) in {"loss", "grad_norm", "learning_rate", "loss_scale"}


@dataclass
class _Columns:
    """What a record says of itself besides its values."""

    step: int | None = None
    ts_ns: int | None = None
    rank: int | None = None
    device: int | None = None
    entity: str | None = None
    name: str | None = None
    used: set[str] = field(default_factory=set)


class MetricRows:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._samples = SampleRows(sink, "metrics")
        self._numbers: dict[int | None, int] = {}
        self._kept: dict[int, int] = {}
        self._spans: dict[int, tuple[int, int]] = {}
        self._zoned: bool | None = None
        self._texts: list[tuple[int, str, str]] = []
        self._n_texts = 0
        self._seen_texts: dict[str, set[str]] = {}

    def add(self, record: Mapping[str, object], line: int) -> int:
        """Keeps one record (flat: names to numbers, booleans, texts or short lists); the number of samples it gave."""
        names = {folded(name): name for name in record}
        columns = self._read_columns(record, names)
        proc = self._proc(columns.rank, record, names, columns.used)
        if columns.ts_ns is not None:
            low, high = self._spans.get(proc, (columns.ts_ns, columns.ts_ns))
            self._spans[proc] = (min(low, columns.ts_ns), max(high, columns.ts_ns))
        before = self._samples.count
        taken: set[str] = set()
        for name, value in record.items():
            if name in columns.used:
                continue
            told = columns.name if columns.name and folded(name) == "value" else name
            for label, number, unit in self._values(told, value):
                metric = self._metric_name(label, taken, record)
                self._samples.add(
                    metric,
                    number,
                    step=columns.step,
                    ts_ns=columns.ts_ns,
                    line=line,
                    entity=columns.entity,
                    device=columns.device,
                    unit=unit,
                    proc=proc,
                    source="host" if _OF_HOST.match(folded(label)) else "metrics",
                )
            if isinstance(value, str) and parse_number(value) is None and value.strip():
                self._note_text(line, name, value)
        added = self._samples.count - before
        self._kept[proc] = self._kept.get(proc, 0) + added
        return added

    def finish(self, n_read: int, *, complete: bool) -> int:
        """Emits what is left, with coverage and clock; the number of samples in all."""
        self._samples.flush()
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

    def _read_columns(self, record: Mapping[str, object], names: Mapping[str, str]) -> _Columns:
        columns = _Columns()
        step = self._first_number(STEP_COLUMNS, record, names, columns.used, 2**62)
        columns.step = step
        columns.rank = self._first_number(_RANK_COLUMNS, record, names, columns.used, _MAX_RANK)
        columns.device = self._first_number(_DEVICE_COLUMNS, record, names, columns.used, _MAX_DEVICE)
        for name in self._present(TIME_COLUMNS, names):
            moment = self._time(record[name])
            if moment is not None:
                columns.used.add(name)
                columns.ts_ns = columns.ts_ns or moment
        for name in self._present(_ENTITY_COLUMNS, names):
            value = record[name]
            if isinstance(value, str) and columns.entity is None:
                columns.entity = value[:_MAX_TEXT]
        if "value" in names:
            for name in self._present(_NAME_COLUMNS, names):
                value = record[name]
                if isinstance(value, str) and value.strip() and columns.name is None:
                    columns.name = value[:_MAX_TEXT]
                    columns.used.add(name)
        return columns

    @staticmethod
    def _present(wanted: Iterable[str], names: Mapping[str, str]) -> list[str]:
        return [names[name] for name in wanted if name in names]

    def _first_number(
        self, wanted: Iterable[str], record: Mapping[str, object], names: Mapping[str, str], used: set[str], most: int
    ) -> int | None:
        for name in self._present(wanted, names):
            number = as_int(record[name], 0, most)
            if number is None and isinstance(record[name], str):
                number = as_int(parse_number(str(record[name])), 0, most)  # pandas writes integer columns as 3.0
            if number is not None:
                used.add(name)
                return number
        return None

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

    def _proc(self, rank: int | None, record: Mapping[str, object], names: Mapping[str, str], used: set[str]) -> int:
        known: dict[str, int | str] = {}
        for key in _PROCESS_NUMBERS:
            number = as_int(record[names[key]], 0, _INT32_MAX) if key in names else None
            if number is not None:
                known[key] = number
                used.add(names[key])
        for name in self._present(_HOST_COLUMNS, names):
            value = record[name]
            if isinstance(value, str) and value.strip():
                known["host"] = value.strip()[:_MAX_TEXT]
                used.add(name)
        if rank not in self._numbers:
            self._numbers[rank] = len(self._numbers)
            if rank is not None:
                self._sink.proc(self._numbers[rank], rank=rank, rank_origin="content", **known)  # type: ignore[arg-type]
            elif known:
                self._sink.proc(self._numbers[rank], **known)  # type: ignore[arg-type]
        return self._numbers[rank]

    def _values(self, name: str, value: object) -> list[tuple[str, float, str | None]]:
        """(name, number, unit) of a value; none for texts."""
        if isinstance(value, bool):
            return [(name, float(value), "bool")]
        if isinstance(value, list):
            numbers = [as_float(item) for item in value[:16]]
            return [
                found
                for index, number in enumerate(numbers)
                if number is not None
                for found in self._values(name if index == 0 else f"{name}/{index}", number)
            ]
        number = parse_number(value) if isinstance(value, str) else as_float(value)
        if number is None:
            size = parse_size(value) if isinstance(value, str) else None
            return [] if size is None else [(name, float(size), "bytes")]
        size_suffix = _SIZE_SUFFIX.fullmatch(name)
        if size_suffix:
            unit = parse_size("1" if size_suffix[2].lower() == "bytes" else f"1{size_suffix[2]}") or 1
            return [(size_suffix[1], number * unit, "bytes")]
        time_suffix = _TIME_SUFFIX.fullmatch(name)
        return [(name, number, time_suffix[1].lower() if time_suffix else None)]

    @staticmethod
    def _metric_name(label: str, taken: set[str], record: Mapping[str, object]) -> str:
        """Two columns of a record never share a name; the mean loss of a whole run (HF Trainer) is not a step's."""
        name = canonical_metric(label)
        if name in taken or (name == "loss" and label == "train_loss" and "train_runtime" in record):
            name = label
        taken.add(name)
        return name

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
