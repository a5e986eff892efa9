-- The last failed allocation of each device in each snapshot, and what the allocator held then. A row is one failure.
-- Usable for the request: inactive blocks of the same device, stream, pool and size class (requests up to 1 MiB are
-- small). Blocks that were freed after the failure but before the snapshot count as free here, see n_freed_later.
CREATE TEMP VIEW allocation_failure AS
WITH
failed AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.step,
        e.ts_ns,
        e.device,
        e.stream,
        e.size_bytes AS requested_bytes,
        e.device_free_bytes,
        e.stack_id,
        CASE WHEN e.size_bytes <= 1048576 THEN 'small' ELSE 'large' END AS size_class
    FROM memory_event AS e
    WHERE e.action = 'oom'
    QUALIFY row_number() OVER (PARTITION BY e.artifact_id, e.device ORDER BY e.row DESC) = 1
),
later AS (
    SELECT
        f.artifact_id,
        f.device,
        count(*) FILTER (WHERE e.action IN ('alloc', 'segment_alloc', 'segment_map')) AS n_allocated_later,
        count(*) FILTER (WHERE e.action LIKE 'free%') AS n_freed_later
    FROM failed AS f
    JOIN memory_event AS e ON e.artifact_id = f.artifact_id AND e.device = f.device AND e.row > f.row
    GROUP BY f.artifact_id, f.device
),
held AS (
    SELECT
        s.artifact_id,
        s.device,
        sum(s.total_bytes) AS reserved_bytes
    FROM memory_segment AS s
    GROUP BY s.artifact_id, s.device
),
earlier AS (
    SELECT
        f.artifact_id,
        f.device,
        count(*) AS n_earlier_failures
    FROM failed AS f
    JOIN memory_event AS e ON e.artifact_id = f.artifact_id AND e.device = f.device AND e.row < f.row AND e.action = 'oom'
    GROUP BY f.artifact_id, f.device
),
-- Reserved bytes rewound from the snapshot: what the segments grew by afterwards was not there before.
reserved AS (
    SELECT
        e.artifact_id,
        e.device,
        h.reserved_bytes - sum(CASE WHEN e.action IN ('segment_alloc', 'segment_map') THEN e.size_bytes ELSE -e.size_bytes END)
            OVER (PARTITION BY e.artifact_id, e.device ORDER BY e.row DESC) AS before_bytes
    FROM memory_event AS e
    JOIN held AS h ON h.artifact_id = e.artifact_id AND h.device = e.device
    WHERE e.action LIKE 'segment%'
),
peak AS (
    SELECT
        artifact_id,
        device,
        max(before_bytes) AS peak_reserved_bytes
    FROM reserved
    GROUP BY artifact_id, device
),
block AS (
    SELECT
        f.artifact_id,
        f.device,
        sum(b.size_bytes) FILTER (WHERE b.state = 'active_allocated') AS live_bytes,
        sum(b.size_bytes) FILTER (WHERE b.state = 'active_pending_free') AS awaiting_bytes,
        sum(b.size_bytes) FILTER (WHERE b.state = 'inactive') AS cached_bytes,
        sum(b.size_bytes) FILTER (WHERE b.state = 'inactive' AND s.pool_id <> '0.0') AS private_free_bytes,
        sum(b.size_bytes) FILTER (
            WHERE b.state = 'inactive' AND s.pool_id = '0.0' AND s.stream = f.stream AND s.size_class = f.size_class
        ) AS free_bytes,
        max(b.size_bytes) FILTER (
            WHERE b.state = 'inactive' AND s.pool_id = '0.0' AND s.stream = f.stream AND s.size_class = f.size_class
        ) AS largest_free_bytes
    FROM failed AS f
    JOIN memory_segment AS s ON s.artifact_id = f.artifact_id AND s.device = f.device
    JOIN memory_block AS b ON b.artifact_id = s.artifact_id AND b.device = s.device AND b.segment_addr = s.addr
    GROUP BY f.artifact_id, f.device
)
SELECT
    f.*,
    h.reserved_bytes,
    coalesce(b.live_bytes, 0) AS live_bytes,
    coalesce(b.awaiting_bytes, 0) AS awaiting_bytes,
    coalesce(b.cached_bytes, 0) AS cached_bytes,
    coalesce(b.private_free_bytes, 0) AS private_free_bytes,
    coalesce(b.free_bytes, 0) AS free_bytes,
    coalesce(b.largest_free_bytes, 0) AS largest_free_bytes,
    coalesce(l.n_allocated_later, 0) AS n_allocated_later,
    coalesce(l.n_freed_later, 0) AS n_freed_later,
    coalesce(e.n_earlier_failures, 0) AS n_earlier_failures,
    greatest(coalesce(k.peak_reserved_bytes, 0), h.reserved_bytes) AS peak_reserved_bytes
FROM failed AS f
JOIN held AS h ON h.artifact_id = f.artifact_id AND h.device = f.device
JOIN block AS b ON b.artifact_id = f.artifact_id AND b.device = f.device
LEFT JOIN later AS l ON l.artifact_id = f.artifact_id AND l.device = f.device
LEFT JOIN earlier AS e ON e.artifact_id = f.artifact_id AND e.device = f.device
LEFT JOIN peak AS k ON k.artifact_id = f.artifact_id AND k.device = f.device;
