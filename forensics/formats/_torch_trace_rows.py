"""What the records of a TORCH_TRACE log say, as rows of `compile_event` and, for timed phases, of `slice`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Frame, Sink, Stacks
from forensics.formats._columns import clean_text
from forensics.formats._lenient_json import as_float, as_int
from forensics.formats._log_time import Stamp
from forensics.formats._torch_trace_records import Record, TraceClock

MAX_EVENTS = 500_000
MAX_SLICES = 4_000_000
MAX_STRINGS = 200_000  # interned file names of one process
MAX_KINDS = 500
MAX_OPEN = 1000  # nested phases of one thread; also the threads of one process
MAX_PROCESSES = 10_000
_MAX_PID = 1 << 22  # Linux gives no larger ones
_MAX_FRAMES = 500
_MAX_TEXT = 4000
_BATCH_ROWS = 32_768
# What stands beside the one key that names a record's kind.
_COMMON = {
    "rank", "frame_id", "frame_compile_id", "attempt", "compiled_autograd_id", "stack", "subgraph_name", "has_payload",
    "process", "thread", "timestamp", "pathname", "lineno",
}  # fmt: skip
_ARTIFACTS = {
    "recompile_reasons": "recompile",
    "dynamo_graph_break_reason": "graph-break",
    "fx_graph_cache_miss": "cache-miss",
    "aotautograd_cache_miss": "cache-miss",
    "fx_graph_cache_bypass": "cache-bypass",
    "aotautograd_cache_bypass": "cache-bypass",
    "precompile_cache_bypass": "cache-bypass",
    "dynamo_cache_exception": "cache-bypass",
}
_GUARDS = {"guard_added", "guard_added_fast", "propagate_real_tensors", "propagate_real_tensors_provenance"}
_FAKE_KERNELS = {"missing_fake_kernel", "mismatched_fake_kernel"}
_LIMIT = re.compile(r"(?i)recompile.limit|cache_size_limit|RecompileLimit|CacheLimit")
_QUOTED_FRAME = re.compile(r'File "([^"\n]{1,1000})", line (\d{1,9}), in ([^\n]{1,300})')
_BREAK_PLACE = re.compile(r"user code at ([^\n]{1,1000}):(\d{1,9})")
_EVENT = {
    "row": pa.int64(), "proc": pa.int32(), "ts_ns": pa.int64(), "compile_id": pa.string(), "kind": pa.string(),
    "name": pa.string(), "reason": pa.string(), "dur_ns": pa.int64(), "stack_id": pa.uint64(),
}  # fmt: skip
_SLICE = {
    "row": pa.int64(), "proc": pa.int32(), "ts_ns": pa.int64(), "kind": pa.string(), "name": pa.string(),
    "thread": pa.int64(), "dur_ns": pa.int64(), "parent_row": pa.int64(),
}  # fmt: skip
_PLACE = {"table": pa.string(), "row": pa.int64(), "line": pa.int64(), "byte": pa.int64()}


def kind_of(fields: dict[str, Any]) -> str:
    """The key that names the record's kind."""
    return next((clean_text(key, 100) for key in fields if key not in _COMMON), "none")


def compile_id(fields: dict[str, Any]) -> str | None:
    """As torch prints it: 0/1, with its restarts 0/1_1, behind the compiled autograd !2/0/1."""
    frame, count = as_int(fields.get("frame_id"), 0), as_int(fields.get("frame_compile_id"), 0)
    autograd = as_int(fields.get("compiled_autograd_id"), 0)
    own = None if frame is None or count is None else f"{frame}/{count}"
    if autograd is not None:
        own = f"!{autograd}" + (f"/{own}" if own else "")
    attempt = as_int(fields.get("attempt"), 0)
    return f"{own}_{attempt}" if own and attempt else own


@dataclass
class _Start:
    row: dict[str, Any]
    frames: list[Frame]


@dataclass
class _Process:
    number: int
    rank: int | None = None
    files: dict[int, str] = field(default_factory=dict)
    started: dict[str, _Start] = field(default_factory=dict)
    open: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # begun phases by thread, outermost first
    n_metrics: int = 0
    n_kept: int = 0


class TraceRows:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._stacks = Stacks()
        self.clock = TraceClock()
        self.kinds: Counter[str] = Counter()
        self.artifacts: Counter[str] = Counter()
        self.processes: dict[int | None, _Process] = {}  # by pid
        self.n_dropped = 0
        self.n_rank_changes = 0
        self.n_bad_payloads = 0
        self._events: list[dict[str, Any]] = []
        self._stamps: list[Stamp | None] = []
        self._slices: list[dict[str, Any]] = []
        self._places: list[dict[str, Any]] = []
        self.n_slices = 0

    def add(self, record: Record) -> None:
        kind, fields = kind_of(record.fields), record.fields
        if len(self.kinds) < MAX_KINDS or kind in self.kinds:
            self.kinds[kind] += 1
        # Until 2.4 the prefix names the thread, by its address.
        pid = record.pid if record.pid <= _MAX_PID else None
        if pid not in self.processes and len(self.processes) >= MAX_PROCESSES:
            self.n_dropped += 1
            return
        process = self.processes.setdefault(pid, _Process(len(self.processes)))
        rank = as_int(fields.get("rank"), 0, 2**31 - 1)
        if rank is not None:
            self.n_rank_changes += process.rank not in (None, rank)
            process.rank = rank if process.rank is None else process.rank
        value = fields.get(kind)
        if kind == "str":
            self._intern(process, value)
        elif kind == "chromium_event":
            self._add_slice(process, record)
        elif kind == "dynamo_start":
            self._start(process, record, value)
        elif kind in ("compilation_metrics", "bwd_compilation_metrics"):
            self._finish(process, record, value, kind)
        elif kind == "artifact":
            self._add_artifact(process, record, value)
        elif isinstance(value, dict):
            self._add_other(process, record, kind, value)

    def close(self) -> None:
        for process in self.processes.values():
            begun = list(process.started.values())
            # Releases before compilation_metrics say nowhere that a compilation ended; the last one may be running.
            for start in begun if process.n_metrics else begun[-1:]:
                row = start.row
                row["kind"], row["reason"] = "unfinished", "the compilation began and its end is not in the log"
            for rows in process.open.values():
                self._slices.extend(rows)
        for event, stamp in zip(self._events, self._stamps, strict=True):
            event["ts_ns"] = self.clock.ns(stamp)
        for at in range(0, len(self._events), _BATCH_ROWS):
            self._emit("compile_event", _EVENT, self._events[at : at + _BATCH_ROWS])
        self._flush()
        stacks = self._stacks.table()
        if stacks.num_rows:
            self._sink.emit("stack", stacks)

    def span(self, number: int) -> tuple[int | None, int | None]:
        times = [row["ts_ns"] for row in self._events if row["proc"] == number and row["ts_ns"] is not None]
        return min(times, default=None), max(times, default=None)

    @property
    def n_events(self) -> int:
        return len(self._events)

    def _event(self, process: _Process, record: Record, kind: str, reason: str | None, frames: Iterable[Frame],
               *, name: str | None = None, dur_ns: int | None = None) -> dict[str, Any]:  # fmt: skip
        number = len(self._events)
        row: dict[str, Any] = {
            "row": number, "proc": process.number, "compile_id": compile_id(record.fields), "kind": kind,
            "name": name, "reason": clean_text(reason, _MAX_TEXT) if reason else None, "dur_ns": dur_ns,
            "stack_id": self._stacks.add(frames),
        }  # fmt: skip
        if number >= MAX_EVENTS:
            self.n_dropped += 1
            return row
        self._events.append(row)
        self._stamps.append(record.stamp)
        self._place("compile_event", number, record)
        process.n_kept += 1
        return row

    def _intern(self, process: _Process, value: Any) -> None:
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
            index = as_int(value[1], 0)
            if index is not None and len(process.files) < MAX_STRINGS:
                process.files[index] = clean_text(value[0], 1000)

    def _frames(self, process: _Process, value: Any) -> list[Frame]:
        frames = []
        for frame in value[:_MAX_FRAMES] if isinstance(value, list) else ():
            if isinstance(frame, dict) and isinstance(frame.get("name"), str):
                index = frame.get("filename")
                file = index if isinstance(index, str) else process.files.get(as_int(index, 0) or 0)
                line = as_int(frame.get("line"), 0, 2**31 - 1)
                frames.append(Frame(clean_text(frame["name"], 300), file and clean_text(file, 1000), line))
        return frames

    def _start(self, process: _Process, record: Record, value: Any) -> None:
        frames = self._frames(process, value.get("stack") if isinstance(value, dict) else None)
        name = frames[-1].function if frames else None
        row = self._event(process, record, "compile", None, frames, name=name)
        process.started[_without_attempt(record.fields)] = _Start(row, frames)

    def _finish(self, process: _Process, record: Record, value: Any, kind: str) -> None:
        metrics = value if isinstance(value, dict) else {}
        seconds = as_float(metrics.get("entire_frame_compile_time_s"))
        began = as_float(metrics.get("start_time"))
        if began is not None and 10**9 < began < 4 * 10**9 and 0 <= (seconds or 0.0) < 400:
            self.clock.anchor(record.stamp, int((began + (seconds or 0.0)) * 1e9))
        dur_ns = int(seconds * 1e9) if seconds is not None and 0 <= seconds < 10**9 else None
        name = clean_text(metrics["co_name"], 300) if isinstance(metrics.get("co_name"), str) else None
        process.n_metrics += 1
        start = process.started.pop(_without_attempt(record.fields), None) if kind == "compilation_metrics" else None
        frames = _own_frames(metrics, name, start.frames if start else [])
        if start is None:
            row = self._event(process, record, "compile", None, frames, name=name, dur_ns=dur_ns)
        else:
            row = start.row
            row.update(dur_ns=dur_ns, name=name or row["name"], compile_id=compile_id(record.fields))
            row["stack_id"] = self._stacks.add(frames)
        if kind == "bwd_compilation_metrics":
            row["kind"] = "compile-backward"
        why = ": ".join(str(metrics[key]) for key in ("fail_type", "fail_reason") if metrics.get(key))
        if why:
            row["kind"], row["reason"] = "limit" if _LIMIT.search(why) else "failure", clean_text(why, _MAX_TEXT)
        elif isinstance(metrics.get("recompile_reason"), str):
            row["reason"] = clean_text(metrics["recompile_reason"], _MAX_TEXT)
        reasons = metrics.get("restart_reasons")
        for reason in reasons[:100] if isinstance(reasons, list) else ():
            self._event(process, record, "restart", str(reason), frames, name=name)
        if isinstance(metrics.get("cudagraph_skip_reason"), str):
            self._event(process, record, "skip", metrics["cudagraph_skip_reason"], frames, name=name)

    def _add_artifact(self, process: _Process, record: Record, value: Any) -> None:
        name = value.get("name") if isinstance(value, dict) else None
        name = clean_text(name, 200) if isinstance(name, str) else "none"
        if len(self.artifacts) < MAX_KINDS or name in self.artifacts:
            self.artifacts[name] += 1
        kind = _ARTIFACTS.get(name, "skip" if "cudagraph" in name and "skip" in name else None)
        if kind is None:
            return
        text = _joined(record.text)
        start = process.started.get(_without_attempt(record.fields))
        frames = start.frames if start else self._frames(process, record.fields.get("stack"))
        if kind == "graph-break":
            frames = quoted_frames(text) or frames
        label = frames[-1].function if frames else None
        if kind.startswith("cache"):
            text = f"{name}: {text[:300]}"
        self._event(process, record, kind, text, frames, name=label)

    def _add_other(self, process: _Process, record: Record, kind: str, value: dict[str, Any]) -> None:
        frames = self._frames(process, value.get("user_stack")) or self._frames(process, value.get("stack"))
        if kind in ("dynamo_guards", "dynamo_cpp_guards_str"):
            self._event(process, record, "guards", _joined(record.text, key="code"), [])
        elif kind in _GUARDS:
            self._event(process, record, "guard", str(value.get("expr") or "")[:_MAX_TEXT], frames)
        elif kind == "guard_on_data_dependent_error":
            self._event(process, record, "failure", f"guard on data: {str(value.get('expr'))[:1000]}", frames)
        elif kind == "symbolic_shape_specialization":
            text = f"{value.get('symbol')} = {value.get('value')}: {value.get('reason')}"
            self._event(process, record, "specialization", text[:_MAX_TEXT], frames)
        elif kind in _FAKE_KERNELS:
            text = f"{kind.replace('_', ' ')}: {value.get('op')} {value.get('reason') or ''}"
            self._event(process, record, "fake-kernel", text[:_MAX_TEXT].strip(), frames)

    def _add_slice(self, process: _Process, record: Record) -> None:
        try:
            event = orjson.loads(record.payload)
        except orjson.JSONDecodeError:
            self.n_bad_payloads += 1
            return
        micros = as_float(event.get("ts")) if isinstance(event, dict) else None
        if micros is None or not 10**15 < micros < 4 * 10**15:
            self.n_bad_payloads += 1
            return
        ts_ns = int(micros) * 1000 + int(micros % 1 * 1000)
        self.clock.anchor(record.stamp, ts_ns)
        thread = f"{event.get('pid')!r:.40} {event.get('tid')!r:.40}"
        if thread not in process.open and len(process.open) >= MAX_OPEN:
            self.n_dropped += 1
            return
        begun = process.open.setdefault(thread, [])
        phase, name = event.get("ph"), event.get("name")
        name = clean_text(name, 300) if isinstance(name, str) else None
        if phase == "E":
            self._end_slice(begun, name, ts_ns)
            return
        if phase not in ("B", "i", "I", "X") or name is None:
            return
        if self.n_slices >= MAX_SLICES or len(begun) >= MAX_OPEN:
            self.n_dropped += 1
            return
        category = event.get("cat")
        duration = as_float(event.get("dur")) if phase == "X" else None
        row: dict[str, Any] = {
            "row": self.n_slices, "proc": process.number, "ts_ns": ts_ns, "name": name,
            "kind": clean_text(category, 100) if isinstance(category, str) and category else "compile",
            "thread": as_int(event.get("tid")), "parent_row": begun[-1]["row"] if begun else None,
            "dur_ns": int(duration * 1000) if duration is not None and 0 <= duration < 10**15 else None,
        }  # fmt: skip
        self.n_slices += 1
        self._place("slice", row["row"], record)
        if phase == "B":
            begun.append(row)
        else:
            row["dur_ns"] = row["dur_ns"] or 0
            self._keep_slice(row)

    def _end_slice(self, begun: list[dict[str, Any]], name: Any, ts_ns: int) -> None:
        """Ends the innermost phase of that name; those begun inside of it have lost their ends."""
        at = next((i for i in reversed(range(len(begun))) if begun[i]["name"] == name), None)
        if at is None:
            return
        begun[at]["dur_ns"] = max(0, ts_ns - begun[at]["ts_ns"])
        for row in begun[at:]:
            self._keep_slice(row)
        del begun[at:]

    def _keep_slice(self, row: dict[str, Any]) -> None:
        self._slices.append(row)
        if len(self._slices) >= _BATCH_ROWS:
            self._flush()

    def _place(self, table: str, row: int, record: Record) -> None:
        self._places.append({"table": table, "row": row, "line": record.line, "byte": record.byte})
        if len(self._places) >= _BATCH_ROWS:
            self._flush()

    def _flush(self) -> None:
        for table, types, rows in (("slice", _SLICE, self._slices), ("position", _PLACE, self._places)):
            self._emit(table, types, rows)
            rows.clear()

    def _emit(self, table: str, types: dict[str, pa.DataType], rows: list[dict[str, Any]]) -> None:
        if rows:
            self._sink.emit(table, pa.table({n: pa.array([r.get(n) for r in rows], t) for n, t in types.items()}))


def _without_attempt(fields: dict[str, Any]) -> str:
    return (compile_id(fields) or "").partition("_")[0]


def _own_frames(metrics: dict[str, Any], name: str | None, started: list[Frame]) -> list[Frame]:
    """The stack at the start, its last frame being the compiled function, at the line that failed when one did."""
    file, line = metrics.get("co_filename"), as_int(metrics.get("co_firstlineno"), 0, 2**31 - 1)
    own = Frame(name, clean_text(file, 1000), line) if name and isinstance(file, str) else None
    failed, at = metrics.get("fail_user_frame_filename"), as_int(metrics.get("fail_user_frame_lineno"), 0, 2**31 - 1)
    frames = started or ([own] if own else [])
    if isinstance(failed, str) and failed and frames:
        return [*frames[:-1], Frame(frames[-1].function, clean_text(failed, 1000), at)]
    return frames


def _joined(text: str, key: str | None = None) -> str:
    """A payload as text; the texts of a JSON list one a line."""
    if text.startswith("["):
        try:
            items = orjson.loads(text)
        except orjson.JSONDecodeError:
            items = None
        if isinstance(items, list):
            texts = [item.get(key) if key and isinstance(item, dict) else item for item in items[:200]]
            return "\n".join(str(part)[:1000] for part in texts if part)[:_MAX_TEXT]
    return text[:_MAX_TEXT].strip()


def quoted_frames(text: str) -> list[Frame]:
    """The user's frames that a graph break quotes, else the place that it names."""
    _, found, quoted = text.partition("User code traceback:\n")
    if not found:  # torch before 2.6
        _, _, quoted = text.partition("from user code at:\n")
    quoted = quoted.partition("\n\n")[0]
    frames = [Frame(m[3], m[1], int(m[2])) for m in _QUOTED_FRAME.finditer(quoted) if int(m[2]) < 1 << 31]
    place = None if frames else _BREAK_PLACE.search(text)
    return (
        [Frame("<user code>", place[1], int(place[2]))] if place and int(place[2]) < 1 << 31 else frames[:_MAX_FRAMES]
    )
