"""Parquet files that no other format knows: what they hold, or that the end, which all need, is missing."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Head, Sink, Source

VERSION = 1
TITLE = "Parquet file of another kind, named with its columns, or said to be cut"
PROVIDES = ()

_SURENESS = 12
_MAX_BYTES = 1 << 30  # looked at
_MAX_COLUMNS = 20


def recognise(head: Head) -> int:
    return _SURENESS if head.data.startswith(b"PAR1") else 0


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        data = stream.read(_MAX_BYTES)
    if not data.endswith(b"PAR1") or len(data) < 12:
        sink.warn(
            "truncated",
            f"a Parquet file of {len(data)} bytes whose end is missing; the end tells how the rest is to be read",
            "all that the file would say: write or copy it again",
            byte=len(data),
        )
        sink.damaged("failed", byte=len(data), lost_bytes=len(data))
        return
    try:
        schema = pq.read_schema(io.BytesIO(data))
    except (pa.ArrowException, OSError) as error:
        sink.warn("unreadable", f"a Parquet file that cannot be read ({error})"[:500], "all that the file would say")
        sink.damaged("failed")
        return
    names = [name[:100] for name in schema.names]
    listed = ", ".join(names[:_MAX_COLUMNS]) + (", …" if len(names) > _MAX_COLUMNS else "")
    sink.warn("not-evidence", f"a Parquet file of no kind known here, with the columns {listed}", "what its rows say")
    sink.damaged("unknown")
