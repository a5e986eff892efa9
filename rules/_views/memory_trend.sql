-- Series of memory figures that a job or a host sampler wrote, and whether they rise as a staircase. A row is one series.
-- quantity: allocated | reserved (of a device's allocator) | main (resident memory of the process that writes) | worker
-- (of child processes) | shared (memory between
-- processes) | host (of the whole machine). x counts steps where every sample has one, else samples. The slope
-- is that of least squares with its 95 % interval (normal, of 8 samples on). is_rising: the interval is above zero, the
-- last third never falls to what the first third reached, and the second half rose at least a quarter as much as the first.
-- The first two samples do not count: first steps allocate what stays.
CREATE TEMP VIEW memory_trend AS
WITH
named AS (
    SELECT
        m.artifact_id,
        m.proc_id,
        m.rank,
        m.device,
        m.name,
        m.entity,
        m.row,
        m.line,
        m.step,
        m.ts_ns,
        m.value * CASE coalesce(m.unit, '')
            WHEN 'bytes' THEN 1 WHEN 'B' THEN 1 WHEN 'kB' THEN 1e3 WHEN 'KB' THEN 1e3 WHEN 'KiB' THEN 1024 WHEN 'MB' THEN 1e6
            WHEN 'MiB' THEN 1048576 WHEN 'GB' THEN 1e9 WHEN 'GiB' THEN 1073741824
        END AS bytes,
        CASE
            WHEN m.name LIKE '%peak%' OR m.name LIKE '%max%' OR m.name LIKE '%total%' OR m.name LIKE '%limit%' THEN NULL
            WHEN m.name LIKE '%shm%' OR m.name LIKE '%shared\_mem%' ESCAPE '\' THEN 'shared'
            WHEN m.name LIKE '%worker%' AND (m.name LIKE '%rss%' OR m.name LIKE '%uss%' OR m.name LIKE '%pss%') THEN 'worker'
            WHEN m.name LIKE '%rss%' OR m.name LIKE '%uss%' THEN 'main'
            WHEN m.name LIKE '%host%used%' OR m.name LIKE '%ram%used%' THEN 'host'
            WHEN m.name LIKE '%reserved%' OR m.name LIKE '%cached%' THEN 'reserved'
            WHEN m.name LIKE '%allocated%' AND m.name NOT LIKE '%all.allocated' AND m.name NOT LIKE '%pool%' THEN 'allocated'
        END AS quantity
    FROM metric AS m
    WHERE m.source IN ('metrics', 'log', 'host') AND isfinite(m.value)
),
numbered AS (
    SELECT
        n.*,
        row_number() OVER w AS k,
        count(*) OVER p AS n_all,
        count(n.step) OVER p = count(*) OVER p AND count(DISTINCT n.step) OVER p = count(*) OVER p AS has_steps
    FROM named AS n
    WHERE n.quantity IS NOT NULL AND n.bytes IS NOT NULL
    WINDOW
        w AS (PARTITION BY n.artifact_id, n.proc_id, n.device, n.name, n.entity ORDER BY n.row, n.line),
        p AS (PARTITION BY n.artifact_id, n.proc_id, n.device, n.name, n.entity)
),
placed AS (
    SELECT
        *,
        CASE WHEN has_steps THEN step ELSE k END AS x,
        (k - 3) / (n_all - 2) AS progress
    FROM numbered
    WHERE k > 2 AND n_all >= 6
),
fitted AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        device,
        name,
        entity,
        quantity,
        bool_and(has_steps) AS has_steps,
        count(*) AS n_samples,
        max(row) AS row,
        max(line) AS line,
        arg_min(row, k) AS first_row,
        arg_min(line, k) AS first_line,
        max(step) AS step,
        max(ts_ns) AS ts_ns,
        arg_min(bytes, k) AS first_bytes,
        arg_max(bytes, k) AS last_bytes,
        regr_slope(bytes, x) AS slope_bytes,
        sqrt(greatest(0, 1 - regr_r2(bytes, x)) * regr_syy(bytes, x) / greatest(1, count(*) - 2) / nullif(regr_sxx(bytes, x), 0))
            AS slope_error,
        max(bytes) FILTER (WHERE progress < 0.34) AS early_high,
        min(bytes) FILTER (WHERE progress >= 0.66) AS late_low,
        arg_max(bytes, k) FILTER (WHERE progress < 0.5) AS middle_bytes
    FROM placed
    GROUP BY artifact_id, proc_id, rank, device, name, entity, quantity
)
SELECT
    *,
    slope_bytes - 1.96 * slope_error AS slope_low_bytes,
    slope_bytes + 1.96 * slope_error AS slope_high_bytes,
    coalesce(
        slope_bytes - 1.96 * slope_error > 0
        AND late_low > early_high
        AND last_bytes - middle_bytes >= 0.25 * (middle_bytes - first_bytes),
        FALSE
    ) AS is_rising
FROM fitted;
