"""Who keeps the largest tensors of a process alive: tensors on the same way are told together."""

from __future__ import annotations

import re

import duckdb

from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import Keeper, ReferenceChains

MAX_DRAWN = 2
MAX_KEEPERS = 10
# The place in a list and its length differ from tensor to tensor, the way to it does not.
_PLACE = re.compile(r"\[-?\d+\] of (\d+)$")


def read(con: duckdb.DuckDBPyConnection) -> list[ReferenceChains]:
    """Of the processes whose tensors are largest."""
    files = con.execute(
        """
        SELECT r.artifact_id, a.path, max(r.rank) FROM reference_link AS r JOIN artifact AS a ON a.id = r.artifact_id
        WHERE r.place = 0 GROUP BY r.artifact_id, a.path
        ORDER BY sum(r.size_bytes) DESC NULLS LAST, r.artifact_id LIMIT ?
        """,
        [MAX_DRAWN],
    ).fetchall()
    n = con.execute("SELECT count(DISTINCT artifact_id) FROM reference_link").fetchone()
    found = []
    for artifact_id, path, rank in files:
        keepers = _keepers(con, artifact_id)
        process = process_name(rank, n[0] if n else 0)
        shown = tuple(keepers[:MAX_KEEPERS])
        found.append(ReferenceChains(mask(path), process, shown, len(keepers) - len(shown)))
    return found


def _keepers(con: duckdb.DuckDBPyConnection, artifact_id: int) -> list[Keeper]:
    tensors = con.execute(
        """
        SELECT coalesce(max(r.size_bytes), 0), max(s.text), max(r.dtype), max(r.device), list(h.text ORDER BY r.place)
        FROM reference_link AS r
        JOIN string AS h ON h.id = r.holder_id
        LEFT JOIN string AS s ON s.id = r.shape_id
        WHERE r.artifact_id = ? GROUP BY r.tensor ORDER BY r.tensor
        """,
        [artifact_id],
    ).fetchall()
    groups: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for size, shape, dtype, device, chain in tensors:
        way = tuple(mask(_PLACE.sub(r" of \1", link)) for link in chain)
        groups.setdefault(way, []).append((size, " ".join(part for part in (shape, dtype, device) if part)))
    keepers = [Keeper(len(held), sum(size for size, _ in held), held[0][1], way) for way, held in groups.items()]
    return sorted(keepers, key=lambda keeper: -keeper.n_bytes)
