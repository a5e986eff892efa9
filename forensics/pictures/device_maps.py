"""Where the tensors of each process's model lay, joined to stretches of modules on one device."""

from __future__ import annotations

import duckdb

from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import DeviceMap, Stretch

MAX_DRAWN = 2
MAX_STRETCHES = 60


def read(con: duckdb.DuckDBPyConnection) -> list[DeviceMap]:
    """Maps with misplaced tensors before others, then those over most devices.

    A model that lies on one device, as declared, needs no map.
    """
    maps = con.execute(
        """
        SELECT p.artifact_id, a.path, max(p.rank), count(*) FILTER (WHERE NOT p.is_as_declared),
            count(DISTINCT p.device)
        FROM placement AS p JOIN artifact AS a ON a.id = p.artifact_id
        GROUP BY p.artifact_id, a.path HAVING count(DISTINCT p.device) > 1 OR bool_or(NOT p.is_as_declared)
        ORDER BY 4 DESC, 5 DESC, p.artifact_id LIMIT ?
        """,
        [MAX_DRAWN],
    ).fetchall()
    n = con.execute("SELECT count(DISTINCT artifact_id) FROM placement").fetchone()
    found = []
    for artifact_id, path, rank, *_ in maps:
        stretches = _stretches(con, artifact_id)
        shown = tuple(stretches[:MAX_STRETCHES])
        process = process_name(rank, n[0] if n else 0)
        found.append(DeviceMap(mask(path), process, shown, len(stretches) - len(shown)))
    return found


def _stretches(con: duckdb.DuckDBPyConnection, artifact_id: int) -> list[Stretch]:
    rows = con.execute(
        """
        WITH
        placed AS (
            SELECT p.row, n.text AS name, p.device, coalesce(p.declared, '') AS declared,
                NOT coalesce(p.is_as_declared, true) AS misplaced, p.size_bytes
            FROM placement AS p JOIN string AS n ON n.id = p.name_id WHERE p.artifact_id = ?
        ),
        turned AS (
            SELECT *, (device, misplaced) IS DISTINCT FROM lag((device, misplaced)) OVER (ORDER BY row) AS turns
            FROM placed
        ),
        numbered AS (SELECT *, count(*) FILTER (WHERE turns) OVER (ORDER BY row) AS n FROM turned)
        SELECT arg_min(name, row), arg_max(name, row), count(*), min(device), min(declared), bool_or(misplaced),
            sum(size_bytes)::BIGINT
        FROM numbered GROUP BY n ORDER BY n
        """,
        [artifact_id],
    ).fetchall()
    return [
        Stretch(mask(first), mask(last), n, mask(device), mask(declared), misplaced, n_bytes)
        for first, last, n, device, declared, misplaced, n_bytes in rows
    ]
