"""CUDA memory snapshots: the pickles of `torch.cuda.memory._snapshot()` of every generation since PyTorch 1.12.

A dict with `segments`, `device_traces` and more, or the bare list of segments that `memory_snapshot()` returns. Nothing
in it names the process or its rank. Pinned host memory has device -1.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

from forensics.artifact import Head, Place, Sink, Source, Stacks
from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats._columns import Columns, clean_text
from forensics.formats._memory_history import EVENT_KEYS, History, StackIds, find_steps, read_events, step_table
from forensics.formats._memory_losses import Loss, find_losses
from forensics.formats._memory_segments import BLOCK_KEYS, SEGMENT_KEYS, Held, SegmentReader
from forensics.formats._pickle import gc_paused, read_pickle, shown, walk_pickle

VERSION = 1
TITLE = "CUDA memory snapshot (pickle)"
PROVIDES = ("memory_segment", "memory_event", "memory_event.complete", "memory_event.oom", "fact")

MAX_BYTES = 1 << 30  # decompressed; reading needs about seven times that
MAX_DEVICES = 1024
MAX_SETTINGS = 200
HOST = -1
# The converter from the CPU's time stamp counter to the epoch is calibrated once per process.
_CLOCK_ERROR_NS = 1_000_000
_TOP_KEYS = {"segments", "device_traces", "traces", "host_segments", "host_traces"}
_TOP_KEYS |= {"allocator_settings", "external_annotations"}


def recognise(head: Head) -> int:
    data = head.data
    if data[:1] not in (b"\x80", b"(", b"]", b"}"):
        return 0
    if not any(key in data for key in (b"segments", b"device_traces", b"total_size")):
        return 0
    try:
        value = walk_pickle(data).value
    except Untrusted:  # refused before anything was built: whose file it is, and why it is refused, can still be said
        return 30 if data[:1] == b"\x80" and b"device_traces" in data else 0
    except ArtifactError:
        return 0
    return 95 if _as_snapshot(value) is not None else 0


def locate(source: Source, row: int, near: object = None) -> Place | None:
    """Where a row is: its ordinal, since pickles have neither lines nor offsets that mean something."""
    return Place(row=row)


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        data = stream.read(MAX_BYTES + 1)
    try:
        with gc_paused():
            _load(data, source, sink)
    except ArtifactError as error:
        raise type(error)(f"{source.name}: {error}", byte=error.byte) from None


def _load(data: bytes, source: Source, sink: Sink) -> None:
    pickled = read_pickle(data[:MAX_BYTES])
    snapshot = _as_snapshot(pickled.value)
    if snapshot is None:
        raise pickled.error or ArtifactError(
            f"holds {shown(pickled.value, 80)}; expected segments and device_traces of a CUDA memory snapshot"
        )
    if pickled.error is not None:
        _drop_unfinished(snapshot)
    _Loader(sink, snapshot, damaged=pickled.error is not None).run()
    if pickled.error is not None:
        sink.damaged("partial", byte=pickled.error.byte, lost_bytes=len(data) - pickled.end)
        if isinstance(pickled.error, Untrusted):
            raise pickled.error
        limit = f"only the first {MAX_BYTES} bytes were read" if len(data) > MAX_BYTES else ""
        _warn_of_damage(sink, snapshot, pickled.error, source.damage or limit)
    elif pickled.end < len(data):
        text = f"{len(data) - pickled.end} bytes follow the snapshot"
        sink.warn("trailing-bytes", text, "what they hold, such as another snapshot", byte=pickled.end)


def _as_snapshot(value: Any) -> dict[str, Any] | None:
    """The value as the dict of a snapshot; None when it is something else, such as a flight-recorder dump."""
    if type(value) is list:
        return {"segments": value} if value and _are_segments(value) else None
    if type(value) is not dict or "entries" in value or "pg_config" in value:
        return None
    if not _are_segments(value.get("segments", [])):
        return None
    is_one = value.get("segments") or "device_traces" in value or len(_TOP_KEYS.intersection(value)) > 1
    return value if is_one else None


def _are_segments(value: Any) -> bool:
    """By the first of them, which a cut file may hold in part."""
    if type(value) is not list:
        return False
    return all(type(s) is dict and ("total_size" in s or "blocks" in s or s.keys() <= SEGMENT_KEYS) for s in value[:1])


def _drop_unfinished(snapshot: dict[str, Any]) -> None:
    """Takes off the last segment, block or event of a cut snapshot if it lacks what its row needs."""
    for lists, needed in (([snapshot.get("segments")], {"address"}), (snapshot.get("device_traces"), {"action"})):
        last = lists[-1] if type(lists) is list and lists else None
        if type(last) is list and last and type(last[-1]) is dict and not needed <= last[-1].keys():
            last.pop()
    segments = snapshot.get("segments")
    blocks = segments[-1].get("blocks") if segments and type(segments[-1]) is dict else None
    if type(blocks) is list and blocks and type(blocks[-1]) is dict and not {"size", "state"} <= blocks[-1].keys():
        blocks.pop()


def _warn_of_damage(sink: Sink, snapshot: dict[str, Any], error: ArtifactError, why: str) -> None:
    last = list(snapshot)[-1]
    behind = {"segments": "segments", "device_traces": "events"}.get(last, "settings and annotations")
    missing = [k for k in ("segments", "device_traces") if k not in snapshot]
    hides = f"{behind} behind the damage" + "".join(f"; {key} entirely" for key in missing)
    code = "truncated" if isinstance(error, Truncated) else "damaged-pickle"
    sink.warn(code, f"{error}; what came before was kept, up to {last}. {why}".strip(), hides, byte=error.byte)


def _by_device(traces: list[Any]) -> list[list[Any]]:
    """Event lists by device; a flat list of events is that of one device."""
    if traces and type(traces[0]) is dict:
        return [traces]
    return [t if type(t) is list else [] for t in traces]


class _Loader:
    def __init__(self, sink: Sink, snapshot: dict[str, Any], *, damaged: bool) -> None:
        self.sink = sink
        self.snapshot = snapshot
        self.damaged = damaged
        self.columns = Columns()
        self.stacks = Stacks()
        self.ids = StackIds(self.stacks)
        self.histories: dict[int, History] = {}
        self.held = Held()
        self.n_settings = 0

    def run(self) -> None:
        self.load_events()
        self.load_segments()
        self.sink.emit("stack", self.stacks.table())
        self.load_settings()
        self.describe_process()
        losses = [] if self.damaged else find_losses(self.histories, self.held)
        self.cover(complete=not losses)
        for loss in [*losses, *self.content_losses()]:
            self.sink.warn(*loss)

    def list_at(self, key: str) -> list[Any]:
        value = self.snapshot.get(key)
        if type(value) is list:
            return value
        if value is not None:
            self.columns.bad[key] += 1
        return []

    def load_events(self) -> None:
        key = "device_traces" if "device_traces" in self.snapshot else "traces"
        traces = dict(enumerate(_by_device(self.list_at(key))[:MAX_DEVICES]))
        traces[HOST] = list(chain.from_iterable(_by_device(self.list_at("host_traces"))))
        steps = find_steps(self.snapshot.get("external_annotations"))
        if steps:
            self.sink.emit("step", step_table(steps))
        row = 0
        for device, trace in ((d, t) for d, t in traces.items() if t):
            table, self.histories[device] = read_events(
                device, trace, row, steps=steps, ids=self.ids, columns=self.columns
            )
            row += len(trace)
            if table.num_rows:
                self.sink.emit("memory_event", table)

    def load_segments(self) -> None:
        reader = SegmentReader(self.histories, self.ids, self.columns)
        reader.read(self.list_at("segments"))
        reader.read(self.list_at("host_segments"), HOST)
        self.held = reader.held
        segments, blocks = self.held.tables()
        if segments.num_rows:
            self.sink.emit("memory_segment", segments)
        if blocks.num_rows:
            self.sink.emit("memory_block", blocks)

    def load_settings(self) -> None:
        settings = self.snapshot.get("allocator_settings")
        if type(settings) is not dict:
            if settings is not None:
                self.columns.bad["allocator_settings"] += 1
            return
        for key, value in list(settings.items())[:MAX_SETTINGS]:
            number = float(value) if type(value) in (int, float) and abs(value) < 1 << 63 else None
            text = str(value) if type(value) in (bool, int, float) else shown(value)
            self.n_settings += 1
            self.sink.fact(clean_text(str(key), 200), clean_text(text), scope="allocator", number=number, proc=0)

    def describe_process(self) -> None:
        devices = {h.device for h in self.histories.values() if h.n_kept} | set(self.held.devices)
        devices.discard(HOST)
        start_ns, end_ns = self.span()
        if start_ns is not None:
            self.sink.clock("epoch", error_ns=_CLOCK_ERROR_NS)
        self.sink.proc(0, device=devices.pop() if len(devices) == 1 else None, start_ns=start_ns, end_ns=end_ns)

    def span(self) -> tuple[int | None, int | None]:
        times = [t for h in self.histories.values() for t in h.span if t is not None]
        return min(times, default=None), max(times, default=None)

    def cover(self, *, complete: bool) -> None:
        cover, held = self.sink.cover, self.held
        if "segments" in self.snapshot:
            n_kept = len(held.segments)
            whole = not self.damaged and n_kept == held.n_read
            cover("memory_segment", complete=whole, n_read=held.n_read, n_kept=n_kept)
        if self.n_settings:
            cover("fact", n_read=self.n_settings, n_kept=self.n_settings)
        n_read = sum(h.n_events for h in self.histories.values())
        n_kept = sum(h.n_kept for h in self.histories.values())
        from_ns, to_ns = self.span()
        if n_kept:
            whole = not self.damaged and n_read == n_kept
            cover("memory_event", complete=whole, n_read=n_read, n_kept=n_kept, from_ns=from_ns, to_ns=to_ns)
            if whole and complete:
                cover("memory_event.complete", n_read=n_read, n_kept=n_kept, from_ns=from_ns, to_ns=to_ns)
        ooms = [t for h in self.histories.values() for t in h.ooms]
        if ooms:
            times = [t for t in ooms if t is not None]
            first, last = min(times, default=None), max(times, default=None)
            cover("memory_event.oom", n_read=len(ooms), n_kept=len(ooms), from_ns=first, to_ns=last)

    def content_losses(self) -> list[Loss]:
        """What the content itself hides: sums that differ, unknown keys, values of the wrong kind."""
        held, losses = self.held, []
        if "segments" not in self.snapshot and not self.damaged:
            losses.append(Loss("no-segments", "the snapshot has no segments", "what was held when it was taken"))
        if held.n_mismatched and not (self.damaged and held.n_mismatched == 1):  # a cut file ends inside a segment
            text = f"the blocks of {held.n_mismatched} of {len(held.segments)} segments do not add up to total_size"
            losses.append(Loss("size-mismatch", text, "what the missing or overlapping blocks hold"))
        event_keys = set().union(*(h.keys for h in self.histories.values()))
        for what, keys in (
            ("snapshots", set(self.snapshot) - _TOP_KEYS),
            ("segments", held.segment_keys - SEGMENT_KEYS),
            ("blocks", held.block_keys - BLOCK_KEYS),
            ("events", event_keys - EVENT_KEYS),
        ):
            if keys:
                names = ", ".join(sorted(shown(k, 40) for k in keys)[:10])
                losses.append(Loss("unknown-keys", f"{what} have keys unknown here: {names}", "what these keys say"))
        if self.columns.bad:
            fields = ", ".join(f"{name} ({n})" for name, n in sorted(self.columns.bad.items())[:20])
            text = f"values of the wrong kind or out of range: {fields}"
            losses.append(Loss("bad-values", text, "these values, and segments, blocks and events that need them"))
        return losses
