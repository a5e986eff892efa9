"""CUDA memory snapshots: the pickles of `torch.cuda.memory._snapshot()` of every generation since PyTorch 1.12.

A dict with `segments`, `device_traces` and more, or the bare list of segments that `memory_snapshot()` returns. Nothing
in it names the process or its rank. Pinned host memory has device -1. Read in bounded memory, however long the history.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Any, BinaryIO

from forensics.artifact import Head, Place, Sink, Source, Stacks
from forensics.errors import ArtifactError, Truncated, Untrusted
from forensics.formats._columns import Columns, clean_text
from forensics.formats._memory_contradictions import find_contradictions
from forensics.formats._memory_events import COLUMNS, EVENT_KEYS, EventReader
from forensics.formats._memory_history import History, StackIds
from forensics.formats._memory_losses import Loss, find_losses
from forensics.formats._memory_segments import BLOCK_KEYS, SEGMENT_KEYS, Held, SegmentReader
from forensics.formats._memory_steps import Marks, step_table
from forensics.formats._pickle import gc_paused, shown, walk_pickle
from forensics.formats._pickle_stream import GONE, ListPlace, Records, StreamWalker

VERSION = 4
TITLE = "CUDA memory snapshot (pickle)"
PROVIDES = ("memory_segment", "memory_event", "memory_event.complete", "memory_event.oom", "fact")

MAX_DEVICES = 1024
MAX_SETTINGS = 200
HOST = -1
# The converter from the CPU's time stamp counter to the epoch is calibrated once per process.
_CLOCK_ERROR_NS = 1_000_000
_SEGMENTS = ("segments", "host_segments")
_TRACES = ("device_traces", "traces", "host_traces")
_TOP_KEYS = {*_SEGMENTS, *_TRACES, "allocator_settings", "external_annotations"}


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
    with source.open() as stream, gc_paused():
        try:
            _Loader(source, sink, stream).run()
        except ArtifactError as error:
            raise type(error)(f"{source.name}: {error}", byte=error.byte) from None


def _as_snapshot(value: Any, taken: Set[str] = frozenset()) -> dict[str, Any] | None:
    """The value as the dict of a snapshot; None when it is something else, such as a flight-recorder dump.

    `taken`: keys of lists whose items are not in it any more.
    """
    if type(value) is list:
        whole = {"segments": value}
        return whole if "segments" in taken or (value and _are_segments(value)) else None
    if type(value) is not dict or "entries" in value or "pg_config" in value:
        return None
    if not _are_segments(value.get("segments", [])):
        return None
    is_one = taken or value.get("segments") or "device_traces" in value or len(_TOP_KEYS.intersection(value)) > 1
    return value if is_one else None


def _are_segments(value: Any) -> bool:
    """By the first of them, which a cut file may hold in part."""
    return type(value) is list and all(_looks_like_segment(s) for s in value[:1])


def _looks_like_segment(value: Any, *, strictly: bool = False) -> bool:
    if type(value) is not dict:
        return False
    return "total_size" in value or "blocks" in value or (not strictly and value.keys() <= SEGMENT_KEYS)


def _clock_time(ts_ns: int) -> str:
    return f"{datetime.fromtimestamp(ts_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC" if ts_ns < 1 << 62 else f"{ts_ns} ns"


def _drop_unfinished(segments: list[Any]) -> list[Any]:
    """Segments of a cut snapshot without the last one, or its last block, if that lacks what its row needs."""
    if segments and type(segments[-1]) is dict and "address" not in segments[-1]:
        return segments[:-1]
    blocks = segments[-1].get("blocks") if segments and type(segments[-1]) is dict else None
    if type(blocks) is list and blocks and type(blocks[-1]) is dict and not {"size", "state"} <= blocks[-1].keys():
        blocks.pop()
    return segments


class _Loader:
    """Takes segments, events and annotations as they are read, and the rest at the end."""

    def __init__(self, source: Source, sink: Sink, stream: BinaryIO) -> None:
        self.source = source
        self.sink = sink
        self.walker = StreamWalker(stream, self)
        self.snapshot: dict[str, Any] = {}
        self.taken: dict[str, int] = {}  # items by the key of their list
        self.damaged = False
        self.values = Columns()
        self.stacks = Stacks()
        self.ids = StackIds(self.stacks)
        self.events = EventReader(self.ids, self.values)
        self.segments = SegmentReader(self.ids, self.values)
        self.marks = Marks()
        self.n_settings = 0

    def accepts(self, place: ListPlace, item: Any) -> bool:
        key = place.key or "segments"
        if key in _TRACES:
            return place.ordinal is not None or type(item) is not list
        if place.ordinal is not None or key not in _TOP_KEYS:
            return False
        return key in self.taken or key not in _SEGMENTS or _looks_like_segment(item, strictly=place.key is None)

    def columns(self, place: ListPlace) -> Mapping[str, bool] | None:
        return COLUMNS if place.key in _TRACES else None

    def kept(self, value: Any) -> Any:
        """Frames and lists of them are shared, and rarely pool ids; segments, blocks and events are not."""
        first = value[0] if type(value) is list and value else value
        if type(first) is dict and not ("filename" in first or "name" in first):
            return GONE
        if type(value) is list and type(first) in (dict, str):
            return self.ids.canonical(value)
        return value

    def take_items(self, place: ListPlace, items: list[Any]) -> None:
        key = place.key or "segments"
        self.taken[key] = self.taken.get(key, 0) + len(items)
        if key in _TRACES:
            if (device := self.device_of(place)) is not None:
                self.events.read(device, items)
        elif key in _SEGMENTS:
            self.segments.read(items, HOST if key == "host_segments" else None)
        else:
            self.marks.add(items)

    def take_records(self, place: ListPlace, records: Records) -> None:
        if (device := self.device_of(place)) is not None:
            self.events.read_records(device, records, self.walker.memo.values)

    def device_of(self, place: ListPlace) -> int | None:
        """Device of a list of events; None for one whose events are not wanted."""
        if place.key == "host_traces":
            return HOST
        if place.key == "traces" and "device_traces" in self.taken:
            return None
        return place.ordinal or 0 if (place.ordinal or 0) < MAX_DEVICES else None

    def run(self) -> None:
        pickled = self.walker.run()
        n_bytes = self.walker.opcodes.drain()
        self.damaged = pickled.error is not None
        snapshot = _as_snapshot(pickled.value, set(self.taken))
        if snapshot is None:
            raise pickled.error or ArtifactError(
                f"holds {shown(pickled.value, 80)}; expected segments and device_traces of a CUDA memory snapshot"
            )
        self.snapshot = snapshot
        if self.damaged:
            for key in _SEGMENTS:
                rest = snapshot.get(key)
                if type(rest) is list and rest:
                    self.segments.read(_drop_unfinished(rest), HOST if key == "host_segments" else None)
        self.emit()
        if pickled.error is not None:
            self.say_damage(pickled.error, n_bytes)
        elif pickled.end < n_bytes:
            text = f"{n_bytes - pickled.end} bytes follow the snapshot"
            self.sink.warn("trailing-bytes", text, "what they hold, such as another snapshot", byte=pickled.end)

    def say_damage(self, error: ArtifactError, n_bytes: int) -> None:
        lost = n_bytes - (error.byte or 0)
        self.sink.damaged("partial", byte=error.byte, lost_bytes=lost)
        if isinstance(error, Untrusted):
            raise error
        last = list(self.snapshot)[-1]
        _, last_ns = self.span()
        behind = {"segments": "segments", "device_traces": "events"}.get(last, "settings and annotations")
        if last == "device_traces" and last_ns is not None:
            behind += f" after {_clock_time(last_ns)}"
        missing = [k for k in ("segments", "device_traces") if k not in self.snapshot]
        hides = f"{behind} behind the damage" + "".join(f"; {key} entirely" for key in missing)
        code = "truncated" if isinstance(error, Truncated) else "damaged-pickle"
        kept = f"{len(self.segments.held.segments)} segments and {self.events.n_read} events before it were kept"
        loss = f"{lost} bytes are lost" if code != "truncated" else f"{lost} bytes at the end and all behind are lost"
        text = f"{error}; {kept}, up to {last}; {loss}. {self.source.damage or ''}"
        self.sink.warn(code, text.strip(), hides, byte=error.byte)

    def emit(self) -> None:
        self.events.flush()
        steps = self.marks.steps()
        if steps:
            self.sink.emit("step", step_table(steps))
        for table in self.events.tables(steps):
            self.sink.emit("memory_event", table)
        self.segments.finish(self.events.histories, self.events.words)
        for name, table in zip(("memory_segment", "memory_block"), self.held.tables(), strict=True):
            if table.num_rows:
                self.sink.emit(name, table)
        self.sink.emit("stack", self.stacks.table())
        self.load_settings()
        self.describe_process()
        losses = [] if self.damaged else find_losses(self.histories, self.held)
        impossible = find_contradictions(self.held, sum(h.n_too_free for h in self.histories.values()))
        self.cover(complete=not losses and not impossible, possible=not impossible)
        if impossible and not self.damaged:
            self.sink.damaged("partial")
        for loss in [*losses, *self.content_losses(), *impossible]:
            self.sink.warn(*loss)

    @property
    def held(self) -> Held:
        return self.segments.held

    @property
    def histories(self) -> dict[int, History]:
        return self.events.histories

    def load_settings(self) -> None:
        settings = self.snapshot.get("allocator_settings")
        if type(settings) is not dict:
            if settings is not None:
                self.values.bad["allocator_settings"] += 1
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
        times = [t for h in self.histories.values() for t in (h.first_ns, h.last_ns) if t is not None]
        return min(times, default=None), max(times, default=None)

    def cover(self, *, complete: bool, possible: bool) -> None:
        cover, held = self.sink.cover, self.held
        if "segments" in self.snapshot:
            n_kept = len(held.segments)
            whole = not self.damaged and n_kept == held.n_read and possible
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
        if self.values.bad:
            fields = ", ".join(f"{name} ({n})" for name, n in sorted(self.values.bad.items())[:20])
            text = f"values of the wrong kind or out of range: {fields}"
            losses.append(Loss("bad-values", text, "these values, and segments, blocks and events that need them"))
        return losses
