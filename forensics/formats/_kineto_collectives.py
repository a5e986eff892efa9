"""Collectives out of a trace: of calls whose metadata was recorded, else of annotations named after them.

The call (`record_param_comms`) and its kernel share an external id; sizes are numbers of elements. Process groups that
the header does not list are added from what the calls say of them. Traces before late 2023 hold names alone.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._collective_names import ITEM_BYTES, operation_name
from forensics.formats._kineto_emit import Documents
from forensics.formats._kineto_links import LinkTables
from forensics.formats._kineto_spool import Spool
from forensics.formats._rank_ranges import ranges_of

_BATCH_ROWS = 50_000
_MAX_GROUPS = 10_000
_RANKS = re.compile(r"\[[\d,\s]{1,100000}\]")

# Not `wait`: it belongs to the collective before it. A call without its kernel, and a kernel without its call (traces
# of devices alone), are rows too.
_COLLECTIVES = """
WITH told AS (
    SELECT * FROM collective_event WHERE operation IS NOT NULL AND lower(operation) <> 'wait'
), kernel AS (
    SELECT document, external, min(ts_ns) AS started_ns, max(ts_ns + greatest(coalesce(dur_ns, 0), 0)) AS completed_ns
    FROM told WHERE kind = 'kernel' GROUP BY document, external
), call AS (
    SELECT * FROM told WHERE kind <> 'kernel'
)
SELECT call.*, k.started_ns, k.completed_ns FROM call LEFT JOIN kernel AS k USING (document, external)
UNION ALL BY NAME
SELECT told.*, ts_ns AS started_ns, ts_ns + greatest(coalesce(dur_ns, 0), 0) AS completed_ns
FROM told ANTI JOIN call USING (document, external) WHERE told.kind = 'kernel'
UNION ALL BY NAME
SELECT noted.* FROM collective_event AS noted ANTI JOIN told USING (document) WHERE noted.operation IS NULL
ORDER BY row
"""


class Groups:
    """Rows of `process_group`: those of the header, then those that only calls name."""

    def __init__(self, listed: pa.Table) -> None:
        self._rows = listed.to_pylist()
        self._known = {row["name"]: row["id"] for row in reversed(self._rows)}

    def number(self, name: str | None, ranks: str | None) -> int | None:
        if name is None:
            return None
        known = self._known.get(name)
        if known is None and len(self._rows) < _MAX_GROUPS:
            known = self._known[name] = len(self._rows)
            members = orjson.loads(ranks) if ranks and _RANKS.fullmatch(ranks) and "," not in ranks[-2:] else None
            self._rows.append({"id": known, "name": name[:500], "backend": None, "ranks": ranges_of(members)})
        return known

    def emit(self, sink: Sink) -> None:
        if self._rows:
            kinds = {"id": pa.int32(), "name": pa.string(), "backend": pa.string(), "ranks": pa.string()}
            columns = {name: pa.array([row[name] for row in self._rows], kind) for name, kind in kinds.items()}
            sink.emit("process_group", pa.table(columns))


def emit_collectives(sink: Sink, spool: Spool, links: LinkTables, documents: Documents, groups: Groups) -> int:
    """Returns how many there are."""
    n_told = 0
    for group in spool.groups():
        links.insert("collective_event", group)
        n_told += group.num_rows
    if not n_told:
        return 0
    n_rows = 0
    reader = links.cursor()
    for batch in reader.sql(_COLLECTIVES).to_arrow_reader(_BATCH_ROWS):
        events = pa.Table.from_batches([batch])
        part = events.select(["row", "document", "ts_ns"])
        part = part.append_column("correlation", pa.nulls(len(part), pa.int64()))
        found = links.attach(part.append_column("on_device", pa.repeat(pa.scalar(False), len(part))))
        rows = [_row(event, documents, groups) for event in events.to_pylist()]
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        for name in ("step", "stack_id"):
            table = table.append_column(name, found.column(name))
        sink.emit("collective", table)
        n_rows += len(table)
    reader.close()
    return n_rows


_NUMBERS = ("row", "ts_ns", "in_bytes", "out_bytes", "sequence", "started_ns", "completed_ns", "dur_ns")
_SCHEMA = pa.schema(
    [("proc", pa.int32()), ("group_id", pa.int32()), ("peer_rank", pa.int32()), ("is_p2p", pa.bool_())]
    + [(name, pa.int64()) for name in _NUMBERS]
    + [(name, pa.string()) for name in ("operation", "dtype", "state")]
)


def _row(event: dict[str, Any], documents: Documents, groups: Groups) -> dict[str, Any]:
    base = documents.base_ns[event["document"]]
    written = event["operation"] or event["name"].partition(":")[2]
    operation = operation_name(written[:200])
    started, completed = event["started_ns"], event["completed_ns"]
    is_p2p = operation in {"send", "recv"}
    peer = event["target_rank"] if operation == "send" else event["source_rank"] if is_p2p else None
    return {
        "row": event["row"],
        "proc": documents.proc[event["document"]],
        "ts_ns": None if event["ts_ns"] is None else event["ts_ns"] + base,
        "group_id": groups.number(event["group_name"], event["group_ranks"]),
        "sequence": event["group_sequence"],
        "is_p2p": is_p2p,
        "peer_rank": peer if peer is not None and 0 <= peer < 1 << 31 else None,
        "operation": operation,
        "dtype": event["dtype"],
        "in_bytes": _bytes(event["in_elements"], event["dtype"]),
        "out_bytes": _bytes(event["out_elements"], event["dtype"]),
        "state": "completed" if completed is not None else None,
        "started_ns": None if started is None else started + base,
        "completed_ns": None if completed is None else completed + base,
        "dur_ns": None if started is None or completed is None else completed - started,
    }


def _bytes(elements: int | None, dtype: str | None) -> int | None:
    size = ITEM_BYTES.get(dtype or "")
    if size is None or elements is None or not 0 <= elements < 1 << 58:
        return None
    return elements * size
