"""Tells apart the lives of a job in one log: what comes after a restart belongs to processes of the next attempt.

Reads log_event, sample, proc; adds to proc, coverage and attempt_told, moves rows of log_event, sample and fact. A
restart is what a launcher or scheduler says it is, or a process that failed and after which the log shows one that
starts: it joins its communicator again, loads a checkpoint and falls back in its steps, or starts over after a crash.
Steps that only fall back are none: counters start over with every epoch and every evaluation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import duckdb

_MAX_ATTEMPTS = 1000

# What a log says of lives of processes, in order. `detail`: for restarts the attempts left, for starts who starts.
_MARKS = """
SELECT artifact_id, line, kind, detail FROM (
    SELECT artifact_id, line, 'restart' AS kind, coalesce(fields ->> 'n_restarts_left', fields ->> 'attempt') AS detail
    FROM log_event WHERE class = 'process.restart' AND role <> 'noise'
    UNION ALL
    SELECT artifact_id, line, 'restart', 'requeue' FROM log
    WHERE class = 'sched.preempt' AND role <> 'noise' AND message SIMILAR TO '.*DUE TO JOB +REQUEUE.*'
    UNION ALL
    -- Handled errors, and those of tests, end no process.
    SELECT artifact_id, line,
        CASE WHEN class SIMILAR TO 'crash\\..*|process\\.signal' OR level = 'fatal' THEN 'crash' ELSE 'failure' END,
        NULL
    FROM log
    WHERE role IN ('primary', 'symptom', 'secondary') AND coalesce(fields ->> 'handled', 'false') <> 'true'
      AND (exception IS NOT NULL OR level = 'fatal' OR class SIMILAR TO 'crash\\..*|process\\..*|mem\\.host.*')
      AND source NOT IN ('kernel', 'driver')
    UNION ALL
    SELECT artifact_id, line, 'exit', NULL FROM log_event
    WHERE class IN ('outcome.exit', 'process.exit') AND role <> 'noise' AND coalesce(fields ->> 'exit_code', '0') <> '0'
    UNION ALL
    SELECT artifact_id, line, 'start', concat('rank ', fields ->> 'nccl_rank', ' of ', fields ->> 'world_size')
    FROM log_event WHERE signature = 'nccl-init' AND (fields ->> 'what') = 'START'
    UNION ALL
    SELECT artifact_id, line, 'load', NULL FROM log_event WHERE class = 'ckpt.loaded' AND role <> 'noise'
    UNION ALL
    SELECT artifact_id, line, 'fall', CAST(step AS VARCHAR) FROM (
        SELECT artifact_id, line, step, lag(step) OVER (PARTITION BY artifact_id, proc_id ORDER BY line, row) AS before
        FROM sample WHERE step IS NOT NULL AND line IS NOT NULL AND source IN ('log', 'metrics')
    ) WHERE step < before
)
WHERE line IS NOT NULL
ORDER BY artifact_id, line, kind, detail
"""


@dataclass(frozen=True)
class _Mark:
    line: int
    kind: str
    detail: str | None


def split_attempts(con: duckdb.DuckDBPyConnection) -> None:
    ends = dict(
        con.execute(
            "SELECT artifact_id, max(line) FROM ("
            "SELECT artifact_id, line FROM log_event WHERE class <> 'process.restart' AND role <> 'noise'"
            " UNION ALL SELECT artifact_id, line FROM sample) WHERE line IS NOT NULL GROUP BY artifact_id"
        ).fetchall()
    )
    parts = []
    for artifact_id, rows in groupby(con.execute(_MARKS).fetchall(), key=lambda row: row[0]):
        marks = [_Mark(*row[1:]) for row in rows]
        last = [line for line in _boundaries(marks) if line < ends.get(artifact_id, 0)]
        parts += [(artifact_id, line, number) for number, line in enumerate(last[:_MAX_ATTEMPTS], start=1)]
    if parts:
        _move(con, parts)


def _boundaries(marks: Sequence[_Mark]) -> list[int]:
    """Lines after which another life begins."""
    found: list[int] = []
    life: list[_Mark] = []  # of the process that lives at this line
    left: str | None = None  # attempts left as the launcher last said, on each of its nodes
    for mark in marks:
        if mark.kind == "restart":
            # An agent says it twice, and every node has one: it is the same while the number of attempts left is, and
            # where none is said, without a sign of life between them.
            if not found or (mark.detail != left if mark.detail is not None else left is None and life):
                found.append(mark.line)
            left, life = mark.detail if mark.detail is not None else left, []
            continue
        life.append(mark)
        ended = _last_failure(life) if mark.kind in {"start", "load", "fall"} else None
        if ended is not None and _starts_over(life, ended, mark):
            found.append(life[ended].line)
            life = life[ended + 1 :]
    return found


def _last_failure(life: Sequence[_Mark]) -> int | None:
    """Position of the last failure before what follows it."""
    return next((i for i in range(len(life) - 1, -1, -1) if life[i].kind in {"crash", "failure", "exit"}), None)


def _starts_over(life: Sequence[_Mark], ended: int, mark: _Mark) -> bool:
    since = {m.kind for m in life[ended:]}
    if mark.kind == "start":
        # Communicators are made all the time; only one that this rank had before the failure is made anew.
        return any(m.kind == "start" and m.detail == mark.detail for m in life[:ended])
    if mark.kind == "fall":
        return "load" in since or "start" in since or bool({"crash", "exit"} & since)
    return False


def _move(con: duckdb.DuckDBPyConnection, parts: Sequence[tuple[int, int, int]]) -> None:
    """Gives rows behind each boundary to a process of that attempt. `parts`: artifact, line, number of the attempt."""
    con.execute("CREATE OR REPLACE TEMP TABLE boundary (artifact_id INTEGER, line BIGINT, nth INTEGER)")
    con.executemany("INSERT INTO boundary VALUES (?, ?, ?)", [list(part) for part in parts])
    con.execute("INSERT INTO attempt_told SELECT DISTINCT artifact_id FROM boundary")
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE life AS
        WITH
        bounded AS (
            SELECT *, lead(line) OVER (PARTITION BY artifact_id ORDER BY nth) AS to_line FROM boundary
        ),
        written AS (
            SELECT artifact_id, proc_id, line FROM log_event UNION ALL SELECT artifact_id, proc_id, line FROM sample
        )
        SELECT DISTINCT b.artifact_id, b.line AS after_line, b.to_line, p.id AS old_id,
            -- The numbers that follow that of a run are those of other runs.
            CASE WHEN p.attempt_origin = 'run'
                THEN (SELECT max(attempt) FROM proc)
                    + dense_rank() OVER (PARTITION BY p.attempt_origin = 'run' ORDER BY b.artifact_id, b.nth)
                ELSE p.attempt + b.nth
            END AS attempt,
            NULL::INTEGER AS new_id
        FROM written AS w ASOF JOIN bounded AS b ON b.artifact_id = w.artifact_id AND w.line > b.line
        JOIN proc AS p ON p.id = w.proc_id
        """
    )
    _name_processes(con)
    _move_ends(con)
    for table in ("log_event", "sample", "fact"):
        con.execute(
            f"UPDATE {table} SET proc_id = l.new_id FROM life AS l WHERE l.artifact_id = {table}.artifact_id"
            f" AND l.old_id = {table}.proc_id AND {table}.line > l.after_line"
            f" AND ({table}.line <= l.to_line OR l.to_line IS NULL)"
        )
    con.execute(
        "INSERT INTO coverage SELECT c.artifact_id, l.new_id, c.capability, NULL, NULL, c.complete, c.n_read, c.n_kept"
        " FROM life AS l JOIN coverage AS c ON c.artifact_id = l.artifact_id AND c.proc_id = l.old_id"
        " WHERE c.capability IN ('log_event', 'sample') ORDER BY ALL"
    )
    con.execute("DROP TABLE life; DROP TABLE boundary")


def _name_processes(con: duckdb.DuckDBPyConnection) -> None:
    for old, attempt in con.execute("SELECT DISTINCT old_id, attempt FROM life ORDER BY ALL").fetchall():
        new = process_of_attempt(con, old, attempt)
        con.execute("UPDATE life SET new_id = ? WHERE old_id = ? AND attempt = ?", [new, old, attempt])


def process_of_attempt(con: duckdb.DuckDBPyConnection, proc_id: int, attempt: int) -> int:
    """The process that takes the place of another in an attempt: of its rank, else of its host; made if need be."""
    known = con.execute(
        """
        SELECT n.id FROM proc AS n JOIN proc AS o ON o.id = ?
        WHERE n.attempt = ? AND n.rank IS NOT DISTINCT FROM o.rank
          AND (o.rank IS NOT NULL OR n.host IS NOT DISTINCT FROM o.host AND n.pid IS NULL)
        ORDER BY n.id LIMIT 1
        """,
        [proc_id, attempt],
    ).fetchall()
    if known:
        found: int = known[0][0]
        return found
    new: int = con.execute("SELECT max(id) + 1 FROM proc").fetchall()[0][0]
    con.execute(
        "INSERT INTO proc BY NAME SELECT * REPLACE (? AS id, ? AS attempt, NULL AS pid, NULL AS start_ns,"
        " NULL AS end_ns, NULL AS exit_code, NULL AS signal, 'content' AS attempt_origin) FROM proc WHERE id = ?",
        [new, attempt, proc_id],
    )
    return new


def _move_ends(con: duckdb.DuckDBPyConnection) -> None:
    """An exit code is of the last life, unless the log tells it of the first or it lies with an attempt's files."""
    con.execute(
        """
        CREATE OR REPLACE TEMP TABLE told_end AS
        SELECT l.old_id, l.new_id, p.exit_code, p.signal, p.pid
        FROM life AS l JOIN proc AS p ON p.id = l.old_id
        WHERE l.to_line IS NULL AND p.attempt_origin IS NULL AND (p.exit_code IS NOT NULL OR p.signal IS NOT NULL)
          AND NOT EXISTS (
              SELECT 1 FROM log_event AS e WHERE e.artifact_id = l.artifact_id AND e.proc_id = l.old_id
                AND e.line <= (SELECT min(b.line) FROM boundary AS b WHERE b.artifact_id = l.artifact_id)
                AND (e.fields ->> 'exit_code') IS NOT NULL
          )
        """
    )
    con.execute(
        "UPDATE proc SET exit_code = t.exit_code, signal = t.signal, pid = t.pid FROM told_end AS t"
        " WHERE t.new_id = proc.id AND proc.exit_code IS NULL AND proc.signal IS NULL"
    )
    con.execute(
        "UPDATE proc SET exit_code = NULL, signal = NULL, pid = NULL FROM told_end AS t WHERE t.old_id = proc.id"
    )
    con.execute(
        "UPDATE proc SET attempt_origin = 'content' WHERE attempt_origin IS NULL AND id IN (SELECT old_id FROM life)"
    )
    con.execute("DROP TABLE told_end")
