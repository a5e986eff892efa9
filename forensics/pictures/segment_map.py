"""The segments of a device as the snapshot found them, and the blocks that keep their free memory apart."""

from __future__ import annotations

import duckdb

from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import Block, Segment, SegmentMap

MAX_DRAWN = 2
MAX_SEGMENTS = 40
MAX_BLOCKS = 4000  # of one map; smaller neighbours of one state are joined in the drawing


def read(con: duckdb.DuckDBPyConnection) -> list[SegmentMap]:
    """Devices with pinned segments before others, then those with most free bytes in their cache."""
    devices = con.execute(
        """
        SELECT s.artifact_id, s.device, a.path, max(p.rank),
            max((SELECT count(*) FROM allocator_pin AS n WHERE n.artifact_id = s.artifact_id AND n.device = s.device)),
            sum(s.total_bytes) - sum(coalesce(s.active_bytes, s.allocated_bytes, 0)), sum(s.total_bytes)
        FROM memory_segment AS s
        JOIN artifact AS a ON a.id = s.artifact_id
        LEFT JOIN proc AS p ON p.id = s.proc_id
        GROUP BY s.artifact_id, s.device, a.path
        ORDER BY 5 DESC, 6 DESC, s.artifact_id, s.device LIMIT ?
        """,
        [MAX_DRAWN],
    ).fetchall()
    n = con.execute("SELECT count(DISTINCT artifact_id) FROM memory_segment").fetchone()
    return [
        _map(con, aid, device, mask(path), process_name(rank, n[0] if n else 0), total)
        for aid, device, path, rank, _, _, total in devices
    ]


def _map(
    con: duckdb.DuckDBPyConnection, artifact_id: int, device: int, path: str, process: str, reserved: int
) -> SegmentMap:
    key = {"a": artifact_id, "d": device}
    segments = con.execute(
        """
        SELECT s.row, s.addr, s.total_bytes, s.pool_id, s.stream, s.size_class, s.expandable
        FROM memory_segment AS s
        WHERE s.artifact_id = $a AND s.device = $d
        ORDER BY s.pool_id, s.size_class, s.stream, s.addr
        """,
        key,
    ).fetchall()
    largest = {row[0] for row in sorted(segments, key=lambda s: (-s[2], s[0]))[:MAX_SEGMENTS]}
    blocks = con.execute(
        """
        SELECT b.segment_addr, b.row, b.addr - b.segment_addr, b.size_bytes, b.state, p.place, p.joined_bytes
        FROM memory_block AS b
        LEFT JOIN allocator_pin AS p ON p.artifact_id = b.artifact_id AND p.row = b.row
        WHERE b.artifact_id = $a AND b.device = $d AND b.segment_addr = ANY($addresses)
        ORDER BY b.segment_addr, b.addr LIMIT $n
        """,
        {**key, "n": MAX_BLOCKS, "addresses": [s[1] for s in segments if s[0] in largest]},
    ).fetchall()
    inside: dict[int, list[Block]] = {}
    for segment, row, offset, size, state, place, joined in blocks:
        inside.setdefault(segment, []).append(Block(row, int(offset), size, state, mask(place or ""), joined or 0))
    free = con.execute(
        "SELECT coalesce(max(size_bytes), 0), coalesce(sum(size_bytes), 0) FROM memory_block"
        " WHERE artifact_id = $a AND device = $d AND state = 'inactive'",
        key,
    ).fetchone() or (0, 0)
    asked = con.execute(
        "SELECT last(size_bytes ORDER BY row) FROM memory_event"
        " WHERE artifact_id = $a AND device = $d AND action = 'oom'",
        key,
    ).fetchone()
    pin = con.execute(
        "SELECT place, unlocked_bytes FROM allocator_pin WHERE artifact_id = $a AND device = $d"
        " ORDER BY site_rank, row LIMIT 1",
        key,
    ).fetchone()
    return SegmentMap(
        artifact=path,
        process=process,
        device=device,
        segments=tuple(
            Segment(row, total, pool, stream, size_class, expandable, tuple(inside.get(addr, ())))
            for row, addr, total, pool, stream, size_class, expandable in segments
            if row in largest
        ),
        n_hidden=len(segments) - len(largest),
        requested_bytes=asked[0] if asked else None,
        longest_free_bytes=int(free[0]),
        free_bytes=int(free[1]),
        reserved_bytes=int(reserved),
        pinned_by=mask((pin[0] if pin else None) or ""),
        unlocked_bytes=pin[1] if pin else 0,
    )
