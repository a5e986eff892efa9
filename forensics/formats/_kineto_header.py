"""What stands around the events of a profiler trace: base time, devices, process groups, options, user metadata.

Keys stand before or after the events, depending on the release; where a key is given twice the last one holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._json_repair import mend_header
from forensics.formats._rank_ranges import ranges_of
from forensics.redact import masked_value

BASE_STEP_NS = 7_889_238 * 10**9  # base times are multiples of three months
_EPOCH_NS = 10**18  # 2001: times from here on are absolute without a base
_RUN_NS = 86_400 * 10**9
_LATE_NS = 600 * 10**9  # a trace is written within minutes after its last event

_MAX_FACTS = 500
_MAX_TEXT = 2000
_MAX_GROUPS = 10_000
_MAX_LOG_LINES = 100
_DOCUMENT_EDGE = re.compile(rb"\}\s*(?=\{)")
_HANDLER_NAME = re.compile(r"(?:^|[/!])(?P<host>[^/!]+)_(?P<pid>\d{1,10})\.(?P<ns>\d{19})\.pt\.trace\.json")
_SPELT_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})')
_PROFILER = {"schemaVersion", "trace_id", "displayTimeUnit", "baseTimeNanoseconds", "traceName"} | {
    "with_stack",
    "profile_memory",
    "record_shapes",
    "with_modules",
    "with_flops",
    "DISABLE_CUPTI_LAZY_REINIT",
}
_LOGS = ("ERROR", "WARNING")
_SKIPPED = {"deviceProperties", "distributedInfo", "traceEvents", "INFO", "VERBOSE", "STAGE", "USDT", *_LOGS}


@dataclass(frozen=True)
class Header:
    """The members of one document beside its events."""

    fields: Mapping[str, Any]
    how: str  # whole | mended | parts (not all of it could be read)

    @property
    def distributed(self) -> Mapping[str, Any]:
        info = self.fields.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def rank(self) -> int | None:
        return _count(self.distributed.get("rank"))

    @property
    def world_size(self) -> int | None:
        return _count(self.distributed.get("world_size"))

    @property
    def host(self) -> str | None:
        host = self.fields.get("host_name")
        return host if isinstance(host, str) and host else None

    @property
    def base_ns(self) -> int | None:
        base = _count(self.fields.get("baseTimeNanoseconds"), 2**62)
        return base or None


def _count(value: object, limit: int = 2**31) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"\d{1,19}", value):
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit else None


def read_headers(texts: Sequence[bytes]) -> list[Header]:
    """One header for each document out of the texts before, between and after the arrays of events."""
    before = [texts[0] if texts else b""]
    after: list[bytes] = []
    for text in texts[1:-1]:
        edge = _DOCUMENT_EDGE.search(text)
        after.append(text[: edge.start() + 1] if edge else text)
        before.append(text[edge.end() :] if edge else b"")
    after.append(texts[-1] if len(texts) > 1 else b"")
    headers = []
    for head, tail in zip(before, after, strict=True):
        first, how_first = mend_header(head)
        last, how_last = mend_header(tail)
        fields = {**first, **last}
        spelt = _SPELT_BASE.search(tail) or _SPELT_BASE.search(head)
        if "baseTimeNanoseconds" not in fields and spelt:
            fields["baseTimeNanoseconds"] = int(spelt[1])
        headers.append(
            Header(fields, next((how for how in ("parts", "mended") if how in {how_first, how_last}), "whole"))
        )
    return headers


def base_from_name(name: str, last_ns: int) -> int | None:
    """The base time that a lost header held, out of the time that the trace handler put into the file's name.

    `last_ns`: the latest time in the trace, relative to its base.
    """
    found = _HANDLER_NAME.search(name)
    if not found:
        return None
    written = int(found["ns"])
    base = (written - last_ns) // BASE_STEP_NS * BASE_STEP_NS
    for candidate in (base, base + BASE_STEP_NS):
        if 0 <= written - candidate - last_ns <= _LATE_NS:
            return candidate
    return None


def is_absolute(last_ns: int) -> bool:
    return last_ns >= _EPOCH_NS


def host_from_name(name: str) -> str | None:
    found = _HANDLER_NAME.search(name)
    return found["host"] if found else None


def emit_facts(header: Header, sink: Sink, proc: int) -> None:
    """Options, versions, devices, distributed settings and user metadata of one document."""
    for count, (scope, key, value) in enumerate(_facts(header)):
        if count >= _MAX_FACTS:
            break
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
        sink.fact(key[:200], masked_value(key, text)[:_MAX_TEXT], scope=scope, number=number, proc=proc)


def _facts(header: Header) -> Iterator[tuple[str, str, Any]]:
    for key, value in header.fields.items():
        if key not in _SKIPPED and value is not None:
            yield _scope(key), key, value
    for key, value in header.distributed.items():
        if key != "pg_config" and value is not None:
            yield "version" if key.endswith("_version") else "distributed", key, value
    devices = header.fields.get("deviceProperties")
    for device in devices[:64] if isinstance(devices, list) else ():
        if isinstance(device, dict):
            prefix = f"device.{device.get('id', 0)}."
            yield from (("device", prefix + k, v) for k, v in device.items() if k != "id" and v is not None)
    for key in _LOGS:
        lines = header.fields.get(key)
        yield from (("profiler", key, line) for line in (lines[:_MAX_LOG_LINES] if isinstance(lines, list) else ()))


def _scope(key: str) -> str:
    if key in _PROFILER:
        return "profiler"
    if key == "host_name":
        return "host"
    return "version" if key.endswith("_version") else "note"


def process_groups(headers: Sequence[Header]) -> pa.Table:
    """Rows of `process_group` out of every document's pg_config, numbered in order."""
    groups = [group for header in headers for group in _groups(header)][:_MAX_GROUPS]
    return pa.table(
        {
            "id": pa.array(range(len(groups)), pa.int32()),
            "name": pa.array([group[0] for group in groups], pa.string()),
            "backend": pa.array([group[1] for group in groups], pa.string()),
            "ranks": pa.array([ranges_of(group[2]) for group in groups], pa.string()),
        }
    )


def _groups(header: Header) -> Iterator[tuple[str, str | None, list[int] | None]]:
    config = header.distributed.get("pg_config")
    if isinstance(config, dict):  # releases 2.1 to 2.3
        config = [{"pg_name": name, **group} for name, group in config.items() if isinstance(group, dict)]
    for number, group in enumerate(config if isinstance(config, list) else ()):
        if isinstance(group, dict):
            backend = group.get("backend_config") or group.get("backend_id")
            name = group.get("pg_name")
            yield (
                str(number if name is None else name),
                None if backend is None else str(backend),
                _ranks(group, header.world_size),
            )


def _ranks(group: Mapping[str, Any], world_size: int | None) -> list[int] | None:
    ranks = group.get("ranks")
    if isinstance(ranks, str):  # on-demand traces; long lists are cut with dots
        if not re.fullmatch(r"\[[\d,\s]{0,1000000}\]", ranks):
            return None
        ranks = orjson.loads(re.sub(r",\s*\]", "]", ranks))
    size = _count(group.get("pg_size")) or world_size
    if ranks == [] and size is not None and size == world_size and size <= 2**20:
        return list(range(size))  # all ranks, in some releases
    if not isinstance(ranks, list) or not ranks or any(_count(rank) is None for rank in ranks):
        return None
    return [int(rank) for rank in ranks]
