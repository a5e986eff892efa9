-- Live blocks that came one after another from the same place and stayed: bytes per snapshot and device. A row is one
-- device. Blocks of equal stack and size count when they were allocated in at least four different steps, or, where the
-- history knows no steps, with frees of other blocks between them at least four times; a model's layers, allocated in a
-- row, do not.
CREATE TEMP VIEW surviving_growth AS
WITH
freed AS (
    SELECT
        artifact_id,
        device,
        ts_ns,
        row_number() OVER (PARTITION BY artifact_id, device ORDER BY row) AS n_freed
    FROM memory_event
    WHERE action = 'free_completed'
),
stepped AS (
    SELECT
        artifact_id,
        device,
        count(DISTINCT step) AS n_steps
    FROM memory_event
    GROUP BY artifact_id, device
),
live AS (
    SELECT
        b.artifact_id,
        b.device,
        b.stack_id,
        b.size_bytes,
        coalesce(f.n_freed, 0) AS n_freed,
        e.step
    FROM (SELECT * FROM memory_block WHERE state = 'active_allocated' AND allocated_ns IS NOT NULL) AS b
    ASOF LEFT JOIN freed AS f ON f.artifact_id = b.artifact_id AND f.device = b.device AND b.allocated_ns >= f.ts_ns
    LEFT JOIN memory_event AS e
        ON e.artifact_id = b.artifact_id AND e.device = b.device AND e.addr = b.addr
        AND e.ts_ns = b.allocated_ns AND e.action = 'alloc'
),
place AS (
    SELECT
        l.artifact_id,
        l.device,
        l.stack_id,
        l.size_bytes,
        sum(l.size_bytes) AS bytes,
        CASE WHEN max(s.n_steps) > 0 THEN count(DISTINCT l.step) ELSE count(DISTINCT l.n_freed) END AS n_times
    FROM live AS l
    LEFT JOIN stepped AS s ON s.artifact_id = l.artifact_id AND s.device = l.device
    GROUP BY l.artifact_id, l.device, l.stack_id, l.size_bytes
)
SELECT
    artifact_id,
    device,
    sum(bytes) AS growth_bytes,
    max(n_times) AS n_times
FROM place
WHERE n_times >= 4
GROUP BY artifact_id, device;
