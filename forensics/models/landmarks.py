"""Shared events: things that happened once and that two artifacts recorded, each by its own clock.

Reads the event tables; gives pairs. An event is known again by what both say of it (the text of a kernel message, rank
and size of a failed allocation, step and value of a metric), never by its time. What occurs a different number of times
in the two artifacts, or very often, is no shared event: which one belongs to which would be a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

_SECOND = 1_000_000_000
_MAX_SAME = 5  # times that one event may occur in an artifact
_MAX_PARTNERS = 8  # artifacts with which all others that tell of one event are compared
_MAX_PAIRS = 96  # of one kind that place an artifact: the last 12 events that it shares with each of so many
_FITS = "coalesce(abs(a.size - b.size) <= 0.01 * greatest(a.size, b.size), true)"
# Runs of one program give the same losses and errors at other times; a host's kernel says what it says to all of them.
_ONE_JOB = "(a.run = b.run OR a.run IS NULL OR b.run IS NULL OR a.kind = 'kernel-message')"


@dataclass(frozen=True, slots=True)
class Shared:
    """One event in two artifacts; `ns` of both as their clocks tell, `slack_ns`: how far apart they may be written."""

    kind: str
    artifact_id: int
    row: int
    line: int | None
    ns: int
    other_id: int
    other_row: int
    other_line: int | None
    other_ns: int
    slack_ns: int
    what: str

    def turned(self) -> Shared:
        """The same pair seen from the other artifact."""
        mine = (self.other_id, self.other_row, self.other_line, self.other_ns)
        return Shared(self.kind, *mine, self.artifact_id, self.row, self.line, self.ns, self.slack_ns, self.what)


# Each gives identity, rank, size, artifact_id, row, line, ns, and how late it may have been written.
_LANDMARKS = {
    # Kernel messages in dmesg, journal, syslog and what quotes them; the kernel's text is the same in all.
    "kernel-message": (
        2 * _SECOND,
        """
        SELECT CASE WHEN signature = 'xid'
                THEN concat_ws(' ', 'Xid', fields ->> 'pci', fields ->> 'xid', fields ->> 'pid') ELSE message END,
            NULL, NULL, artifact_id, row, line, ts_ns
        FROM log
        WHERE source IN ('kernel', 'driver') AND ts_ns IS NOT NULL
          AND (signature = 'xid' OR regexp_matches(message, '[0-9]{3}'))
        """,
    ),
    # The allocator's own record of a failed request, and the exception that the process printed of it. The size that
    # is recorded is rounded to 512 bytes, the printed one to two decimals.
    "allocation-failed": (
        5 * _SECOND,
        """
        SELECT 'out of memory', rank, size_bytes, artifact_id, row, NULL, ts_ns
        FROM memory_event WHERE action = 'oom' AND ts_ns IS NOT NULL
        UNION ALL
        SELECT 'out of memory', rank, CAST(fields ->> 'requested_bytes' AS DOUBLE), artifact_id, min(row), min(line),
            ts_ns
        FROM log_event
        WHERE class = 'mem.gpu.oom' AND (fields ->> 'requested_bytes') IS NOT NULL AND ts_ns IS NOT NULL
        GROUP BY ALL
        """,
    ),
    # torchrun's table repeats the time of the error file that the worker wrote.
    "worker-failed": (
        1 * _SECOND,
        """
        SELECT concat('rank ', coalesce(fields ->> 'rank', CAST(rank AS VARCHAR)), ' attempt ', attempt), NULL, NULL,
            artifact_id, min(row), min(line), ts_ns
        FROM log
        WHERE ts_ns IS NOT NULL
          AND (
              signature IN ('torchrun-root-cause', 'torchrun-failure') AND (fields ->> 'error_time') IS NOT NULL
              OR artifact_id IN (SELECT id FROM artifact WHERE format = 'torchelastic_error') AND rank IS NOT NULL
          )
        GROUP BY ALL
        """,
    ),
    # The same message of the same rank, in its own log and in one that gathers several.
    "message": (
        2 * _SECOND,
        """
        SELECT concat_ws(': ', exception, left(message, 300)), rank, NULL, artifact_id, row, line, ts_ns
        FROM log
        WHERE role IN ('primary', 'symptom', 'secondary') AND rank IS NOT NULL AND ts_ns IS NOT NULL
          AND source NOT IN ('kernel', 'driver') AND length(message) >= 20
          AND coalesce(signature, '') NOT IN ('torchrun-root-cause', 'torchrun-failure')
          AND coalesce(fields ->> 'via', '') <> 'torchrun'
        """,
    ),
    # When a collective that timed out was enqueued: the recorder's time, and the watchdog's line less what it waited.
    "collective-enqueued": (
        2 * _SECOND,
        """
        SELECT concat('sequence ', sequence), rank, NULL, artifact_id, row, NULL, ts_ns
        FROM collective WHERE rank IS NOT NULL AND completed_ns IS NULL AND ts_ns IS NOT NULL
        UNION ALL
        SELECT concat('sequence ', fields ->> 'sequence'), rank, NULL, artifact_id, row, line,
            ts_ns - 1000000 * CAST(fields ->> 'elapsed_ms' AS BIGINT)
        FROM log_event
        WHERE signature = 'nccl-watchdog-timeout' AND rank IS NOT NULL AND ts_ns IS NOT NULL
          AND regexp_matches(coalesce(fields ->> 'elapsed_ms', ''), '^[0-9]{1,12}$')
        """,
    ),
    # All members leave a collective together; the recorder looks several times a second.
    "collective-end": (
        _SECOND // 2,
        """
        SELECT concat_ws(' ', c.operation, c.sequence, 'of group', n.text, g.ranks), NULL, NULL,
            c.artifact_id, c.row, NULL, c.completed_ns
        FROM collective AS c
        JOIN process_group AS g ON g.id = c.group_id AND g.artifact_id = c.artifact_id
        LEFT JOIN string AS n ON n.id = g.name_id
        WHERE c.completed_ns IS NOT NULL AND c.sequence IS NOT NULL AND c.operation NOT SIMILAR TO '.*(send|recv).*'
        QUALIFY row_number() OVER (PARTITION BY c.artifact_id ORDER BY c.completed_ns DESC, c.row) <= 200
        """,
    ),
    # A step's value as the log printed it and as a file of metrics holds it; a rate alone can be equal by chance.
    "step-metric": (
        5 * _SECOND,
        """
        SELECT concat(name, ' ', value, ' of step ', step), rank, NULL, artifact_id, row, line, ts_ns
        FROM metric
        WHERE name IN ('loss', 'grad_norm') AND isfinite(value) AND value <> round(value, 1)
          AND step IS NOT NULL AND ts_ns IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY artifact_id ORDER BY row DESC) <= 500
        """,
    ),
}
# Where many artifacts tell of one event, all pairs of them would grow with the square of their number: each is then
# compared with those only that share events with most others, and those with each other.
_PAIRS = f"""
WITH
numbered AS (
    SELECT l.*, f.run, round(ln(greatest(size, 1)) * 50) AS about,
        count(*) OVER (PARTITION BY kind, identity, rank, artifact_id) AS n,
        row_number() OVER (PARTITION BY kind, identity, rank, artifact_id ORDER BY ns, row) AS k
    FROM landmark AS l JOIN artifact AS f ON f.id = l.artifact_id AND f.clock <> 'none'
    QUALIFY n <= {_MAX_SAME}
),
counted AS (
    SELECT *, coalesce(rank, -1) AS whose, count(*) OVER (PARTITION BY kind, identity, rank, about, n, k) AS n_telling
    FROM numbered
),
standing AS (
    SELECT artifact_id, row_number() OVER (ORDER BY max(n_telling) DESC, count(*) DESC, artifact_id) AS standing
    FROM counted GROUP BY artifact_id
),
told AS (
    SELECT c.*, s.standing, row_number() OVER (
        PARTITION BY c.kind, c.identity, c.rank, c.about, c.n, c.k ORDER BY s.standing
    ) <= {_MAX_PARTNERS} AS is_partner
    FROM counted AS c JOIN standing AS s ON s.artifact_id = c.artifact_id
),
pair AS (
    SELECT a.* EXCLUDE (standing, is_partner, whose, about, run), b.artifact_id AS other_id, b.row AS other_row,
        b.line AS other_line, b.ns AS other_ns, b.standing
    FROM told AS a JOIN told AS b
        ON b.kind = a.kind AND b.identity = a.identity AND b.k = a.k AND b.n = a.n AND b.whose = a.whose
    WHERE b.is_partner AND b.standing < a.standing AND {_FITS} AND {_ONE_JOB}
    UNION ALL
    SELECT a.* EXCLUDE (standing, is_partner, whose, about, run), b.artifact_id, b.row, b.line, b.ns, b.standing
    FROM told AS a JOIN told AS b ON b.kind = a.kind AND b.identity = a.identity AND b.k = a.k AND b.n = a.n
    WHERE b.is_partner AND b.artifact_id <> a.artifact_id AND b.rank IS NULL AND a.rank IS NOT NULL AND {_FITS}
      AND {_ONE_JOB}
),
nth AS (
    SELECT *, row_number() OVER (
        PARTITION BY kind, artifact_id, other_id ORDER BY ns DESC, row DESC, other_row DESC
    ) AS nth
    FROM pair
)
SELECT kind, artifact_id, row, line, ns, other_id, other_row, other_line, other_ns, slack_ns, left(identity, 200)
FROM nth
QUALIFY row_number() OVER (
    PARTITION BY kind, artifact_id ORDER BY nth, standing, row DESC, other_row DESC
) <= {_MAX_PAIRS}
ORDER BY artifact_id, other_id, kind, row, other_row
"""


def shared_events(con: duckdb.DuckDBPyConnection) -> Sequence[Shared]:
    """Every pair of rows that tell of one event, in a fixed order."""
    parts = [
        f"SELECT '{kind}' AS kind, {slack} AS slack_ns, * FROM ({select})"
        " AS l(identity, rank, size, artifact_id, row, line, ns)"
        for kind, (slack, select) in _LANDMARKS.items()
    ]
    con.execute(f"CREATE OR REPLACE TEMP TABLE landmark AS {' UNION ALL '.join(parts)}")
    rows = con.execute(_PAIRS).fetchall()
    con.execute("DROP TABLE landmark")
    return [Shared(*row) for row in rows]
