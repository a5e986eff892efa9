"""Live and reserved memory over the allocator's events, with steps, failures and what other settings would need."""

from __future__ import annotations

import duckdb

from forensics.finding import format_bytes
from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import Failure, Level, MemoryTimeline, Owner

MAX_DRAWN = 2  # devices
MAX_POINTS = 1400
_MAX_MARKS, _MAX_OWNERS, _MAX_LEVELS = 40, 12, 3


def read(con: duckdb.DuckDBPyConnection) -> list[MemoryTimeline]:
    """Devices on which an allocation failed before others, then those with most reserved."""
    devices = con.execute(
        """
        SELECT m.artifact_id, m.device, a.path, max(m.rank), bool_or(m.moment = 'oom') AS failed,
            max(m.reserved_bytes) AS most
        FROM memory_moment AS m JOIN artifact AS a ON a.id = m.artifact_id
        WHERE m.row IS NOT NULL
        GROUP BY ALL ORDER BY failed DESC, most DESC, m.artifact_id, m.device LIMIT ?
        """,
        [MAX_DRAWN],
    ).fetchall()
    n = _n_processes(con)
    return [_timeline(con, aid, device, mask(path), process_name(rank, n)) for aid, device, path, rank, _, _ in devices]


def _n_processes(con: duckdb.DuckDBPyConnection) -> int:
    row = con.execute("SELECT count(DISTINCT artifact_id) FROM memory_moment").fetchone()
    return int(row[0]) if row else 0


def _timeline(con: duckdb.DuckDBPyConnection, artifact_id: int, device: int, path: str, process: str) -> MemoryTimeline:
    failures = con.execute(
        """
        SELECT e.row, e.size_bytes, m.place
        FROM memory_event AS e
        LEFT JOIN memory_moment AS m
            ON m.artifact_id = e.artifact_id AND m.device = e.device AND m.row = e.row AND m.moment = 'oom'
        WHERE e.artifact_id = $a AND e.device = $d AND e.action = 'oom'
        ORDER BY e.row DESC LIMIT $n
        """,
        {"a": artifact_id, "d": device, "n": _MAX_MARKS},
    ).fetchall()
    points, n_events = _points(con, artifact_id, device)
    moment, owners = _owners(con, artifact_id, device)
    return MemoryTimeline(
        artifact=path,
        process=process,
        device=device,
        points=points,
        n_events=n_events,
        steps=_steps(con, artifact_id, device),
        failures=tuple(Failure(row, size, mask(place or "")) for row, size, place in reversed(failures)),
        levels=_levels(con, artifact_id, device),
        owners=owners,
        owned_at=moment,
    )


def _points(
    con: duckdb.DuckDBPyConnection, artifact_id: int, device: int
) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """The running sums, set so that they end at what the snapshot holds; of each stretch its lowest and highest."""
    rows = con.execute(
        """
        WITH
        change AS (
            SELECT row,
                CASE action WHEN 'alloc' THEN size_bytes WHEN 'free_requested' THEN -size_bytes ELSE 0 END AS live,
                CASE
                    WHEN action IN ('segment_alloc', 'segment_map') THEN size_bytes
                    WHEN action IN ('segment_free', 'segment_unmap') THEN -size_bytes
                    ELSE 0
                END AS reserved
            FROM memory_event WHERE artifact_id = $a AND device = $d
        ),
        summed AS (
            SELECT row, sum(live) OVER (ORDER BY row) AS live, sum(reserved) OVER (ORDER BY row) AS reserved,
                row_number() OVER (ORDER BY row) - 1 AS n
            FROM change
        ),
        whole AS (
            SELECT count(*) AS n, last(live ORDER BY row) AS live, last(reserved ORDER BY row) AS reserved
            FROM summed
        ),
        ended AS (
            SELECT live_bytes, reserved_bytes FROM memory_moment
            WHERE artifact_id = $a AND device = $d AND moment = 'end'
        ),
        placed AS (
            SELECT s.row, s.n, w.n AS n_all,
                s.live + coalesce(e.live_bytes - w.live, 0) AS live,
                s.reserved + coalesce(e.reserved_bytes - w.reserved, 0) AS reserved,
                s.n // greatest(w.n * 4 // $most, 1) AS bucket
            FROM summed AS s CROSS JOIN whole AS w LEFT JOIN ended AS e ON true
        )
        SELECT row, live, reserved, n_all FROM placed
        WINDOW b AS (PARTITION BY bucket)
        QUALIFY n_all <= $most
            OR n IN (0, n_all - 1)
            OR row IN (
                arg_min(row, live) OVER b, arg_max(row, live) OVER b,
                arg_min(row, reserved) OVER b, arg_max(row, reserved) OVER b
            )
        ORDER BY row
        """,
        {"a": artifact_id, "d": device, "most": MAX_POINTS},
    ).fetchall()
    return tuple((row, int(live), int(reserved)) for row, live, reserved, _ in rows), rows[0][3] if rows else 0


def _steps(con: duckdb.DuckDBPyConnection, artifact_id: int, device: int) -> tuple[tuple[int, int], ...]:
    rows = con.execute(
        """
        SELECT min(row), step FROM memory_event
        WHERE artifact_id = ? AND device = ? AND step IS NOT NULL
        GROUP BY step ORDER BY 1
        """,
        [artifact_id, device],
    ).fetchall()
    every = max(1, -(-len(rows) // _MAX_MARKS))
    return tuple(rows[::every])


def _levels(con: duckdb.DuckDBPyConnection, artifact_id: int, device: int) -> tuple[Level, ...]:
    """What the process could get, and the settings under which the failed request would have fitted."""
    room = con.execute(
        "SELECT max(room_high_bytes) FROM allocator_replay WHERE artifact_id = ? AND device = ? AND accepted",
        [artifact_id, device],
    ).fetchone()
    levels = [Level("most the process could get", room[0], "limit")] if room and room[0] is not None else []
    failed = con.execute(
        "SELECT 1 FROM replay WHERE artifact_id = ? AND device = ? AND recorded AND NOT fits", [artifact_id, device]
    ).fetchone()
    rows = con.execute(
        """
        SELECT setting, peak_reserved_bytes, fits, spare_bytes FROM replay
        WHERE artifact_id = ? AND device = ? AND NOT recorded AND fits AND spare_bytes IS NOT NULL
        ORDER BY spare_bytes DESC, setting LIMIT ?
        """,
        [artifact_id, device, _MAX_LEVELS],
    ).fetchall()
    for setting, peak, fits, spare in rows if failed else []:
        levels.append(
            Level(f"{mask(setting)}: peak, {format_bytes(spare)} to spare", peak, "fits" if fits else "fails")
        )
    return tuple(levels)


def _owners(con: duckdb.DuckDBPyConnection, artifact_id: int, device: int) -> tuple[str, tuple[Owner, ...]]:
    rows = con.execute(
        """
        SELECT moment, category, place, n_blocks, bytes FROM memory_owner
        WHERE artifact_id = ? AND device = ? AND moment IN ('oom', 'peak')
        ORDER BY moment, bytes DESC, category, place
        """,
        [artifact_id, device],
    ).fetchall()
    moment = rows[0][0] if rows else ""
    owners = [Owner(c, mask(place or ""), n, size) for at, c, place, n, size in rows if at == moment]
    return ("failure" if moment == "oom" else moment), tuple(owners[:_MAX_OWNERS])
