-- What each device of each trace did over its span (`device_time`), with its idle time by cause in columns of their own.
-- span_ns: from the first work to the end of the last.
CREATE TEMP VIEW device_use AS
WITH
by_cause AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        sum(total_ns) FILTER (cause = 'sync') AS sync_ns,
        sum(total_ns) FILTER (cause = 'input') AS input_ns,
        sum(total_ns) FILTER (cause = 'allocation') AS allocation_ns,
        sum(total_ns) FILTER (cause = 'launch') AS launch_ns,
        sum(n_gaps) FILTER (cause = 'launch') AS n_launch_gaps,
        sum(total_ns) FILTER (cause = 'host') AS host_ns,
        sum(total_ns) FILTER (cause = 'queued') AS queued_ns,
        sum(total_ns) FILTER (cause = 'unknown') AS unknown_ns
    FROM device_idle
    GROUP BY artifact_id, proc_id, device
)
SELECT
    t.*,
    t.to_ns - t.ts_ns AS span_ns,
    coalesce(c.sync_ns, 0)::BIGINT AS sync_ns,
    coalesce(c.input_ns, 0)::BIGINT AS input_ns,
    coalesce(c.allocation_ns, 0)::BIGINT AS allocation_ns,
    coalesce(c.launch_ns, 0)::BIGINT AS launch_ns,
    coalesce(c.n_launch_gaps, 0)::BIGINT AS n_launch_gaps,
    coalesce(c.host_ns, 0)::BIGINT AS host_ns,
    coalesce(c.queued_ns, 0)::BIGINT AS queued_ns,
    coalesce(c.unknown_ns, 0)::BIGINT AS unknown_ns
FROM device_time AS t
LEFT JOIN by_cause AS c
    ON c.artifact_id = t.artifact_id AND c.proc_id IS NOT DISTINCT FROM t.proc_id AND c.device = t.device;
