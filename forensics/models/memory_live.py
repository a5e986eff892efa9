"""What each device's allocator held over time: the live set at the peak and at failures by owner, and its growth.

Reads memory_event, memory_segment, memory_block, stack; writes memory_moment, memory_owner, memory_growth.
"""

from __future__ import annotations

import itertools
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from forensics.models.memory_categories import categorize
from forensics.models.memory_growth import Growth, find_growth
from forensics.models.memory_lives import Device, Lives, devices, read_lives
from forensics.models.memory_places import Place, Places, read_places
from forensics.models.memory_turns import Turns, find_turns, marked_turns

_MAX_FAILURES = 50
_MAX_OWNERS = 20
_LAST_TURNS = 5  # at least; of more turns the last half


def derive_live_memory(con: duckdb.DuckDBPyConnection) -> None:
    for device in devices(con):
        lives = read_lives(con, device)
        places = read_places(con, lives)
        turns = find_turns(lives)
        _write_moments(con, device, lives, turns, places)
        _write_live_set(con, device, lives, turns, places)
        _write_growth(con, device, lives, find_growth(lives, turns, places), places)


def _write_moments(con: duckdb.DuckDBPyConnection, of: Device, lives: Lives, turns: Turns, places: Places) -> None:
    live = lives.live()
    awaiting = lives.live(lives.gone) - live
    failures = lives.oom[:_MAX_FAILURES].tolist()
    last = max(lives.n_events - 1, 0)
    needed, n_turns = _needed(lives, turns)
    stacks = _failed_stacks(con, of)
    rows: list[tuple[Any, ...]] = []
    for moment, at in [("peak", int(live.argmax())), *(("oom", k) for k in failures), ("end", last)]:
        retained, place = None, None
        if moment == "oom":
            number = failures.index(at)
            before = failures[number - 1] if number else at
            if number:
                retained = int(lives.size[lives.alive_at(before) & lives.alive_at(at)].sum())
            shared = _shared(stacks.get(int(lives.rows[before]), []), stacks.get(int(lives.rows[at]), []))
            place = places.entered(shared, lives.alive_at(before) & lives.alive_at(at))
        reserved = int(lives.reserved[at]) if len(lives.reserved) else _held(con, of)
        end = (needed, n_turns) if moment == "end" else (None, None)
        held = (int(live[at]), int(awaiting[at]), reserved)
        rows.append((*_where(of, lives, at), of.device, moment, *held, *end, retained, str(place) if place else None))
    con.executemany(f"INSERT INTO memory_moment VALUES ({', '.join('?' * 15)})", rows)


def _where(of: Device, lives: Lives, at: int) -> tuple[Any, ...]:
    """artifact_id, row, proc_id, rank, step, ts_ns of a moment."""
    if not lives.n_events:
        return (of.artifact_id, None, of.proc_id, of.rank, None, None)
    step, ts_ns = int(lives.steps[at]), int(lives.times[at])
    return (of.artifact_id, int(lives.rows[at]), of.proc_id, of.rank, None if step < 0 else step, ts_ns or None)


def _held(con: duckdb.DuckDBPyConnection, of: Device) -> int:
    found = con.execute(
        "SELECT sum(total_bytes) FROM memory_segment WHERE artifact_id = ? AND device = ?", [of.artifact_id, of.device]
    ).fetchone()
    return int(found[0]) if found else 0


def _needed(lives: Lives, turns: Turns) -> tuple[int | None, int | None]:
    """The most that was live or awaiting during the last turns, and how many those are."""
    if len(turns) < _LAST_TURNS:
        return None, None
    n = max(_LAST_TURNS, len(turns) // 2)
    return int(lives.live(lives.gone)[int(turns.starts[-n]) :].max()), n


def _failed_stacks(con: duckdb.DuckDBPyConnection, of: Device) -> dict[int, list[Place]]:
    """The job's own frames of each failed request, the outermost first."""
    rows = con.execute(
        """
        WITH RECURSIVE walk AS (
            SELECT e.row, k.id, k.parent_id, k.user_stack_id, k.depth
            FROM memory_event AS e JOIN stack AS k ON k.id = e.stack_id
            WHERE e.artifact_id = ? AND e.device = ? AND e.action = 'oom'
            UNION ALL
            SELECT w.row, k.id, k.parent_id, k.user_stack_id, k.depth
            FROM walk AS w JOIN stack AS k ON k.id = w.parent_id
        )
        SELECT w.row, f.function, f.file, f.line FROM walk AS w JOIN frame AS f ON f.id = w.id
        WHERE w.id = w.user_stack_id ORDER BY w.row, w.depth
        """,
        [of.artifact_id, of.device],
    ).fetchall()
    found: dict[int, list[Place]] = {}
    for row, function, file, line in rows:
        found.setdefault(row, []).append(Place(function, file, line))
    return found


def _shared(one: list[Place], other: list[Place]) -> list[Place]:
    """The functions that two stacks are both in, the outermost first, with the second one's lines."""
    same = itertools.takewhile(lambda pair: pair[0][:2] == pair[1][:2], zip(one, other, strict=False))
    return [its for _, its in same]


def _write_live_set(con: duckdb.DuckDBPyConnection, of: Device, lives: Lives, turns: Turns, places: Places) -> None:
    live = lives.live()
    moment, at = ("oom", int(lives.oom[-1])) if len(lives.oom) else ("peak", int(live.argmax()))
    # A single mark of a step already tells what was there before the loop.
    known = turns if len(turns) else marked_turns(lives)
    _write_owners(con, of, lives, places, moment, categorize(lives, known, places, at))
    peak = int(live.argmax())
    released = lives.alive_at(peak) & (lives.end < lives.n_events)
    _write_told(con, of, lives, places, "released", released)
    awaiting = (lives.end < lives.n_events) & (lives.gone >= lives.n_events)
    _write_told(con, of, lives, places, "awaiting", awaiting)
    _write_told(con, of, lives, places, "private", _in_private_pools(con, of, lives))


def _in_private_pools(con: duckdb.DuckDBPyConnection, of: Device, lives: Lives) -> npt.NDArray[np.bool_]:
    """Allocations at addresses that belonged to private pools when the snapshot was taken."""
    found = con.execute(
        "SELECT addr, total_bytes FROM memory_segment WHERE artifact_id = ? AND device = ? AND pool_id <> '0.0'",
        [of.artifact_id, of.device],
    ).fetchall()
    inside = np.zeros(len(lives.addr), np.bool_)
    for start, size in found:
        inside |= (lives.addr >= np.uint64(start)) & (lives.addr < np.uint64(start + size))
    return inside & (lives.begin >= 0)


def _write_owners(
    con: duckdb.DuckDBPyConnection,
    of: Device,
    lives: Lives,
    places: Places,
    moment: str,
    categories: dict[str, npt.NDArray[np.bool_]],
) -> None:
    for category, size, those, place in places.owners(categories)[:_MAX_OWNERS]:
        _insert_owner(con, of, lives, moment, category, those, place, size)


def _write_told(
    con: duckdb.DuckDBPyConnection,
    of: Device,
    lives: Lives,
    places: Places,
    moment: str,
    those: npt.NDArray[np.bool_],
    category: str = "unknown",
) -> None:
    if those.any():
        size = int(lives.size[those].sum())
        _insert_owner(con, of, lives, moment, category, those, places.telling(those), size)


def _insert_owner(
    con: duckdb.DuckDBPyConnection,
    of: Device,
    lives: Lives,
    moment: str,
    category: str,
    those: npt.NDArray[np.bool_],
    place: Place | None,
    size: int,
) -> None:
    begins = lives.begin[those]
    seen = begins[begins >= 0]
    row = int(lives.rows[seen.min()]) if len(seen) else None
    text, caller = (str(place), place.caller) if place else (None, None)
    con.execute(
        "INSERT INTO memory_owner VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [of.artifact_id, row, of.device, moment, category, text, caller, int(those.sum()), size],
    )


def _write_growth(
    con: duckdb.DuckDBPyConnection, of: Device, lives: Lives, growth: Growth | None, places: Places
) -> None:
    if growth is None:
        return
    at = int(lives.begin[growth.kept].max())
    turns, sizes = growth.turns, lives.size[growth.kept]
    numbered = turns.origin == "annotation"
    place = places.telling(growth.kept)
    con.execute(
        f"INSERT INTO memory_growth VALUES ({', '.join('?' * 20)})",
        [
            *_where(of, lives, at),
            of.device,
            growth.source,
            turns.origin,
            len(growth.floors) - growth.first - 1,
            int(turns.numbers[growth.first]) if numbered else None,
            growth.slope,
            growth.low,
            growth.high,
            int(sizes.sum()),
            len(sizes),
            growth.n_times,
            len(np.unique(sizes)),
            int(lives.live()[-1]),
            str(place) if place else None,
        ],
    )
    _write_told(con, of, lives, places, "growth", growth.kept, growth.source)
