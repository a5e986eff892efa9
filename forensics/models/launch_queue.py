"""Launch queues: streams on which the host had to wait because too many launches had not started yet.

Reads slice, device_time; writes launch_queue. Work of one stream starts in the order of its launches, so a launch meets
a full queue when the one MAX_QUEUE - 1 places before it has not started.
"""

from __future__ import annotations

import duckdb

MAX_QUEUE = 1024  # launches of one stream, as HolisticTraceAnalysis has it (CUDA_MAX_LAUNCH_QUEUE_PER_STREAM)

_QUEUES = """
INSERT INTO launch_queue
WITH
deep AS (
    SELECT artifact_id, stream
    FROM slice
    WHERE kind IN ('kernel', 'memcpy', 'memset', 'graph') AND launch_row IS NOT NULL
    GROUP BY artifact_id, stream
    HAVING count(DISTINCT launch_row) >= $max_queue
),
started AS (
    SELECT
        w.artifact_id,
        w.proc_id,
        coalesce(w.device, 0) AS device,
        w.stream,
        w.launch_row,
        min(w.ts_ns) AS start_ns
    FROM slice AS w
    JOIN deep AS d ON d.artifact_id = w.artifact_id AND d.stream IS NOT DISTINCT FROM w.stream
    WHERE w.kind IN ('kernel', 'memcpy', 'memset', 'graph') AND w.launch_row IS NOT NULL
    GROUP BY w.artifact_id, w.proc_id, coalesce(w.device, 0), w.stream, w.launch_row
),
launched AS (
    SELECT
        w.*,
        l.ts_ns AS launch_ns,
        l.dur_ns,
        lag(w.start_ns, $max_queue - 1) OVER (
            PARTITION BY w.artifact_id, w.proc_id, w.device, w.stream ORDER BY l.ts_ns, w.launch_row
        ) AS freed_ns
    FROM started AS w
    JOIN slice AS l ON l.artifact_id = w.artifact_id AND l.row = w.launch_row
)
SELECT
    artifact_id,
    arg_max(launch_row, (dur_ns, -launch_row)) FILTER (freed_ns > launch_ns),
    proc_id,
    device,
    stream,
    count(*),
    count(*) FILTER (freed_ns > launch_ns),
    coalesce(sum(dur_ns) FILTER (freed_ns > launch_ns), 0)
FROM launched
GROUP BY artifact_id, proc_id, device, stream
ORDER BY artifact_id, proc_id, device, stream
"""


def derive_launch_queues(con: duckdb.DuckDBPyConnection) -> None:
    if con.execute("SELECT coalesce(max(n_work), 0) FROM device_time").fetchall()[0][0] >= MAX_QUEUE:
        con.execute(_QUEUES, {"max_queue": MAX_QUEUE})
