"""Hands the linked events of a trace to the sink as rows of the shared tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from forensics.artifact import Sink
from forensics.formats._kineto_links import DEVICE_SQL, KEPT_SQL, KIND_SQL, Links
from forensics.formats._kineto_nesting import CallStacks

_BATCH_ROWS = 200_000

_SLICES = f"""
SELECT row, {{proc}} AS proc, ts_ns + {{base}} AS ts_ns, kind, coalesce(name, '') AS name,
    CASE WHEN NOT on_device THEN TRY_CAST(tid AS BIGINT) END AS thread,
    CASE WHEN on_device THEN TRY_CAST(coalesce(device, TRY_CAST(pid AS BIGINT)) AS INTEGER) END AS device,
    CASE WHEN on_device THEN coalesce(nullif(stream, -1), wait_stream,
        TRY_CAST(regexp_extract(tid, '[0-9]{{{{1,18}}}}$') AS BIGINT)) END AS stream,
    CASE WHEN ph IN ('X', 'B') THEN CASE WHEN dur_ns < 0 THEN 0 ELSE dur_ns END END AS dur_ns,
    CASE WHEN correlation > 0 THEN TRY_CAST(correlation AS UBIGINT) END AS correlation,
    CASE WHEN kind IN ('memcpy', 'memset') OR (kind = 'runtime' AND regexp_matches(name, '[Mm]em(cpy|set)'))
        THEN coalesce(bytes, size) END AS bytes,
    CASE WHEN sequence >= 0 THEN sequence END AS sequence,
    nullif(graph_id, 0) AS graph_id,
    CASE WHEN length(shapes) > 2 THEN CAST(shapes AS VARCHAR) END AS shapes,
    nullif(calls, '') AS calls
FROM (
    SELECT *, {DEVICE_SQL} AS on_device
    FROM (SELECT *, rowid AS row, {KIND_SQL} AS kind FROM event WHERE {KEPT_SQL})
    WHERE kind <> 'memory'
)
"""

# Bytes are negative where memory was given back; totals are those after the event.
_MEMORY = """
SELECT w.rowid AS position, w.row, {proc} AS proc, e.ts_ns + {base} AS ts_ns,
    TRY_CAST(CASE WHEN device_type = 0 THEN -1 ELSE device_id END AS INTEGER) AS device,
    CASE WHEN name = '[OutOfMemory]' THEN 'oom' WHEN changed_bytes < 0 THEN 'free_completed' ELSE 'alloc' END AS action,
    addr, abs(changed_bytes) AS size_bytes, allocated, reserved
FROM work AS w JOIN event AS e ON e.rowid = w.row
WHERE w.kind = 'memory' ORDER BY w.row
"""

_COUNTERS = """
SELECT first.row + number AS row, name, pid, counter.ts_ns, args, first.document
FROM counter
JOIN (SELECT piece, min(rowid) AS row, min(document) AS document FROM event GROUP BY piece) AS first USING (piece)
ORDER BY row
"""


@dataclass(frozen=True)
class Documents:
    """For each document of the file: what its times are relative to, and its process."""

    base_ns: Sequence[int]
    proc: Sequence[int]

    def sql(self, values: Sequence[int]) -> str:
        if len(set(values)) == 1:
            return f"CAST({values[0]} AS BIGINT)"
        cases = " ".join(f"WHEN {number} THEN {value}" for number, value in enumerate(values))
        return f"CAST(CASE document {cases} END AS BIGINT)"

    def fill(self, query: str) -> str:
        return query.format(base=self.sql(self.base_ns), proc=self.sql(self.proc))


@dataclass(frozen=True)
class Nested:
    """For each position of `work`: row of the enclosing slice, and stack where Python frames were recorded."""

    parent_row: pa.Array
    stack_id: pa.Array | None


def emit_slices(
    con: duckdb.DuckDBPyConnection,
    sink: Sink,
    documents: Documents,
    links: Links,
    nested: Nested,
    stacks: CallStacks,
    *,
    has_memory: bool,
) -> None:
    linked = links.table.append_column("parent_row", nested.parent_row)
    if nested.stack_id is not None:
        linked = linked.append_column("stack_id", nested.stack_id)
    if has_memory:
        is_slice = con.sql("SELECT kind <> 'memory' AS is_slice FROM work ORDER BY row").to_arrow_table().column(0)
        linked = linked.filter(is_slice)
    texts: dict[str, int] = {}
    done = 0
    for batch in con.sql(documents.fill(_SLICES)).to_arrow_reader(_BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        found = linked.slice(done, batch.num_rows)
        done += batch.num_rows
        if not rows.column("row").equals(found.column("row")):  # DuckDB promises the order of simple scans only
            found = linked.take(pc.index_in(rows.column("row"), linked.column("row").combine_chunks()))
        for name in found.column_names[1:]:
            rows = rows.append_column(name, found.column(name))
        calls = rows.column("calls")
        rows = rows.drop_columns("calls")
        if nested.stack_id is None and calls.null_count < len(calls):
            rows = rows.append_column("stack_id", _stacks_of_texts(calls, stacks, texts))
        sink.emit("slice", rows)


def _stacks_of_texts(calls: pa.ChunkedArray, stacks: CallStacks, known: dict[str, int]) -> pa.Array:
    encoded = calls.combine_chunks().dictionary_encode()
    for text in encoded.dictionary.to_pylist():
        if text not in known:
            known[text] = stacks.from_text(text)
    ids = pa.array([known[text] or None for text in encoded.dictionary.to_pylist()], pa.uint64())
    return ids.take(encoded.indices)


def emit_memory(con: duckdb.DuckDBPyConnection, sink: Sink, documents: Documents, links: Links, nested: Nested) -> None:
    """Events of the allocator as the profiler saw them, and its totals after each as samples."""
    for batch in con.sql(documents.fill(_MEMORY)).to_arrow_reader(_BATCH_ROWS):
        rows = pa.Table.from_batches([batch])
        position = rows.column("position")
        step = links.table.column("step").take(position)
        totals = {"Total Allocated": rows.column("allocated"), "Total Reserved": rows.column("reserved")}
        rows = rows.drop_columns(["position", "allocated", "reserved"]).append_column("step", step)
        stacked = rows if nested.stack_id is None else rows.append_column("stack_id", nested.stack_id.take(position))
        sink.emit("memory_event", stacked)
        for name, values in totals.items():
            _emit_totals(sink, rows, name, values)


def _emit_totals(sink: Sink, rows: pa.Table, name: str, values: pa.ChunkedArray) -> None:
    keep = pc.is_valid(values)
    if name == "Total Reserved":  # always 0 for host memory
        keep = pc.and_(keep, pc.not_equal(pc.fill_null(rows.column("device"), 0), -1))
    samples = rows.select(["row", "proc", "ts_ns", "device", "step"]).append_column(
        "value", pc.cast(values, pa.float64())
    )
    samples = samples.filter(keep)
    for column, text in (("source", "trace"), ("name", name), ("unit", "B")):
        samples = samples.append_column(column, pa.array([text] * samples.num_rows, pa.string()))
    if samples.num_rows:
        sink.emit("sample", samples)


def emit_counters(con: duckdb.DuckDBPyConnection, sink: Sink, documents: Documents) -> None:
    """One sample for each number of each counter event."""
    for batch in con.sql(_COUNTERS).to_arrow_reader(_BATCH_ROWS):
        samples: list[dict[str, Any]] = []
        for event in batch.to_pylist():
            for key, value in _numbers(event["args"]):
                name = f"{event['name'] or ''}.{key}" if key and key != event["name"] else event["name"] or key
                base = documents.base_ns[event["document"]]
                samples.append(
                    {
                        "row": event["row"],
                        "proc": documents.proc[event["document"]],
                        "ts_ns": None if event["ts_ns"] is None else event["ts_ns"] + base,
                        "name": name[:500],
                        "source": "trace",
                        "value": value,
                    }
                )
        if samples:
            sink.emit("sample", pa.Table.from_pylist(samples))


def _numbers(args: str | None) -> list[tuple[str, float]]:
    try:
        members = orjson.loads(args or "{}")
    except orjson.JSONDecodeError:  # nan and inf
        return []
    if not isinstance(members, Mapping):
        return []
    return [(k, float(v)) for k, v in members.items() if isinstance(v, int | float) and not isinstance(v, bool)]


def emit_steps(sink: Sink, links: Links, documents: Documents) -> None:
    steps = [
        {
            "proc": documents.proc[step["document"]],
            "step": step["step"],
            "start_ns": step["start_ns"] + documents.base_ns[step["document"]],
            "end_ns": step["end_ns"] + documents.base_ns[step["document"]],
            "origin": "profiler",
        }
        for step in links.steps.to_pylist()
    ]
    if steps:
        sink.emit("step", pa.Table.from_pylist(steps))


def emit_positions(con: duckdb.DuckDBPyConnection, sink: Sink, piece_bytes: Sequence[int]) -> None:
    found = con.execute("SELECT piece, min(rowid) AS row FROM event GROUP BY piece ORDER BY row").fetchall()
    if found:
        table = {
            "table": ["slice"] * len(found),
            "row": [row for _, row in found],
            "byte": [piece_bytes[p] for p, _ in found],
        }
        sink.emit("position", pa.table(table))
