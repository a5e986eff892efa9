"""Captures of CUDA graphs that did not end well: the calls in them by thread and stream, and which one broke it."""

from __future__ import annotations

import duckdb

from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import Call, CaptureWindow

MAX_DRAWN = 2
MAX_CALLS = 400
_OPEN_NS = 20_000_000  # shown of a capture whose end was not recorded, unless its offence comes later


def read(con: duckdb.DuckDBPyConnection) -> list[CaptureWindow]:
    """Broken captures, the first of each process first; a good one where there is no broken one."""
    rows = con.execute(
        """
        SELECT w.artifact_id, w.row, a.path, w.rank, w.became_graph, w.ts_ns, w.to_ns, w.end_row, w.thread,
            o.row, o.ts_ns, o.offence, o.place
        FROM capture_window AS w
        JOIN artifact AS a ON a.id = w.artifact_id
        LEFT JOIN capture_offence AS o
            ON o.artifact_id = w.artifact_id AND o.window_row = w.row AND o.told_by <> 'log'
        QUALIFY row_number() OVER (PARTITION BY w.artifact_id, w.row ORDER BY o.ts_ns, o.row) = 1
        ORDER BY o.row IS NULL, w.became_graph, w.ts_ns, w.artifact_id, w.row LIMIT ?
        """,
        [MAX_DRAWN],
    ).fetchall()
    broken = [row for row in rows if row[9] is not None or not row[4]]
    n = con.execute("SELECT count(DISTINCT artifact_id) FROM capture_window").fetchone()
    return [_window(con, row, n[0] if n else 0) for row in broken or rows[:1]]


def _window(con: duckdb.DuckDBPyConnection, found: tuple, n_artifacts: int) -> CaptureWindow:  # type: ignore[type-arg]
    aid, window, path, rank, good, begin, end, end_row, _, culprit, culprit_ns, offence, place = found
    until = end if end is not None else max(begin + _OPEN_NS, (culprit_ns or begin) + _OPEN_NS // 20)
    calls = con.execute(
        """
        SELECT s.row, n.text, s.kind, s.thread, s.stream, s.ts_ns, s.dur_ns, s.return_code,
            count(*) OVER () AS n_all
        FROM slice AS s JOIN string AS n ON n.id = s.name_id
        WHERE s.artifact_id = $a AND s.kind IN ('runtime', 'driver', 'kernel', 'memcpy', 'memset', 'graph')
          AND s.ts_ns < $until AND s.ts_ns + coalesce(s.dur_ns, 0) >= $begin OR s.artifact_id = $a AND s.row = $end_row
        ORDER BY s.row NOT IN ($window, $end_row, $culprit), s.ts_ns, s.row LIMIT $n
        """,
        {
            "a": aid,
            "begin": begin,
            "until": until,
            "window": window,
            "end_row": -1 if end_row is None else end_row,
            "culprit": -1 if culprit is None else culprit,
            "n": MAX_CALLS,
        },
    ).fetchall()
    kinds = {window: "begin", end_row: "end", culprit: "offence"}
    shown = [
        Call(
            row=row,
            name=mask(name),
            lane=f"thread {thread}" if kind in {"runtime", "driver"} else f"stream {stream}",
            start_ns=ts - begin,
            dur_ns=dur or 0,
            kind=kinds.get(row, "call" if kind in {"runtime", "driver"} else "work"),
            code=code,
        )
        for row, name, kind, thread, stream, ts, dur, code, _ in calls
    ]
    return CaptureWindow(
        artifact=mask(path),
        process=process_name(rank, n_artifacts),
        window_row=window,
        became_graph=good,
        length_ns=None if end is None else end - begin,
        calls=tuple(sorted(shown, key=lambda call: (call.start_ns, call.row))),
        n_calls=calls[0][8] if calls else 0,
        offence=mask(offence or ""),
        place=mask(place or ""),
    )
