"""CUDA graph captures: from where to where each ran, and what broke it first.

Reads slice, log_event; writes capture_window and capture_offence. Offences of the three kinds of evidence stand side by
side (`told_by`): results of calls, texts of logs, and calls alone, where their results are not recorded.
"""

from __future__ import annotations

import re
from typing import Any

import duckdb

from forensics.case import has_rows
from forensics.models.capture_mechanisms import Clues, mechanism_of

_MAX_FRAMES = 200  # of one stack
_MAX_OPS = 40  # around one call

# Streams can be captured by several threads at once; a capture ends on the thread it began on.
_WINDOWS = """
INSERT INTO capture_window
WITH
call AS (
    SELECT
        artifact_id, row, proc_id, rank, step, thread, ts_ns, return_code,
        regexp_extract(name, '^(?:cuda|cu|hip)(StreamBeginCapture|StreamEndCapture|GraphInstantiate)', 1) AS what
    FROM runtime_call
    WHERE regexp_matches(name, '^(cuda|cu|hip)(StreamBeginCapture|StreamEndCapture|GraphInstantiate)')
),
begun AS (
    SELECT
        *,
        lead(ts_ns) OVER (PARTITION BY artifact_id, proc_id, thread ORDER BY ts_ns, row) AS next_ns
    FROM call
    WHERE what = 'StreamBeginCapture' AND coalesce(return_code, 0) = 0
),
ended AS (
    SELECT
        b.artifact_id,
        b.row,
        min_by(e.row, e.ts_ns) AS end_row,
        min(e.ts_ns) AS to_ns,
        min_by(e.return_code, e.ts_ns) AS end_code
    FROM begun AS b
    JOIN call AS e
        ON e.artifact_id = b.artifact_id AND e.proc_id IS NOT DISTINCT FROM b.proc_id AND e.thread = b.thread
        AND e.what = 'StreamEndCapture' AND e.ts_ns >= b.ts_ns AND (b.next_ns IS NULL OR e.ts_ns < b.next_ns)
    GROUP BY b.artifact_id, b.row
)
SELECT
    b.artifact_id, b.row, b.proc_id, b.rank, b.step, b.ts_ns, b.thread, e.to_ns, e.end_row, e.end_code,
    coalesce(e.end_code, 0) = 0 AND e.to_ns IS NOT NULL AND (e.end_code IS NOT NULL OR EXISTS (
        SELECT 1 FROM call AS i
        WHERE i.artifact_id = b.artifact_id AND i.what = 'GraphInstantiate' AND coalesce(i.return_code, 0) = 0
          AND i.ts_ns >= e.to_ns AND (b.next_ns IS NULL OR i.ts_ns < b.next_ns)
    ))
FROM begun AS b
LEFT JOIN ended AS e ON e.artifact_id = b.artifact_id AND e.row = b.row
ORDER BY b.artifact_id, b.ts_ns, b.row
"""

# The first call of a broken capture that was refused; of a process whose captures were not recorded, its first one.
# Questions whether a stream is being captured answer with an error by design.
_REFUSED = """
WITH refused AS (
    SELECT * FROM runtime_call
    WHERE (return_code BETWEEN 900 AND 908 OR return_code = 2)
      AND NOT regexp_matches(name, '^(cuda|cu|hip)(StreamIsCapturing|StreamGetCaptureInfo)')
)
SELECT
    c.artifact_id, c.row, c.proc_id, c.rank, c.step, c.ts_ns, c.thread, c.return_code,
    regexp_replace(c.name, '(_pt[sd][sz])?(_v\\d+)?$', '') AS call,
    w.row AS window_row, w.thread AS window_thread
FROM refused AS c
ASOF LEFT JOIN capture_window AS w
    ON w.artifact_id = c.artifact_id AND w.proc_id = c.proc_id AND w.ts_ns <= c.ts_ns
WHERE NOT coalesce(w.became_graph, false)
  AND (c.return_code <> 2 OR (w.row IS NOT NULL AND (w.to_ns IS NULL OR c.ts_ns <= w.to_ns)))
QUALIFY row_number() OVER (PARTITION BY c.artifact_id, c.proc_id, w.row ORDER BY c.ts_ns, c.row) = 1
ORDER BY c.artifact_id, c.ts_ns, c.row
"""

# Where results are not recorded: the first call that captures forbid, in a capture that never became a graph. Between
# two cudaThreadExchangeStreamCaptureMode of its thread such a call is allowed.
_FORBIDDEN = """
WITH inside AS (
    SELECT
        c.artifact_id, c.row, c.proc_id, c.rank, c.step, c.ts_ns, c.thread, c.return_code,
        regexp_replace(c.name, '(_pt[sd][sz])?(_v\\d+)?$', '') AS call,
        w.row AS window_row, w.thread AS window_thread,
        count(*) FILTER (WHERE c.name LIKE '%ThreadExchangeStreamCaptureMode%') OVER (
            PARTITION BY w.artifact_id, w.row, c.thread ORDER BY c.ts_ns, c.row
        ) AS n_exchanges
    FROM capture_window AS w
    JOIN runtime_call AS c
        ON c.artifact_id = w.artifact_id AND c.proc_id IS NOT DISTINCT FROM w.proc_id AND c.ts_ns > w.ts_ns
        AND (w.to_ns IS NULL OR c.ts_ns < w.to_ns)
    WHERE NOT w.became_graph AND c.return_code IS NULL
)
SELECT * EXCLUDE (n_exchanges)
FROM inside
WHERE n_exchanges % 2 = 0
  AND regexp_matches(
    call,
    '^((?:cuda|hip)((Stream|Device|Event)Synchronize|(Event|Stream)Query|Memcpy|Malloc|Free|HostAlloc|MallocHost|FreeHost)'
    || '|cu((Stream|Ctx|Event)Synchronize|MemAlloc|ModuleLoad.*|LibraryLoad.*))(_v2)?$'
  )
QUALIFY row_number() OVER (PARTITION BY artifact_id, window_row ORDER BY ts_ns, row) = 1
ORDER BY artifact_id, ts_ns, row
"""

_AROUND = """
SELECT n.text
FROM slice AS s JOIN string AS n ON n.id = s.name_id
WHERE s.artifact_id = $artifact_id AND s.thread = $thread
  AND s.kind IN ('cpu_op', 'annotation', 'library_call', 'python_function')
  AND s.ts_ns <= $ts_ns AND (s.dur_ns IS NULL OR s.ts_ns + s.dur_ns >= $ts_ns)
ORDER BY s.ts_ns, s.row
"""

# Errors of a process that broke a capture, or were raised inside of one that was then reported as invalidated.
_ERRORS = """
WITH after AS (
    SELECT * FROM log
    WHERE coalesce(fields ->> 'handled', 'false') <> 'true' AND (exception IS NOT NULL OR class LIKE 'capture.%')
),
raised_inside AS (
    SELECT e.artifact_id, e.row
    FROM after AS e
    JOIN after AS i
        ON i.artifact_id = e.artifact_id AND i.proc_id = e.proc_id AND i.line > e.line
        AND i.class = 'capture.invalidated'
    WHERE e.role = 'primary' AND e.exception IS NOT NULL AND e.class NOT LIKE 'capture.%'
      AND NOT EXISTS (
        SELECT 1 FROM after AS b
        WHERE b.artifact_id = e.artifact_id AND b.proc_id = e.proc_id AND b.line > e.line AND b.line < i.line
          AND b.exception IS NOT NULL
      )
)
SELECT e.artifact_id, e.row, e.proc_id, e.rank, e.step, e.ts_ns, e.class, e.exception, e.message, e.stack_id,
    e.fields ->> 'code' AS code
FROM after AS e
WHERE e.role = 'primary'
  AND e.class NOT IN ('capture.skipped', 'capture.rerecord', 'capture.dynamic-shapes', 'capture.output-lifetime',
    'capture.leak', 'capture.pending-backward', 'capture.invalidated', 'capture.info')
  AND (e.class LIKE 'capture.%' OR EXISTS (
    SELECT 1 FROM raised_inside AS r WHERE r.artifact_id = e.artifact_id AND r.row = e.row
  ))
ORDER BY e.artifact_id, e.row
"""

_STACK = """
WITH RECURSIVE up AS (
    SELECT id, parent_id, function, file, 0 AS n FROM frame WHERE id = $stack_id
    UNION ALL
    SELECT f.id, f.parent_id, f.function, f.file, up.n + 1
    FROM up JOIN frame AS f ON f.id = up.parent_id
    WHERE up.n < $most
)
SELECT function || ' ' || coalesce(file, '') FROM up ORDER BY n DESC
"""

_INSERT = "INSERT INTO capture_offence VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def derive_captures(con: duckdb.DuckDBPyConnection) -> None:
    if has_rows(con, "slice"):
        con.execute(_WINDOWS)
        for call in _dicts(con, _REFUSED):
            _insert(con, call, "result", _clues_of_call(con, call))
        for call in _dicts(con, _FORBIDDEN):
            _insert(con, call, "call", _clues_of_call(con, call))
    for error in _dicts(con, _ERRORS) if has_rows(con, "log_event") else ():
        _insert(con, error, "log", _clues_of_error(con, error))


def _dicts(con: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    cursor = con.execute(sql)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _clues_of_call(con: duckdb.DuckDBPyConnection, call: dict[str, Any]) -> Clues:
    place = {key: call[key] for key in ("artifact_id", "thread", "ts_ns")}
    around = [text for (text,) in con.execute(_AROUND, place).fetchall()][-_MAX_OPS:]
    other = call["window_row"] is not None and call["thread"] != call["window_thread"]
    name = re.sub("^hip", "cuda", call["call"])
    return Clues(call=name, op="\n".join(around), result=call["return_code"], other_thread=other)


def _clues_of_error(con: duckdb.DuckDBPyConnection, error: dict[str, Any]) -> Clues:
    frames: list[str] = []
    if error["stack_id"] is not None:
        asked = {"stack_id": error["stack_id"], "most": _MAX_FRAMES}
        frames = [text for (text,) in con.execute(_STACK, asked).fetchall()]
    message = error["message"] or ""
    native = [line for line in message.splitlines() if line.lstrip().startswith(("frame #", "#"))]
    # Not user_code: what a library did below it is another matter.
    return Clues(cls=error["class"], code=error["code"] or "", frames="\n".join([*frames, *native]), message=message)


def _insert(con: duckdb.DuckDBPyConnection, row: dict[str, Any], told_by: str, clues: Clues) -> None:
    found = mechanism_of(clues)
    keys = ("artifact_id", "row", "proc_id", "rank", "step", "ts_ns")
    place = clues.op.replace("\n", " > ")[-300:] or None
    known: tuple[str | None, ...] = (None, None, None, None)
    if found is not None:
        mechanism, words = found
        known = (
            mechanism.name,
            mechanism.offence,
            mechanism.fix,
            mechanism.tells + (f" Here: {words}." if words else ""),
        )
    seen = (row.get("call"), row.get("return_code"), row.get("window_row"), clues.other_thread, place)
    con.execute(_INSERT, (*(row[key] for key in keys), told_by, *known, *seen))
