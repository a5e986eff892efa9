"""Device time by interval algebra: what each device did over its span, where it stood idle and why.

Reads slice, string; writes device_time, device_idle, device_gap. Times of one artifact, process and device are cut at
every begin and end of device work, so that each instant counts once, whatever overlaps. Work without a duration is left
out. The cost grows with the device work of a trace, not with its operators.
"""

from __future__ import annotations

import duckdb

MAX_GAPS = 100  # listed for each device, the longest; device_idle counts them all
# Between two launches of eager PyTorch lie the host's 5 to 50 us for an operator; a pause beyond this is other work.
LAUNCH_PAUSE_NS = 100_000
# HolisticTraceAnalysis takes idle time below 30 ns for the device's own delay between kernels; traces have whole
# microseconds or round to them, and back-to-back kernels stand 1 to 2 us apart.
START_DELAY_NS = 3_000

# Names by which libraries call the kernels of their collectives; all else that is no copy counts as computation.
_COMMUNICATION = (
    "nccl",
    "rccl",
    "mscclpp",
    "nvshmem",
    "cross_device_reduce",
    "one_shot_all_reduce",
    "two_shot_all_reduce",
    "multimem_all_reduce",
    "deep_ep",
)

_WORK = """
CREATE TEMP TABLE interval_work AS
WITH
named AS (
    SELECT
        id,
        {communicates} AS communicates
    FROM string
    WHERE id IN (SELECT DISTINCT name_id FROM slice WHERE kind = 'kernel')
)
SELECT
    s.artifact_id,
    s.row,
    s.proc_id,
    s.rank,
    coalesce(s.device, 0) AS device,
    s.stream,
    s.launch_row,
    s.name_id,
    s.ts_ns AS from_ns,
    s.ts_ns + s.dur_ns AS to_ns,
    CASE
        WHEN s.kind IN ('memcpy', 'memset') THEN 'copy'
        WHEN n.communicates THEN 'communication'
        ELSE 'compute'
    END AS class
FROM slice AS s
LEFT JOIN named AS n ON n.id = s.name_id
WHERE s.kind IN ('kernel', 'memcpy', 'memset', 'graph') AND s.ts_ns IS NOT NULL AND s.dur_ns > 0
"""

# Rows are the stretches between neighbouring edges; n_* how many slices of each class run in one.
_STRETCHES = """
CREATE TEMP TABLE interval_stretch AS
WITH
edge AS (
    SELECT artifact_id, proc_id, device, from_ns AS at_ns, class, 1 AS delta, row AS next_row, NULL AS last_row
    FROM interval_work
    UNION ALL
    SELECT artifact_id, proc_id, device, to_ns, class, -1, NULL, row
    FROM interval_work
),
moment AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        at_ns,
        sum(delta) FILTER (class = 'compute') AS compute,
        sum(delta) FILTER (class = 'communication') AS communication,
        sum(delta) FILTER (class = 'copy') AS copy,
        min(next_row) AS next_row,
        min(last_row) AS last_row
    FROM edge
    GROUP BY artifact_id, proc_id, device, at_ns
)
SELECT
    artifact_id,
    proc_id,
    device,
    at_ns AS from_ns,
    lead(at_ns) OVER following AS to_ns,
    coalesce(sum(compute) OVER following, 0) AS n_compute,
    coalesce(sum(communication) OVER following, 0) AS n_communication,
    coalesce(sum(copy) OVER following, 0) AS n_copy,
    last_row,
    lead(next_row) OVER following AS next_row
FROM moment
WINDOW following AS (PARTITION BY artifact_id, proc_id, device ORDER BY at_ns)
"""

_TIMES = """
INSERT INTO device_time
WITH
span AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        min(from_ns) AS ts_ns,
        max(to_ns) AS to_ns,
        sum(to_ns - from_ns) FILTER (n_compute > 0) AS compute_ns,
        sum(to_ns - from_ns) FILTER (n_communication > 0) AS communication_ns,
        sum(to_ns - from_ns) FILTER (n_copy > 0) AS copy_ns,
        sum(to_ns - from_ns) FILTER (n_communication > 0 AND n_compute = 0) AS exposed_communication_ns,
        sum(to_ns - from_ns) FILTER (n_copy > 0 AND n_compute = 0 AND n_communication = 0) AS exposed_copy_ns,
        sum(to_ns - from_ns) FILTER (n_compute = 0 AND n_communication = 0 AND n_copy = 0) AS idle_ns
    FROM interval_stretch
    WHERE to_ns IS NOT NULL
    GROUP BY artifact_id, proc_id, device
),
counted AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        min(rank) AS rank,
        count(*) AS n_work,
        arg_min(row, (from_ns, row)) AS row
    FROM interval_work
    GROUP BY artifact_id, proc_id, device
)
SELECT
    s.artifact_id,
    c.row,
    s.proc_id,
    c.rank,
    NULL,
    s.ts_ns,
    s.device,
    s.to_ns,
    c.n_work,
    coalesce(s.compute_ns, 0),
    coalesce(s.communication_ns, 0),
    coalesce(s.copy_ns, 0),
    coalesce(s.exposed_communication_ns, 0),
    coalesce(s.exposed_copy_ns, 0),
    coalesce(s.idle_ns, 0)
FROM span AS s
JOIN counted AS c
    ON c.artifact_id = s.artifact_id AND c.proc_id IS NOT DISTINCT FROM s.proc_id AND c.device = s.device
ORDER BY s.artifact_id, s.proc_id, s.device
"""

# What keeps the host from launching: waits for the device, for input, and for memory.
_WAITS = """
CREATE TEMP TABLE interval_wait AS
WITH
named AS (
    SELECT
        id,
        CASE
            WHEN regexp_matches(text, '^(cuda|hip|cu)(Device|Ctx|Stream|Event)Synchronize') THEN 'sync'
            WHEN regexp_matches(text, '^(cuda|hip)Memcpy(WithStream|2D|3D)?(_v[0-9]+)?$') THEN 'sync'
            WHEN regexp_matches(text, '^cuMemcpy[A-Za-z]*(_v[0-9]+)?$') AND NOT contains(text, 'Async') THEN 'sync'
            WHEN regexp_matches(text, '^(cuda|hip|cuMem)(Malloc|Alloc|Free|HostAlloc|HostFree)')
                AND NOT contains(text, 'Async') THEN 'allocation'
            WHEN contains(text, 'DataLoaderIter.__next__') THEN 'input'
        END AS what
    FROM string
    WHERE regexp_matches(text, '^(cuda|hip|cu)[A-Z]') OR contains(text, 'DataLoaderIter.__next__')
)
SELECT s.artifact_id, s.proc_id, n.what, s.ts_ns AS from_ns, s.ts_ns + s.dur_ns AS to_ns, s.row
FROM slice AS s
JOIN named AS n ON n.id = s.name_id
WHERE n.what IS NOT NULL AND s.kind IN ('runtime', 'driver', 'cpu_op', 'annotation') AND s.dur_ns > 0
"""

_GAPS = """
CREATE TEMP TABLE interval_gap AS
WITH
gap AS (
    SELECT artifact_id, proc_id, device, from_ns, to_ns, last_row, next_row
    FROM interval_stretch
    WHERE to_ns IS NOT NULL AND n_compute = 0 AND n_communication = 0 AND n_copy = 0
),
launched AS (
    SELECT
        g.*,
        l.row AS launch_row,
        l.thread AS thread,
        l.ts_ns AS launch_ns
    FROM gap AS g
    LEFT JOIN interval_work AS w ON w.artifact_id = g.artifact_id AND w.row = g.next_row
    LEFT JOIN slice AS l ON l.artifact_id = w.artifact_id AND l.row = w.launch_row
),
late AS (
    SELECT * FROM launched WHERE launch_ns > from_ns
),
explained AS (
    SELECT
        g.artifact_id,
        g.proc_id,
        g.device,
        g.from_ns,
        y.row AS sync_row,
        y.to_ns AS synced_ns,
        i.row AS input_row,
        least(i.to_ns, g.launch_ns) - greatest(i.from_ns, g.from_ns) AS input_ns,
        a.row AS allocation_row,
        least(a.to_ns, g.launch_ns) - greatest(a.from_ns, g.from_ns) AS allocation_ns
    FROM late AS g
    ASOF LEFT JOIN (SELECT * FROM interval_wait WHERE what = 'sync') AS y
        ON y.artifact_id = g.artifact_id AND y.proc_id IS NOT DISTINCT FROM g.proc_id AND y.from_ns <= g.from_ns
    ASOF LEFT JOIN (SELECT * FROM interval_wait WHERE what = 'input') AS i
        ON i.artifact_id = g.artifact_id AND i.proc_id IS NOT DISTINCT FROM g.proc_id AND i.from_ns <= g.launch_ns
    ASOF LEFT JOIN (SELECT * FROM interval_wait WHERE what = 'allocation') AS a
        ON a.artifact_id = g.artifact_id AND a.proc_id IS NOT DISTINCT FROM g.proc_id AND a.from_ns <= g.launch_ns
)
SELECT
    g.*,
    CASE
        WHEN g.launch_ns IS NULL THEN 'unknown'
        WHEN g.launch_ns <= g.from_ns THEN if(g.to_ns - g.from_ns <= $start_delay_ns, 'start', 'queued')
        WHEN e.input_row IS NOT NULL AND 2 * e.input_ns >= g.to_ns - g.from_ns THEN 'input'
        WHEN e.allocation_row IS NOT NULL AND 2 * e.allocation_ns >= g.to_ns - g.from_ns THEN 'allocation'
        WHEN e.synced_ns >= g.from_ns THEN 'sync'
        WHEN g.to_ns - g.from_ns <= $launch_pause_ns THEN 'launch'
        ELSE 'host'
    END AS cause,
    CASE cause
        WHEN 'input' THEN e.input_row
        WHEN 'allocation' THEN e.allocation_row
        WHEN 'sync' THEN e.sync_row
    END AS cause_row
FROM launched AS g
LEFT JOIN explained AS e
    ON e.artifact_id = g.artifact_id AND e.proc_id IS NOT DISTINCT FROM g.proc_id
    AND e.device = g.device AND e.from_ns = g.from_ns
"""

_IDLE = """
INSERT INTO device_idle
SELECT
    artifact_id,
    arg_max(next_row, (to_ns - from_ns, -next_row)),
    proc_id,
    device,
    cause,
    count(*),
    sum(to_ns - from_ns),
    max(to_ns - from_ns)
FROM interval_gap
GROUP BY artifact_id, proc_id, device, cause
ORDER BY artifact_id, proc_id, device, cause
"""

_LONGEST = """
INSERT INTO device_gap
WITH
longest AS (
    SELECT *
    FROM interval_gap
    QUALIFY row_number() OVER (
        PARTITION BY artifact_id, proc_id, device ORDER BY to_ns - from_ns DESC, from_ns
    ) <= $max_gaps
)
SELECT
    g.artifact_id,
    g.next_row,
    g.proc_id,
    s.rank,
    s.step,
    g.from_ns,
    g.device,
    g.to_ns - g.from_ns,
    g.cause,
    g.cause_row,
    g.last_row,
    g.launch_row
FROM longest AS g
LEFT JOIN slice AS s ON s.artifact_id = g.artifact_id AND s.row = g.next_row
ORDER BY g.artifact_id, g.proc_id, g.device, g.to_ns - g.from_ns DESC, g.from_ns
"""


def list_work_and_waits(con: duckdb.DuckDBPyConnection) -> None:
    """Makes the temporary tables interval_work (of devices) and interval_wait (of the host); the caller drops them."""
    communicates = " OR ".join(f"contains(lower(text), '{word}')" for word in _COMMUNICATION)
    con.execute(_WORK.format(communicates=communicates))
    con.execute(_WAITS)


def derive_device_time(con: duckdb.DuckDBPyConnection) -> None:
    if not con.execute("SELECT count(*) FROM slice WHERE kind IN ('kernel', 'memcpy', 'memset', 'graph')").fetchall()[
        0
    ][0]:
        return
    list_work_and_waits(con)
    con.execute(_STRETCHES)
    con.execute(_TIMES)
    con.execute(_GAPS, {"start_delay_ns": START_DELAY_NS, "launch_pause_ns": LAUNCH_PAUSE_NS})
    con.execute(_IDLE)
    con.execute(_LONGEST, {"max_gaps": MAX_GAPS})
    for table in ("interval_gap", "interval_wait", "interval_stretch", "interval_work"):
        con.execute(f"DROP TABLE {table}")
