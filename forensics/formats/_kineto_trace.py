"""Puts one read trace together: processes, times, links, rows, and what the evidence covers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink, Source
from forensics.errors import Untrusted
from forensics.formats._json_events import EventStream
from forensics.formats._kineto_collectives import Groups, emit_collectives
from forensics.formats._kineto_emit import Documents, emit_counters, emit_memory, emit_positions, emit_slices
from forensics.formats._kineto_header import (
    Header,
    base_from_name,
    emit_facts,
    host_from_name,
    is_absolute,
    process_groups,
    read_headers,
)
from forensics.formats._kineto_links import BATCH_ROWS, LinkTables
from forensics.formats._kineto_nesting import CallStacks, nest
from forensics.formats._kineto_rows import Damage, EventReader
from forensics.formats._kineto_shares import Counts, Mark, Share, split
from forensics.formats._kineto_spool import MEMORY_BYTES, Spool
from forensics.formats._kineto_steps import emit_steps, find_steps
from forensics.memory import spare_bytes

_CLOCK_ERROR_NS = 10_000  # the profiler aligns its clocks to a few microseconds
_MAX_THREAD_NAMES = 500
_RESERVE_BYTES = 40 << 20  # of memory: what writing the rows takes that were read
_MAX_POSITIONS = 1_000_000
_LARGE_TRACE = 8_000_000  # slices: above, linking and nesting do not share the database's memory
_SMALL_TRACE = 50_000  # slices: below, a second thread costs more than it gives


class Gathered:
    """What the slices of a trace gave, row numbers counted through; close it to drop tables and files."""

    def __init__(self, threads: int, held_bytes: int) -> None:
        share = min(1.0, held_bytes / MEMORY_BYTES)
        self.links = LinkTables(threads, int(BATCH_ROWS * share))
        self.slices, self.memory, self.collectives, self.counters = (Spool(held_bytes) for _ in range(4))
        self.counts: dict[int, Counts] = {}
        self.marks: list[Mark] = []
        self.frames: dict[str, int] = {}
        self.threads: dict[tuple[int, str], str] = {}
        self.positions: list[tuple[int, int]] = []
        self.damage = Damage()
        self.stopped: Exception | None = None  # why not all events were read
        self.n_rows = 0  # and row of the next slice's first event

    def close(self) -> None:
        for spool in (self.slices, self.memory, self.collectives, self.counters):
            spool.close()
        self.links.close()

    def add(self, share: Share) -> None:
        document = share.document
        self.slices.add(self._counted(share.slices, document))
        self.memory.add(self._counted(share.memory, document))
        self.collectives.add(self._counted(share.collectives, document))
        self.counters.add(self._counted(share.counters, document))
        for name, rows in share.links.items():
            counted = self._counted(rows, document)
            self.links.add(name, self._with_numbered_frames(counted) if name == "host" else counted)
        self.counts.setdefault(document, Counts()).add(share.counts)
        self.marks += share.marks
        for tid, name in share.threads[: _MAX_THREAD_NAMES - len(self.threads)]:
            self.threads[document, tid] = name
        if len(self.positions) < _MAX_POSITIONS:
            self.positions += [(self.n_rows + row, byte) for row, byte in share.positions]
        self.damage.add(share.damage)
        self.n_rows += share.counts.n_read

    def _counted(self, rows: pa.Table, document: int) -> pa.Table:
        number = rows.schema.get_field_index("row")
        rows = rows.set_column(number, "row", pc.add(rows.column(number), pa.scalar(self.n_rows, pa.int64())))
        return rows.append_column("document", pa.repeat(pa.scalar(document, pa.int32()), rows.num_rows))

    def _with_numbered_frames(self, host: pa.Table) -> pa.Table:
        """The column `frame`, which comes dictionary-encoded, as numbers of `frames`."""
        place = host.schema.get_field_index("frame")
        chunks = []
        for chunk in host.column(place).chunks:
            known = [self.frames.setdefault(text, len(self.frames)) for text in chunk.dictionary.to_pylist()]
            chunks.append(pa.array(known, pa.int32()).take(chunk.indices))
        return host.set_column(place, "frame", pa.chunked_array(chunks, pa.int32()))


def gather(events: EventStream, threads: int, held_bytes: int = MEMORY_BYTES) -> Gathered:
    """Reads the trace; where memory does not suffice for all of it, as much as does, and keys behind the events."""
    gathered = Gathered(threads, held_bytes)
    try:
        try:
            with EventReader(events, threads, split) as reader:
                for share in reader.results():
                    gathered.add(share)
                    if _spare_is_below(_RESERVE_BYTES):
                        raise MemoryError
        except (MemoryError, Untrusted) as error:
            gathered.stopped = error.with_traceback(None)  # the frames hold a slice, for which there is no room now
            events.give_up(reader.reached)
        gathered.links.finish(gathered.n_rows)
    except BaseException:
        gathered.close()
        raise
    return gathered


class Trace:
    """Emits everything of a trace."""

    def __init__(self, source: Source, sink: Sink, gathered: Gathered, events: EventStream) -> None:
        self._source = source
        self._sink = sink
        self._got = gathered
        self._events = events
        self._headers = read_headers(events.texts)[: len(events.array_bytes)]
        while len(self._headers) < len(events.array_bytes):
            self._headers.append(Header({}, "parts"))
        self._unlinked = False
        self._counts = [gathered.counts.get(number, Counts()) for number in range(len(self._headers))]

    def emit(self) -> None:
        got, sink = self._got, self._sink
        if got.links.has("begun"):
            got.links.pair_begins()
        steps, origins = find_steps(got.marks, {n: c.first_ns for n, c in enumerate(self._counts)})
        got.links.set_steps(steps)
        stacks = self._link()
        documents = self._documents()
        n_launched, n_found = emit_slices(sink, got.slices, got.links, documents, stacks)
        emit_memory(sink, got.memory, got.links, documents)
        emit_counters(sink, got.counters, documents)
        groups = Groups(process_groups(self._headers))
        n_collectives = emit_collectives(sink, got.collectives, got.links, documents, groups)
        groups.emit(sink)
        emit_steps(sink, steps, origins, documents)
        emit_positions(sink, got.positions)
        frames = stacks.stacks.table()
        if frames.num_rows:
            sink.emit("stack", frames)
        if stacks.full:
            sink.warn("too-many-stacks", "stacks beyond the bounds are cut at their inner end", "the innermost frames")
        whole = self._tell_damage(documents)
        self._tell_missing_launches(n_launched, n_found)
        self._describe(documents, whole, n_collectives)

    def _link(self) -> CallStacks:
        """Links and nests; where the database runs out of memory or disk, rows stay without what was not found."""
        stacks = CallStacks()
        try:
            if _spare_is_below(2 * _RESERVE_BYTES):  # to have tried would leave none for the rows
                raise MemoryError("little is left of what this process may take")
            self._link_and_nest(stacks)
        except (duckdb.OutOfMemoryException, MemoryError, OSError) as error:  # OSError: how Arrow's reader passes it on
            self._unlinked = True
            if spare_bytes() is not None and not isinstance(error, OSError):  # with more of it, links may be found
                self._got.stopped = self._got.stopped or MemoryError(str(error))
            self._got.links.drop()  # what the rows themselves need to be written
            self._sink.warn(
                "links-missing",
                f"linking needs more memory or temporary disk than there is ({type(error).__name__}: {error})"[:500],
                "which slices enclose which, stacks, launches and forward operators of some or all rows",
            )
        return stacks

    def _link_and_nest(self, stacks: CallStacks) -> None:
        """With two threads, nesting and linking go on side by side."""
        got, names = self._got, list(self._got.frames)
        n_slices = sum(count.n_slices for count in self._counts)
        reading, linking = got.links.cursor(), got.links.cursor()
        try:
            if self._source.threads > 1 and _SMALL_TRACE < n_slices <= _LARGE_TRACE:
                with ThreadPoolExecutor(1) as pool:
                    linked = pool.submit(got.links.link, linking)
                    nest(reading, got.links, names, stacks)
                    linked.result()
            else:
                got.links.link(linking)
                nest(reading, got.links, names, stacks)
        finally:
            reading.close()
            linking.close()

    def _tell_missing_launches(self, n_launched: int, n_found: int) -> None:
        if n_found < n_launched and self._got.links.has("launch"):
            self._sink.warn(
                "launches-missing",
                f"{n_launched - n_found} of {n_launched} rows of device work name a launch that is not in the trace",
                "which operators and lines these belong to",
            )

    def _documents(self) -> Documents:
        """Base times and process numbers; tells the clock."""
        bases = []
        absolute = True
        for header, counts in zip(self._headers, self._counts, strict=True):
            last_ns = counts.last_ns
            if is_absolute(last_ns):
                bases.append(0)
                continue
            base = header.base_ns
            if base is None and last_ns:
                base = base_from_name(self._source.name, last_ns)
                if base is not None:
                    self._sink.warn(
                        "base-time-from-name",
                        f"baseTimeNanoseconds is missing; taken as {base} from the file's name",
                        "absolute times, should the file's name be wrong",
                    )
            absolute = absolute and (base is not None or not last_ns)
            bases.append(base or 0)
        self._sink.clock("epoch" if absolute else "relative", error_ns=_CLOCK_ERROR_NS if absolute else None)
        if not absolute:
            self._sink.warn(
                "no-base-time",
                "times are relative: the trace holds no baseTimeNanoseconds",
                "how these times compare with those of other artifacts",
            )
        return Documents(bases, self._process_numbers())

    def _process_numbers(self) -> list[int]:
        known: dict[tuple[int | None, int | None], int] = {}
        return [
            known.setdefault((header.rank, _pid(counts)), len(known))
            for header, counts in zip(self._headers, self._counts, strict=True)
        ]

    def _tell_damage(self, documents: Documents) -> bool:
        """Warns about what is broken; returns whether nothing was lost."""
        damage, events = self._got.damage, self._events
        if events.cut_byte is None and not any(counts.n_read for counts in self._counts):
            self._sink.warn(
                "no-events",
                "the list of events is empty: the profiler recorded nothing, or was never stepped",
                "what the job did",
            )
        first_byte, lost = damage.first_byte, damage.lost_bytes
        if damage.n_mended or damage.n_stripped or damage.n_lost or damage.n_skipped:
            self._sink.warn(
                "bad-json",
                f"events are not valid JSON: {damage.n_mended} mended, {damage.n_stripped} kept without their args, "
                f"{damage.n_lost} lost, {damage.n_skipped} stretches between events skipped",
                "links, shapes and sizes of the events without args, and the lost events",
                byte=first_byte,
            )
        if damage.refused:
            listed = [f"{name} ({n}, first {damage.first_refused[name]})" for name, n in damage.refused.most_common(20)]
            self._sink.warn(
                "bad-values",
                f"values of the wrong kind or out of range: {', '.join(listed)}",
                "these values, and what they would say of their events",
                byte=first_byte,
            )
        if events.skipped_at is not None:
            self._sink.warn(
                "bad-json",
                f"the list of events seems to end before its last events; skipped {events.skipped_bytes} bytes",
                "what the skipped events say",
                byte=events.skipped_at,
            )
            first_byte = min(events.skipped_at, first_byte if first_byte is not None else events.skipped_at)
            lost += events.skipped_bytes
        broken = any(header.how == "parts" for header in self._headers)
        if broken and events.cut_byte is None:
            self._sink.warn(
                "bad-header",
                "keys beside the events are not valid JSON; those on a line of their own were read",
                "settings, devices and process groups whose lines are broken",
                byte=0,
            )
        if events.cut_byte is not None:
            reason = (
                "memory for reading ended"
                if events.given_up
                else "an event exceeds the size limit"
                if events.oversized
                else "the trace ends inside its list of events"
            )
            n_read = sum(counts.n_read for counts in self._counts)
            ends = [
                counts.end_ns + base
                for counts, base in zip(self._counts, documents.base_ns, strict=True)
                if counts.end_ns is not None
            ]
            self._sink.warn(
                "memory-limit" if events.given_up else "truncated",
                f"{reason} at byte {events.cut_byte}; kept the {n_read} events before"
                + (f", the last of which ends at {max(ends)} ns" if ends else ""),
                "events that follow, and keys that stand after the events",
                byte=events.cut_byte,
            )
            first_byte = events.cut_byte if first_byte is None else min(first_byte, events.cut_byte)
            lost += events.lost_bytes
        nothing_skipped = events.skipped_at is None and not damage.n_skipped and not damage.n_lost
        whole = nothing_skipped and events.cut_byte is None and not self._source.damage and not self._unlinked
        if not whole or broken or damage.n_stripped or damage.refused:
            self._sink.damaged("partial", byte=first_byte, lost_bytes=lost or None)
        elif damage.n_mended or any(header.how == "mended" for header in self._headers):
            self._sink.damaged("repaired", byte=first_byte)
        return whole

    def _describe(self, documents: Documents, whole: bool, n_collectives: int) -> None:
        """Processes, facts and coverage."""
        for proc in sorted(set(documents.proc)):
            numbers = [number for number, value in enumerate(documents.proc) if value == proc]
            total = Counts()
            span: tuple[int | None, int | None] = (None, None)
            for number in numbers:
                counts, base = self._counts[number], documents.base_ns[number]
                total.add(counts)
                span = (
                    min((t for t in (span[0], _plus(counts.first_ns, base)) if t is not None), default=None),
                    max((t for t in (span[1], _plus(counts.end_ns, base)) if t is not None), default=None),
                )
            for number in numbers:
                header, counts = self._headers[number], self._counts[number]
                emit_facts(header, self._sink, proc)
                self._sink.proc(
                    proc,
                    rank=header.rank,
                    rank_origin="none" if header.rank is None else "content",
                    world_size=header.world_size,
                    host=header.host or host_from_name(self._source.name),
                    pid=_pid(counts),
                    device=min(counts.devices, key=lambda d: (-counts.devices[d], d), default=None),
                    start_ns=span[0],
                    end_ns=span[1],
                )
                for (document, tid), name in self._got.threads.items():
                    if document == number and not name.startswith(("stream ", "Device ")):
                        self._sink.fact(f"thread.{tid}"[:200], name[:200], scope="profiler", proc=proc)
            self._cover(proc, total, span, whole, n_collectives)

    def _cover(
        self, proc: int, total: Counts, span: tuple[int | None, int | None], whole: bool, n_collectives: int
    ) -> None:
        counts = {
            "slice.device": total.n_device,
            "slice.stack": total.n_frames or total.n_calls,
            "slice.shapes": total.n_shapes,
            "slice.sequence": total.n_sequence,
            "memory_event.profiler": total.n_memory,
            "sample": total.n_counters,
            "collective.profiler": n_collectives if total.n_collectives else 0,
        }
        known: dict[str, Any] = {"proc": proc, "from_ns": span[0], "to_ns": span[1]}
        self._sink.cover("slice", n_read=total.n_read, n_kept=total.n_kept, complete=whole, **known)
        for capability, count in counts.items():
            if count:
                self._sink.cover(capability, n_read=count, n_kept=count, complete=whole, **known)


def _spare_is_below(n_bytes: int) -> bool:
    spare = spare_bytes()
    return spare is not None and spare < n_bytes


def _plus(time_ns: int | None, base_ns: int) -> int | None:
    return None if time_ns is None else time_ns + base_ns


def _pid(counts: Counts) -> int | None:
    """The process that ran most operators; else the one whose track is labelled CPU."""
    numbered = {int(pid): -n for pid, n in counts.pids.items() if pid.isascii() and pid.isdigit() and len(pid) < 19}
    return min(numbered, key=lambda pid: (numbered[pid], pid), default=None)
