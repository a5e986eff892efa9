"""One clock for the case: an offset and an error for each artifact.

Reads artifact and the event tables; writes artifact.clock_offset_ns, artifact.clock_error_ns and, for local clocks,
shifts ts_ns. Wall times without a zone are shifted by the one multiple of 15 minutes that puts them within the span
of the artifacts with absolute times; where no or several such shifts exist they stay as they are, comparable only
with each other.
"""

from __future__ import annotations

import duckdb

# Hosts of one cluster kept by NTP; wall times printed by loggers carry milliseconds but are buffered.
EPOCH_ERROR_NS = 50_000_000
LOCAL_ERROR_NS = 1_000_000_000
_QUARTER_NS = 15 * 60 * 1_000_000_000
_ZONES = range(-12 * 4, 14 * 4 + 1)  # UTC-12 to UTC+14
_TIMED = ("log_event", "sample", "slice", "memory_event", "collective", "thread_state", "tensor")


def align_clocks(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        "UPDATE artifact SET clock_offset_ns = 0, clock_error_ns = coalesce(clock_error_ns, ?) WHERE clock = 'epoch'",
        [EPOCH_ERROR_NS],
    )
    spans = " UNION ALL ".join(f"SELECT artifact_id, ts_ns FROM {table} WHERE ts_ns > 0" for table in _TIMED)
    ends = f"SELECT artifact_id, min(ts_ns) AS lo, max(ts_ns) AS hi FROM ({spans}) GROUP BY artifact_id"
    span = f"SELECT min(lo), max(hi) FROM ({ends}) AS e JOIN artifact AS a ON a.id = e.artifact_id WHERE a.clock = ?"
    absolute = con.execute(span, ["epoch"]).fetchone()
    local = con.execute(span, ["local"]).fetchone()
    if not local or local[0] is None:
        return
    shift = _zone_shift(local, absolute) if absolute and absolute[0] is not None else None
    if shift is None:
        return
    con.execute(
        "UPDATE artifact SET clock_offset_ns = ?, clock_error_ns = ? WHERE clock = 'local'", [shift, LOCAL_ERROR_NS]
    )
    if shift:
        for table in _TIMED:
            con.execute(
                f"UPDATE {table} SET ts_ns = ts_ns + ?"
                " WHERE artifact_id IN (SELECT id FROM artifact WHERE clock = 'local')",
                [shift],
            )


def _zone_shift(local: tuple[int, int], absolute: tuple[int, int]) -> int | None:
    """The one zone offset under which the two spans overlap; None when none or several do."""
    fits = [
        -quarter * _QUARTER_NS
        for quarter in _ZONES
        if local[0] - quarter * _QUARTER_NS <= absolute[1] + LOCAL_ERROR_NS
        and local[1] - quarter * _QUARTER_NS >= absolute[0] - LOCAL_ERROR_NS
    ]
    if len(fits) > 1 and 0 in fits:
        return 0  # most clusters log in UTC; the widest agreement that needs no shift
    return fits[0] if len(fits) == 1 else None
