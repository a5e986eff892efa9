"""Chrome traces of the PyTorch profiler (Kineto), from 2020 on, of every backend, whole or damaged.

Times: whole microseconds since the epoch up to PyTorch 2.3; since then nanoseconds after `baseTimeNanoseconds`, which
is added here. CPU and device clocks are aligned by the profiler to a few microseconds. Return codes are not recorded.
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Place, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._json_events import EventStream
from forensics.formats._json_repair import split_events
from forensics.formats._kineto_columns import KINDS
from forensics.formats._kineto_trace import Trace, gather
from forensics.memory import spare_bytes

VERSION = 4
TITLE = "PyTorch profiler trace (Kineto, Chrome JSON)"
PROVIDES = (
    *("slice", "slice.device", "slice.stack", "slice.shapes", "slice.sequence"),
    *("memory_event.profiler", "sample", "collective.profiler"),
)

_CATEGORIES = {cat for cats in KINDS.values() for cat in cats} | {
    "cpu_instant_event",
    "fwdbwd",
    "ac2g",
    "async_gpu",
    "async_cpu_to_gpu",
    "cuda_profiler_range",
    "mtia_ccp_events",
    "hpu_op",
    "xpu_runtime",
    "xpu_driver",
    "privateuse1_runtime",
    "privateuse1_driver",
    "collective_comm",
}
_CATEGORY = re.compile(rb'"cat"\s*:\s*"([^"\\\n]{1,64})"')
_LEGACY = re.compile(rb'"pid"\s*:\s*"(?:CPU|CUDA) functions"')
_EVENTS = re.compile(rb'"traceEvents"\s*:')
_NO_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[\s*(?:\]|\Z)')
_KEYS = re.compile(rb'"(?:schemaVersion|deviceProperties|distributedInfo)"\s*:')
# VizTracer, rocprof, torch.compile's own traces.
_FOREIGN = re.compile(rb'"(?:viztracer_metadata|BeginNs)"\s*:|"cat"\s*:\s*"(?:FEE|dynamo_timed)"')
_EXCERPT = 400
_AMPLE_BYTES = 512 << 20  # of memory; with less, smaller slices are read, on one thread
_SMALL_CHUNK_BYTES = 4 << 20


def recognise(head: Head) -> int:
    data = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not data.startswith((b"{", b"[")) or _FOREIGN.search(data):
        return 0
    known = any(found.decode("latin-1") in _CATEGORIES for found in _CATEGORY.findall(data))
    keys = len(set(_KEYS.findall(data)))
    if data.startswith(b"["):
        phases = b'"ph"' in data
        return 85 if phases and known else 80 if phases and _LEGACY.search(data) else 0
    if _EVENTS.search(data):
        if known or b'"schemaVersion"' in data:
            return 95 if keys and known else 85
        return 14 if _NO_EVENTS.search(data) else 0  # below look-alikes of other tools
    # Long headers, or cut before the first event.
    return 70 if keys >= 2 and b'"schemaVersion"' in data else 0


def load(source: Source, sink: Sink) -> None:
    spare = spare_bytes()
    short = spare is not None and spare < _AMPLE_BYTES
    with source.open() as stream:
        events = EventStream(stream, chunk_bytes=_SMALL_CHUNK_BYTES if short else 0)
        gathered = gather(events, 1, _SMALL_CHUNK_BYTES) if short else gather(events, source.threads)
    try:
        if not events.array_bytes:
            raise ArtifactError(f"{source.name}: no list of events; expected the key traceEvents", byte=0)
        Trace(source, sink, gathered, events).emit()
    finally:
        gathered.close()
    if gathered.stopped is not None:
        raise gathered.stopped


def locate(source: Source, row: int, near: tuple[int, int] | None) -> Place | None:
    """Where the event `row` starts and what it says; `near`: a smaller row and the byte at which that one starts."""
    at_row, byte = near or (0, 0)
    if row < at_row:
        return None
    with source.open() as stream:
        skipped = byte
        while skipped > 0:
            data = stream.read(min(skipped, 1 << 20))
            if not data:
                return None
            skipped -= len(data)
        for pieces in EventStream(stream, inside_at=byte if near else None).chunks():
            for piece in pieces:
                for event in split_events(piece.data, piece.start, piece.end):
                    if at_row == row:
                        text = piece.data[event.start : min(event.end, event.start + 4 * _EXCERPT)]
                        excerpt = " ".join(text.decode("utf-8", "replace").split())[:_EXCERPT]
                        return Place(byte=piece.byte + event.start - piece.start, row=row, text=excerpt)
                    at_row += 1
    return None
