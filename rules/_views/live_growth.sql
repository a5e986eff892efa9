-- Devices whose live memory rises turn after turn, with what that means for the job. A row is one device of a snapshot.
-- turns_left: how many turns the bytes that were free anywhere (cache, private pools, driver) would have fed. Where that
-- is three or more, something else decided that the allocation failed. is_decisive: it failed, and for this growth.
-- is_lasting: nothing failed, but what stays is a tenth of all that is live, came in ten turns or more, and is of few
-- sizes. A cache by length or shape keeps each size once; loading and warming up end within a few turns.
CREATE TEMP VIEW live_growth AS
WITH
judged AS (
    SELECT
        g.* REPLACE (coalesce(f.step, g.step) AS step, coalesce(f.ts_ns, g.ts_ns) AS ts_ns),
        f.row AS failed_row,
        f.requested_bytes,
        f.n_allocated_later = 0 AND f.n_earlier_failures = 0 AS has_failed,
        (f.cached_bytes + coalesce(f.device_free_bytes, 0)) / g.slope_high_bytes AS turns_left,
        g.kept_bytes / g.live_bytes AS kept_ratio,
        2 * g.n_sizes <= g.n_kept AS is_repeated
    FROM memory_growth AS g
    LEFT JOIN allocation_failure AS f ON f.artifact_id = g.artifact_id AND f.device = g.device
    WHERE g.live_bytes > 0 AND g.device >= 0
)
SELECT
    j.*,
    coalesce(j.has_failed AND j.turns_left < 3 AND j.kept_ratio >= 0.25, FALSE) AS is_decisive,
    coalesce(j.has_failed, FALSE) = FALSE
        AND j.failed_row IS NULL AND j.kept_ratio >= 0.1 AND j.n_kept_turns >= 10 AND j.is_repeated AS is_lasting
FROM judged AS j;
