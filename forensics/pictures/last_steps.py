"""The last ten steps before the end, of every rank: what was measured, what the logs say and what was the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb

from forensics.finding import Finding, format_duration
from forensics.redact import mask
from forensics.report.pictures import LastStep, LastSteps
from forensics.report.text import number, one_line

N_STEPS = 10
MAX_RANKS = 8
MAX_NAMES = 6
_MAX_EVENTS = 3
# The most telling first; others follow by how often they were measured.
_FIRST = ("loss", "grad_norm", "learning_rate", "loss_scale", "step_seconds")


def read(con: duckdb.DuckDBPyConnection, causes: Sequence[Finding] = ()) -> list[LastSteps]:
    """One table; a cause that a step is known of stands in that step, before what the logs say."""
    names = _names(con)
    if not names:
        return []
    values = con.execute(
        """
        WITH ranked AS (
            SELECT DISTINCT coalesce(rank, -1) AS rank FROM metric WHERE step IS NOT NULL ORDER BY 1 LIMIT $ranks
        )
        SELECT m.step, coalesce(m.rank, -1) AS rank, m.name, last(m.value ORDER BY m.artifact_id, m.row)
        FROM metric AS m
        WHERE m.name = ANY($names) AND coalesce(m.rank, -1) IN (SELECT rank FROM ranked)
          AND m.step > (SELECT max(step) FROM metric WHERE name = ANY($names)) - $n
        GROUP BY ALL ORDER BY ALL
        """,
        {"names": names, "ranks": MAX_RANKS, "n": N_STEPS},
    ).fetchall()
    cells: dict[tuple[int, int], dict[str, float]] = {}
    for step, rank, name, value in values:
        cells.setdefault((step, rank), {})[name] = value
    events = _events(con, min((step for step, _ in cells), default=0))
    for step, rank, said in _causes(causes, cells):
        events[step, rank] = [said, *events.get((step, rank), [])][:_MAX_EVENTS]
    for key in events:
        cells.setdefault(key, {})
    n_ranks = con.execute("SELECT count(DISTINCT rank) FROM metric WHERE step IS NOT NULL").fetchone()
    rows = tuple(
        LastStep(
            rank="job" if rank < 0 else f"rank {rank}",
            step=step,
            values=tuple(_shown(name, found[name]) if name in found else "" for name in names),
            events=tuple(events.get((step, rank), ())),
        )
        for (step, rank), found in sorted(cells.items())
    )
    return [LastSteps(tuple(names), rows, max(0, (n_ranks[0] if n_ranks else 0) - MAX_RANKS))] if rows else []


def _names(con: duckdb.DuckDBPyConnection) -> list[str]:
    rows = con.execute(
        """
        WITH late AS (
            SELECT name, step FROM metric
            WHERE step > (SELECT max(step) FROM metric WHERE name IN ('loss', 'grad_norm')) - $n
        )
        SELECT name FROM late GROUP BY name
        HAVING count(DISTINCT step) * 2 >= (SELECT count(DISTINCT step) FROM late)
        ORDER BY count(*) DESC, name LIMIT 200
        """,
        {"n": N_STEPS},
    ).fetchall()
    known = [row[0] for row in rows]
    return [*(n for n in _FIRST if n in known), *(n for n in known if n not in _FIRST)][:MAX_NAMES]


def _shown(name: str, value: float) -> str:
    return format_duration(value * 1e9) if name.endswith("_seconds") else number(value)


def _events(con: duckdb.DuckDBPyConnection, first_step: int) -> dict[tuple[int, int], list[str]]:
    rows = con.execute(
        """
        SELECT e.step, coalesce(e.rank, -1), error_text(e.exception, coalesce(e.message, e.signature))
        FROM log AS e
        WHERE e.step >= ? AND e.role IN ('primary', 'symptom', 'secondary')
        ORDER BY e.step, e.rank, e.ts_ns, e.artifact_id, e.row LIMIT 500
        """,
        [first_step],
    ).fetchall()
    found: dict[tuple[int, int], list[str]] = {}
    for step, rank, said in rows:
        kept = found.setdefault((step, rank), [])
        text = one_line(mask(str(said)), 160)
        if len(kept) < _MAX_EVENTS and text not in kept:
            kept.append(text)
    return found


def _causes(causes: Sequence[Finding], cells: Mapping[tuple[int, int], object]) -> list[tuple[int, int, str]]:
    """(step, rank, what) of the causes within the steps shown; of no rank where the finding names none."""
    first, ranks = min((step for step, _ in cells), default=0), {rank for _, rank in cells}
    found = []
    for cause in causes:
        if cause.step is not None and cause.step >= first:
            rank = min(ranks) if cause.rank is None and len(ranks) == 1 else -1 if cause.rank is None else cause.rank
            found.append((cause.step, rank, one_line(f"Cause: {mask(cause.message)}", 240)))
    return found
