"""Counters of PyTorch's CUDA allocator as JSON: `torch.cuda.memory_stats()`, its nested form, or one of them for each
device, rank, step or line.

Keys that lead to the counters say whose they are: a bare number or the place in a list is a device, `rank3` a rank.
`.allocated` and `.freed` are sums since the process began, not what is allocated now: that is `.current`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._lenient_json import JsonError, JsonWalk, as_float, as_int, parse_json
from forensics.formats._memory_contradictions import contradictions_of_counters, contradictory
from forensics.formats._quantities import parse_time
from forensics.formats._samples import SampleRows
from forensics.formats._text_lines import LineCounter, decode_text, read_text

VERSION = 2
TITLE = "CUDA memory statistics (JSON)"
PROVIDES = ("sample.allocator",)

_MAX_BYTES = 256 << 20
_MAX_PROCESSES = 100_000
# fmt: off
_METRICS = {
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes", "oversize_allocations", "oversize_segments", "num_alloc_retries",
    "reserved_bytes_by_private_pools", "num_ooms", "num_oom_rejections", "num_sync_all_streams", "num_device_alloc",
    "num_device_free", "max_split_size", "allocations", "active_requests", "num_host_alloc", "num_host_free",
    "host_alloc_time", "host_free_time",
}
# fmt: on
_FACTS = ("num_ooms", "num_alloc_retries", "num_oom_rejections", "max_split_size")
_SIGNS = re.compile(
    r'"(?:allocated_bytes|reserved_bytes|active_bytes|inactive_split_bytes)(?:\.(?:all|large_pool)|"\s*:)'
)
_DEVICE = re.compile(r"(?:cuda:|device[ _]?|gpu[ _]?)?(\d{1,4})", re.IGNORECASE)
_RANK = re.compile(r"rank[ _]?(\d{1,7})", re.IGNORECASE)
_PLACES = {"rank": "rank", "global_rank": "rank", "device": "device", "local_rank": "device"}
_PLACES |= {"step": "step", "global_step": "step", "iteration": "step", "time": "time", "timestamp": "time"}


@dataclass
class _Whose:
    rank: int | None = None
    device: int | None = None
    step: int | None = None
    ts_ns: int | None = None


def recognise(head: Head) -> int:
    text = decode_text(head.data).lstrip("\ufeff \t\r\n")
    return 90 if text[:1] in ("{", "[") and _SIGNS.search(text) else 0


def load(source: Source, sink: Sink) -> None:
    text, more = read_text(source, _MAX_BYTES)
    reader = _Reader(sink)
    damage = reader.read(text)
    reader.samples.flush()
    if not reader.samples.count:
        raise ArtifactError(f"{source.name}: no counter of the CUDA allocator; expected memory_stats() as JSON", byte=0)
    if damage is not None or more:
        place = {"line": text.count("\n", 0, damage) + 1} if damage is not None else {}
        lost = f"{len(text) - damage} characters from here on" if damage is not None else "what lies behind 256 MiB"
        sink.warn("truncated", f"no JSON any more: {lost} are lost", "counters in the lost part", **place)
        sink.damaged("partial", byte=len(text[:damage].encode()) if damage is not None else _MAX_BYTES)
    if reader.impossible:
        sink.warn(*contradictions_of_counters(reader.impossible))
        sink.damaged("partial")
    complete = damage is None and not more and source.damage is None and not reader.impossible
    for proc in sorted(reader.procs.values()) or [0]:
        n = reader.n_kept.get(proc, 0)
        sink.cover("sample.allocator", proc=proc, complete=complete, n_read=n, n_kept=n)


class _Reader:
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.samples = SampleRows(sink, "gauge")
        self.procs: dict[int | None, int] = {}
        self.n_kept: dict[int, int] = {}
        self.impossible: list[str] = []

    def read(self, text: str) -> int | None:
        """Adds all counters; gives the position from which on nothing can be read."""
        try:
            self._take(parse_json(text), _Whose(), 1)
        except JsonError:
            lines = text.splitlines(keepends=True)
            if sum(line.lstrip("\ufeff ").startswith("{") for line in lines) > 1 and lines[0].rstrip().endswith("}"):
                return self._read_lines(lines)
            return self._read_damaged(text)
        return None

    def _read_lines(self, lines: list[str]) -> int | None:
        damage, position = None, 0
        for number, line in enumerate(lines, 1):
            try:
                if line.strip("\ufeff \t\r\n"):
                    self._take(parse_json(line.lstrip("\ufeff")), _Whose(), number)
            except JsonError:
                damage = position if damage is None else damage
            position += len(line)
        return damage

    def _read_damaged(self, text: str) -> int | None:
        walk, lines = JsonWalk(text, lambda path, first: False), LineCounter(text)
        for leaf in walk.leaves():
            # Rebuilt as nested objects, so that one way of reading does for all.
            value: Any = leaf.value
            for key in reversed(leaf.path):
                value = {str(key): value}
            self._take(value, _Whose(), lines.at(leaf.position))
        return walk.damage

    def _take(self, value: Any, whose: _Whose, line: int, depth: int = 0) -> None:
        if isinstance(value, list):
            value = {str(place): item for place, item in enumerate(value[:_MAX_PROCESSES])}
        if not isinstance(value, dict) or depth > 8:
            return
        here = _with_places(whose, value)
        counters: dict[str, float] = {}
        for key, item in value.items():
            root = key.partition(".")[0]
            if root in _METRICS:
                for name, number in _counters(key, item):
                    self._add(name, number, here, line)
                    counters[name] = number
            elif isinstance(item, dict | list):
                self._take(item, _named(here, key), line, depth + 1)
        self.impossible += contradictory(counters)[:_MAX_PROCESSES]

    def _add(self, name: str, number: float, whose: _Whose, line: int) -> None:
        proc = self.procs.setdefault(whose.rank, len(self.procs))
        if self.n_kept.get(proc) is None and whose.rank is not None:
            self.sink.proc(proc, rank=whose.rank, rank_origin="content")
        self.n_kept[proc] = self.n_kept.get(proc, 0) + 1
        unit = "bytes" if "bytes" in name or name == "max_split_size" else "us" if "_time." in name else "count"
        at: dict[str, Any] = {"step": whose.step, "ts_ns": whose.ts_ns, "device": whose.device, "line": line}
        self.samples.add(name, number, unit=unit, proc=proc, **at)
        if name in _FACTS and whose.step is None:
            key = name if whose.device is None else f"{name}.{whose.device}"
            self.sink.fact(key, f"{number:.0f}", scope="allocator", line=line, number=number, proc=proc)


def _counters(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict) and depth < 4:
        for key, item in value.items():
            part = "_".join(re.findall(r"\d+", key)) if key[:1] == "(" else key  # a pool's id, (0, 1) in Python
            yield from _counters(f"{name}.{part}"[:200], item, depth + 1)
    elif (number := as_float(value)) is not None:
        yield name, number


def _with_places(whose: _Whose, value: dict[str, Any]) -> _Whose:
    found = {_PLACES[key]: item for key, item in value.items() if key in _PLACES}
    device = found.get("device")
    match = _DEVICE.fullmatch(device) if isinstance(device, str) else None
    moment = parse_time(found["time"]) if isinstance(found.get("time"), str) else None
    seconds = as_float(found.get("time"))
    ts_ns = moment.ns if moment else int(seconds * 1e9) if seconds is not None and 1e9 < seconds < 4e9 else None
    return _Whose(
        _first(as_int(found.get("rank"), 0, 1 << 24), whose.rank),
        _first(int(match[1]) if match else as_int(device, 0, 4096), whose.device),
        _first(as_int(found.get("step"), 0), whose.step),
        _first(ts_ns, whose.ts_ns),
    )


def _first(one: int | None, other: int | None) -> int | None:
    return other if one is None else one


def _named(whose: _Whose, key: str) -> _Whose:
    if m := _RANK.fullmatch(key):
        return _Whose(int(m[1]), whose.device, whose.step, whose.ts_ns)
    m = _DEVICE.fullmatch(key)
    return _Whose(whose.rank, int(m[1]), whose.step, whose.ts_ns) if m and whose.device is None else whose
