"""TORCH_TRACE logs of torch.compile and export (what tlparse reads), from PyTorch 2.3 on.

Prefixes carry the wall time without year and zone; phases and metrics carry epoch times, which settle both. Source
code and graphs in payloads are checked against their MD5 and counted, not kept.
"""

from __future__ import annotations

import re

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._text_lines import BadLines
from forensics.formats._torch_trace_records import HEADER, MAX_RECORD_BYTES, Record, Records
from forensics.formats._torch_trace_rows import TraceRows

VERSION = 2
TITLE = "TORCH_TRACE log of torch.compile (structured)"
PROVIDES = ("compile_event", "fact")

_KEYS = (
    b'"str": [', b'"has_payload"', b'"dynamo_start"', b'"frame_id"', b'"artifact"', b'"compilation_metrics"',
    b'"describe_', b'"guard_added', b'"expression_created"', b'"create_', b'"export',
)  # fmt: skip


_NAMED_RANK = re.compile(r"(?<![a-z])rank[_.\-=]?(\d{1,6})(?!\d)", re.IGNORECASE)


def recognise(head: Head) -> int:
    lines = [line for line in head.data.split(b"\n")[:500] if line.strip() and not line.startswith(b"\t")]
    # A log may also begin in the middle of a payload.
    found = [line for line in lines if (m := HEADER.match(line)) and any(key in line[m.end() :] for key in _KEYS)]
    return 92 if found and len(found) * 2 >= len(lines) else 0


def load(source: Source, sink: Sink) -> None:
    bad = BadLines(sink, "bad-record", "what that record says, such as a compilation or its failure")
    rows = TraceRows(sink)
    broken: list[Record] = []
    n_records = n_payloads = n_broken = 0
    with source.open() as stream:
        records = Records(stream, lambda line, byte, what: bad.add(line, what))
        for record in records:
            n_records += 1
            if record.has_payload is not None:
                n_payloads += 1
                if not record.is_intact:
                    n_broken += 1
                    broken.append(record) if len(broken) < BadLines.REPORTED else None
            rows.add(record)
    if not n_records:
        raise ArtifactError(f"{source.name}: no record; expected lines of TORCH_TRACE with a JSON object each", byte=0)
    rows.close()
    bad.close()
    for record in broken:
        text = f"line {record.line}: the payload is not the one announced (MD5 differs), so it was cut, mixed or edited"
        sink.warn("payload-md5", text, "what the rest of that payload says", line=record.line, byte=record.byte)
    if n_broken > len(broken):
        sink.warn("payload-md5", f"{n_broken - len(broken)} more payloads differ from their MD5", "what they say")
    if n_broken:
        sink.damaged("partial", byte=broken[0].byte)
    _tell(sink, rows, n_payloads)
    _warn(sink, rows, records.n_oversized)
    whole = not bad.count and not n_broken and not rows.n_dropped and source.damage is None
    _describe(source, sink, rows, n_records, whole=whole)


def _tell(sink: Sink, rows: TraceRows, n_payloads: int) -> None:
    """How often each kind of record occurs: also of those that become no rows."""
    for kind, count in sorted(rows.kinds.items()):
        sink.fact(f"torch_trace.{kind}", str(count), scope="profiler", number=count)
    for name, count in sorted(rows.artifacts.items()):
        sink.fact(f"torch_trace.artifact.{name}", str(count), scope="profiler", number=count)
    sink.fact("torch_trace.payloads", str(n_payloads), scope="profiler", number=n_payloads)


def _warn(sink: Sink, rows: TraceRows, n_oversized: int) -> None:
    if rows.n_dropped:
        text = f"{rows.n_dropped} further events were counted, not kept"
        sink.warn("too-many-events", text, "how often and when the most frequent ones came later on")
    if n_oversized:
        text = f"{n_oversized} payloads are longer than {MAX_RECORD_BYTES} bytes and were read in pieces"
        sink.warn("long-record", text, "what these payloads say")
    if rows.n_bad_payloads:
        text = f"{rows.n_bad_payloads} timed phases have no readable JSON or time"
        sink.warn("bad-phase", text, "when and how long these phases ran")
    if rows.n_rank_changes:
        text = f"{rows.n_rank_changes} records name another rank than the first of their process"
        sink.warn("rank-mismatch", text, "which rank these records belong to")
    if rows.n_events and not rows.clock.is_known:
        text = "times have neither year nor zone, and no phase or metric tells them"
        sink.warn("no-year", text, "when the events were, against other artifacts")


def _describe(source: Source, sink: Sink, rows: TraceRows, n_records: int, *, whole: bool) -> None:
    if rows.clock.is_known:
        sink.clock("epoch", error_ns=1_000_000)
    named = _NAMED_RANK.search(source.own_name)
    for pid, process in rows.processes.items():
        if named and process.rank not in (None, int(named[1])):
            text = f"the file's name says rank {named[1]}, its records say rank {process.rank}"
            sink.warn("rank-mismatch", text, "whose log this is, should the records be wrong")
        low, high = rows.span(process.number)
        sink.proc(
            process.number,
            rank=process.rank,
            rank_origin="none" if process.rank is None else "content",
            pid=pid,
            start_ns=low,
            end_ns=high,
        )
        sink.cover(
            "compile_event",
            proc=process.number,
            complete=whole,
            n_read=n_records,
            n_kept=process.n_kept,
            from_ns=low,
            to_ns=high,
        )
