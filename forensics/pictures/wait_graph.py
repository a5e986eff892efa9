"""Who waits for whom over the process groups, from flight recorder dumps."""

from __future__ import annotations

import duckdb

from forensics.redact import mask
from forensics.report.pictures import WaitGraph, WaitGroup, WaitMember

MAX_GROUPS = 8
MAX_MEMBERS = 32


def read(con: duckdb.DuckDBPyConnection) -> list[WaitGraph]:
    """The groups of the last attempt in which a rank waits or is waited for, those of the culprits first."""
    groups = con.execute(
        """
        WITH
        wanted AS (SELECT number, min(place) AS place FROM wait_culprit GROUP BY number),
        waiting AS (SELECT number, count(*) AS n FROM wait_member WHERE first_open IS NOT NULL GROUP BY number)
        SELECT g.number, n.text, g.description, g.backend, g.n_members, count(*) OVER ()
        FROM wait_group AS g
        JOIN string AS n ON n.id = g.name_id
        LEFT JOIN wanted AS w ON w.number = g.number
        LEFT JOIN waiting AS a ON a.number = g.number
        WHERE (w.place IS NOT NULL OR a.n > 0) AND g.attempt = (SELECT max(attempt) FROM wait_group)
        ORDER BY w.place NULLS LAST, a.n DESC NULLS LAST, g.number LIMIT ?
        """,
        [MAX_GROUPS],
    ).fetchall()
    if not groups:
        return []
    waiting = con.execute("SELECT count(DISTINCT rank) FROM wait_member WHERE first_open IS NOT NULL").fetchone()
    drawn = tuple(
        WaitGroup(mask(about or name), backend or "", *_members(con, number, n_members))
        for number, name, about, backend, n_members, _ in groups
    )
    return [WaitGraph(drawn, groups[0][5] - len(drawn), waiting[0] if waiting else 0)]


def _members(con: duckdb.DuckDBPyConnection, number: int, n_members: int) -> tuple[tuple[WaitMember, ...], int]:
    rows = con.execute(
        """
        SELECT m.rank, m.last_called, m.first_open, coalesce(m.operation, ''), coalesce(c.reason, ''),
            m.artifact_id IS NOT NULL
        FROM wait_member AS m
        LEFT JOIN (
            SELECT number, rank, arg_min(reason, place) AS reason FROM wait_culprit GROUP BY number, rank
        ) AS c ON c.number = m.number AND c.rank = m.rank
        WHERE m.number = ?
        ORDER BY c.reason IS NULL, m.last_called NULLS FIRST, m.rank LIMIT ?
        """,
        [number, MAX_MEMBERS],
    ).fetchall()
    members = tuple(
        WaitMember(rank, last, waits, mask(operation), culprit, has_dump)
        for rank, last, waits, operation, culprit, has_dump in rows
    )
    return members, max(0, n_members - len(members))
