/*
title = "What the time of a trace hangs on"
severity = "info"
role = "performance"
proves = """
Going back from the end of the device's last work, each stretch of time is laid to what had to end before the next could
begin: work of the device, the host before a launch, what it waited for. These stretches add up to the whole time, and most
of them are of one kind, or a good part of one kernel."""
cannot_prove = """
How much faster the job would be: once this path is shortened, another one decides. Dependencies that the trace does not
show (events, other threads of the host) are told from times alone; waiting for other ranks is part of a collective."""
message = "{who}: {told} when device {device} was done with {total_ns:duration} of work and waits"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://hta.readthedocs.io/en/latest/source/features/lightweight_critical_path_analysis.html"]

[thresholds.min_kind_ratio]
value = 0.5
unit = "time of one kind on the path / whole path"
why = "more than all else together"

[thresholds.min_name_ratio]
value = 0.25
unit = "time of the work of one name on the path / whole path"
why = "a quarter of the time behind one name is where to look first"

[thresholds.min_work]
value = 50
unit = "kernels, copies and fills"
why = "fewer are one small pass or a warm-up, as for idle gaps"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
whole AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        sum(total_ns) AS total_ns
    FROM critical_path
    GROUP BY artifact_id, proc_id, device
),
part AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        kind,
        NULL AS name_id,
        sum(total_ns) AS part_ns,
        arg_max(row, (longest_ns, -row)) AS row
    FROM critical_path
    WHERE kind IN ('host', 'input', 'allocation', 'communication', 'copy', 'launch')
    GROUP BY artifact_id, proc_id, device, kind
    UNION ALL
    SELECT
        artifact_id,
        proc_id,
        device,
        kind,
        name_id,
        total_ns,
        row
    FROM critical_path
    WHERE name_id IS NOT NULL
),
grave AS (
    SELECT
        p.*,
        w.total_ns,
        p.part_ns / w.total_ns AS ratio
    FROM part AS p
    JOIN whole AS w ON w.artifact_id = p.artifact_id AND w.proc_id IS NOT DISTINCT FROM p.proc_id AND w.device = p.device
    WHERE p.part_ns >= w.total_ns * CASE WHEN p.name_id IS NULL THEN $min_kind_ratio ELSE $min_name_ratio END
    QUALIFY row_number() OVER (PARTITION BY p.artifact_id, p.proc_id, p.device ORDER BY p.part_ns DESC, p.name_id NULLS LAST) = 1
)
SELECT
    g.artifact_id,
    g.row,
    'slice' AS "table",
    g.proc_id,
    d.rank,
    d.ts_ns,
    g.device,
    g.total_ns::BIGINT AS total_ns,
    g.kind,
    g.ratio,
    left(n.text, 80) AS op,
    CASE
        WHEN n.text IS NOT NULL THEN left(n.text, 80) || printf(' decided for %.0f %% of the time', 100 * g.ratio)
        WHEN g.kind = 'host' THEN printf('the host decided for %.0f %% of the time', 100 * g.ratio)
        WHEN g.kind = 'launch' THEN printf('the way from launch to start decided for %.0f %% of the time', 100 * g.ratio)
        ELSE printf('%s decided for %.0f %% of the time', g.kind, 100 * g.ratio)
    END AS told,
    CASE
        WHEN g.kind IN ('host', 'launch') THEN 'Kernels that get faster end nothing sooner here: take work off the host (torch.compile, CUDA graphs, fewer and larger operators), or let it run ahead of the device.'
        WHEN g.kind = 'input' THEN 'Load ahead: see the finding about input.'
        WHEN g.kind = 'allocation' THEN 'Let the caching allocator keep its memory, and allocate before the loop.'
        WHEN g.kind = 'communication' THEN 'Overlap or shrink the collectives; compare their durations over the ranks, where the shortest is the rank that came last.'
        WHEN g.kind = 'copy' THEN 'Copy earlier, from pinned memory and on a stream of its own.'
        ELSE 'Look at this kernel first: what it gets faster, the whole gets faster, until another path decides.'
    END AS advice,
    'device ' || g.device || ' ' || g.kind || coalesce(' ' || n.text, '') AS key
FROM grave AS g
JOIN device_time AS d ON d.artifact_id = g.artifact_id AND d.proc_id IS NOT DISTINCT FROM g.proc_id AND d.device = g.device
LEFT JOIN string AS n ON n.id = g.name_id
WHERE d.n_work >= $min_work
ORDER BY g.artifact_id, g.proc_id, g.device;
