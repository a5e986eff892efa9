"""What the allocator of one device held when the snapshot was taken."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import duckdb

_BLOCKS = """
SELECT
    s.addr, s.total_bytes, s.stream, s.pool_id, s.size_class = 'small', s.expandable,
    b.row, b.addr, b.size_bytes, coalesce(b.requested_bytes, b.size_bytes), b.state, b.stack_id
FROM memory_segment AS s
LEFT JOIN memory_block AS b ON b.artifact_id = s.artifact_id AND b.device = s.device AND b.segment_addr = s.addr
WHERE s.artifact_id = ? AND s.device = ?
ORDER BY s.addr, b.addr
"""


@dataclass(frozen=True)
class HeldBlock:
    row: int
    addr: int
    size: int
    requested: int
    state: str
    stack_id: int | None

    @property
    def is_free(self) -> bool:
        return self.state == "inactive"


@dataclass(frozen=True)
class HeldSegment:
    """A segment, or one run of mapped pages of an expandable one; `blocks` by address."""

    addr: int
    size: int
    stream: int
    pool_id: str
    small: bool
    expandable: bool
    blocks: tuple[HeldBlock, ...] = ()

    @property
    def end(self) -> int:
        return self.addr + self.size


def read_held(con: duckdb.DuckDBPyConnection, artifact_id: int, device: int) -> list[HeldSegment]:
    rows = con.execute(_BLOCKS, [artifact_id, device]).fetchall()
    segments = []
    for (addr, size, stream, pool_id, small, expandable), group in groupby(rows, key=lambda row: row[:6]):
        blocks = tuple(HeldBlock(*row[6:]) for row in group if row[7] is not None)
        segments.append(HeldSegment(addr, size, stream, pool_id, small, expandable, blocks))
    return segments
