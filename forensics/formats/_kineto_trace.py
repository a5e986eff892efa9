"""Puts one read trace together: processes, times, links, rows, and what the evidence covers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from forensics.artifact import Sink, Source
from forensics.formats._json_events import EventStream
from forensics.formats._kineto_emit import (
    Documents,
    Nested,
    emit_counters,
    emit_memory,
    emit_positions,
    emit_slices,
    emit_steps,
)
from forensics.formats._kineto_header import (
    Header,
    base_from_name,
    emit_facts,
    host_from_name,
    is_absolute,
    process_groups,
    read_headers,
)
from forensics.formats._kineto_links import Links, find_links, pair_begins
from forensics.formats._kineto_nesting import CallStacks, nest
from forensics.formats._kineto_rows import EventTable

_CLOCK_ERROR_NS = 10_000  # the profiler aligns its clocks to a few microseconds

_EVENT_STATS = """
SELECT document, count(*) AS n_read, count(ph) AS n_kept, count(*) FILTER (ph IN ('B', 'E')) AS n_begins,
    count(*) FILTER (ph = 'C') AS n_counters,
    count(*) FILTER (ph = 's' AND cat IN ('fwdbwd', 'forward_backward')) AS n_flows,
    count(*) FILTER (correlation > 0) AS n_correlated, count(*) FILTER (length(shapes) > 2) AS n_shapes,
    count(*) FILTER (sequence >= 0) AS n_sequence, count(*) FILTER (sequence >= 0 AND forward_thread > 0) AS n_backward,
    count(*) FILTER (calls <> '') AS n_calls, max(ts_ns) AS last_ns
FROM event GROUP BY document
"""
_WORK_STATS = """
SELECT document, count(*) FILTER (kind <> 'memory') AS n_slices, count(*) FILTER (kind = 'memory') AS n_memory,
    count(*) FILTER (kind IN ('kernel', 'memcpy', 'memset') OR (on_device AND kind NOT IN ('gpu_annotation', 'sync')))
        AS n_device,
    count(frame) AS n_frames, min(ts_ns) FILTER (ts_ns > 0) AS first_ns,
    max(ts_ns + greatest(coalesce(dur_ns, 0), 0)) AS end_ns
FROM work GROUP BY document
"""
# The process that ran the operators; else the one whose track is labelled CPU.
_PIDS = """
SELECT document, TRY_CAST(pid AS BIGINT) AS pid, count(*) FILTER (ph <> 'M') AS n
FROM event
WHERE (ph = 'M' AND name = 'process_labels' AND label = 'CPU')
    OR cat IN ('cpu_op', 'Operator', 'cuda_runtime', 'Runtime', 'user_annotation')
GROUP BY document, pid HAVING TRY_CAST(pid AS BIGINT) IS NOT NULL ORDER BY document, n DESC, pid
"""
_DEVICES = """
SELECT document, device, count(*) AS n FROM event
WHERE cat IN ('kernel', 'Kernel', 'gpu_memcpy', 'Memcpy', 'gpu_memset', 'Memset') AND device BETWEEN 0 AND 1023
GROUP BY document, device ORDER BY document, n DESC, device
"""


class Trace:
    """Emits everything of a trace whose events lie in `table`."""

    def __init__(self, source: Source, sink: Sink, table: EventTable, events: EventStream) -> None:
        self._source = source
        self._sink = sink
        self._table = table
        self._con = table.con
        self._events = events
        self._headers = read_headers(events.texts)[: len(events.array_bytes)]
        self._n_documents = len(events.array_bytes)
        while len(self._headers) < self._n_documents:
            self._headers.append(Header({}, "parts"))

    def emit(self) -> None:
        stats = self._stats(_EVENT_STATS)

        def has(name: str) -> bool:
            return any(row[name] for row in stats.values())

        if has("n_begins"):
            pair_begins(self._con)
        links = find_links(self._con, correlated=has("n_correlated"), flows=has("n_flows"), numbered=has("n_backward"))
        work = self._stats(_WORK_STATS)
        stats = {document: {**row, **work.get(document, {})} for document, row in stats.items()}
        pids = self._first(_PIDS)
        documents = self._documents(stats, pids)
        self._emit_rows(documents, links, has_memory=any(row["n_memory"] for row in work.values()))
        if has("n_counters"):
            emit_counters(self._con, self._sink, documents)
        groups = process_groups(self._headers)
        if groups.num_rows:
            self._sink.emit("process_group", groups)
        whole = self._tell_damage(stats)
        self._describe(documents, stats, pids, whole)

    def _emit_rows(self, documents: Documents, links: Links, *, has_memory: bool) -> None:
        stacks = CallStacks()
        parent_row, stack_id = nest(self._con, links.table.num_rows, stacks)
        nested = Nested(parent_row, stack_id)
        emit_slices(self._con, self._sink, documents, links, nested, stacks, has_memory=has_memory)
        if has_memory:
            emit_memory(self._con, self._sink, documents, links, nested)
        emit_steps(self._sink, links, documents)
        emit_positions(self._con, self._sink, self._table.piece_bytes)
        frames = stacks.stacks.table()
        if frames.num_rows:
            self._sink.emit("stack", frames)
        if stacks.full:
            self._sink.warn(
                "too-many-stacks", "stacks beyond the bounds are cut at their inner end", "the innermost frames"
            )

    def _stats(self, query: str) -> dict[int, dict[str, Any]]:
        rows = self._con.sql(query).to_arrow_table().to_pylist()
        return {row["document"]: row for row in rows}

    def _documents(self, stats: dict[int, dict[str, Any]], pids: dict[int, int]) -> Documents:
        """Base times and process numbers; tells the clock."""
        bases = []
        absolute = True
        for number, header in enumerate(self._headers):
            last_ns = stats.get(number, {}).get("last_ns") or 0
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
            absolute = absolute and base is not None
            bases.append(base or 0)
        self._sink.clock("epoch" if absolute else "relative", error_ns=_CLOCK_ERROR_NS if absolute else None)
        if not absolute:
            self._sink.warn(
                "no-base-time",
                "times are relative: the trace holds no baseTimeNanoseconds",
                "how these times compare with those of other artifacts",
            )
        return Documents(bases, self._process_numbers(pids))

    def _process_numbers(self, pids: dict[int, int]) -> list[int]:
        known: dict[tuple[int | None, int | None], int] = {}
        return [
            known.setdefault((header.rank, pids.get(number)), len(known)) for number, header in enumerate(self._headers)
        ]

    def _first(self, query: str) -> dict[int, int]:
        found: dict[int, int] = {}
        for document, value, _ in self._con.execute(query).fetchall():
            found.setdefault(document, value)
        return found

    def _tell_damage(self, stats: dict[int, dict[str, Any]]) -> bool:
        """Warns about what is broken; returns whether nothing was lost."""
        damage, events = self._table.damage, self._events
        first_byte, lost = damage.first_byte, damage.lost_bytes
        if damage.n_mended or damage.n_stripped or damage.n_lost or damage.n_skipped:
            self._sink.warn(
                "bad-json",
                f"events are not valid JSON: {damage.n_mended} mended, {damage.n_stripped} kept without their args, "
                f"{damage.n_lost} lost, {damage.n_skipped} stretches between events skipped",
                "links, shapes and sizes of the events without args, and the lost events",
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
                "an event exceeds the size limit" if events.oversized else "the trace ends inside its list of events"
            )
            n_read = sum(row["n_read"] for row in stats.values())
            self._sink.warn(
                "truncated",
                f"{reason} at byte {events.cut_byte}; kept the {n_read} events before",
                "events that follow, and keys that stand after the events",
                byte=events.cut_byte,
            )
            first_byte = events.cut_byte if first_byte is None else min(first_byte, events.cut_byte)
            lost += events.lost_bytes
        nothing_skipped = events.skipped_at is None and not damage.n_skipped and not damage.n_lost
        whole = nothing_skipped and events.cut_byte is None and not self._source.damage
        if not whole or broken or damage.n_stripped:
            self._sink.damaged("partial", byte=first_byte, lost_bytes=lost or None)
        elif damage.n_mended or any(header.how == "mended" for header in self._headers):
            self._sink.damaged("repaired", byte=first_byte)
        return whole

    def _describe(
        self, documents: Documents, stats: dict[int, dict[str, Any]], pids: dict[int, int], whole: bool
    ) -> None:
        """Processes, facts and coverage."""
        has_device = any(row.get("n_device") for row in stats.values())
        devices = self._first(_DEVICES) if has_device else {}
        for proc in sorted(set(documents.proc)):
            numbers = [number for number, value in enumerate(documents.proc) if value == proc]
            rows = [stats.get(n, {}) for n in numbers]
            starts = [
                r["first_ns"] + documents.base_ns[n] for n, r in zip(numbers, rows, strict=True) if r.get("first_ns")
            ]
            ends = [r["end_ns"] + documents.base_ns[n] for n, r in zip(numbers, rows, strict=True) if r.get("end_ns")]
            span = (min(starts, default=None), max(ends, default=None))
            for number in numbers:
                header = self._headers[number]
                emit_facts(header, self._sink, proc)
                self._sink.proc(
                    proc,
                    rank=header.rank,
                    rank_origin="none" if header.rank is None else "content",
                    world_size=header.world_size,
                    host=header.host or host_from_name(self._source.name),
                    pid=pids.get(number),
                    device=devices.get(number),
                    start_ns=span[0],
                    end_ns=span[1],
                )
            self._cover(proc, rows, span, whole)

    def _cover(
        self, proc: int, rows: Sequence[dict[str, Any]], span: tuple[int | None, int | None], whole: bool
    ) -> None:
        def total(name: str) -> int:
            return sum(row.get(name) or 0 for row in rows)

        counts = {
            "slice.device": total("n_device"),
            "slice.stack": total("n_frames") or total("n_calls"),
            "slice.shapes": total("n_shapes"),
            "slice.sequence": total("n_sequence"),
            "memory_event.profiler": total("n_memory"),
            "sample": total("n_counters"),
        }
        known: dict[str, Any] = {"proc": proc, "from_ns": span[0], "to_ns": span[1]}
        self._sink.cover("slice", n_read=total("n_read"), n_kept=total("n_kept"), complete=whole, **known)
        for capability, count in counts.items():
            if count:
                self._sink.cover(capability, n_read=count, n_kept=count, complete=whole, **known)
