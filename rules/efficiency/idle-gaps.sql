/*
title = "A device stood idle for most of the time that a trace covers"
severity = "medium"
role = "performance"
proves = """
From the first to the last work of the device in this trace, nothing ran for at least half of the time: every instant counts
once, over all streams. For each gap, what kept the next work from starting as far as the trace shows it: when it was
launched, and what the host waited for until then."""
cannot_prove = """
What the device did outside of the traced steps; recording itself slows the host, most of all with stacks and shapes. A gap
that is laid to the host may hold work of Python that the trace does not name."""
message = "{who}: device {device} stood idle for {idle_ratio:percent} of {span_ns:duration}, {told}; the longest gap is {longest_ns:duration}, before {op}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html", "https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html"]

[thresholds.min_idle_ratio]
value = 0.5
unit = "idle time / time from the first to the last work"
measured = "idle_ratio"
why = "both the expert system of Nsight Systems (gpu_time_util) and the advice of PyTorch's TensorBoard plug-in call a device under half busy poorly used"

[thresholds.min_work]
value = 50
unit = "kernels, copies and fills"
why = "fewer are one small pass or a warm-up, of which idle time says nothing"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
share AS (
    SELECT
        u.*,
        u.idle_ns / u.span_ns AS idle_ratio
    FROM device_use AS u
    WHERE u.n_work >= $min_work AND u.idle_ns >= $min_idle_ratio * u.span_ns
),
told AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        arg_max(cause, (total_ns, cause)) AS main,
        string_agg(
            printf('%.0f %% ', 100.0 * total_ns / idle_ns) || CASE cause
                WHEN 'host' THEN 'while the host did other things than launch'
                WHEN 'launch' THEN 'because the host launched too slowly'
                WHEN 'sync' THEN 'after the host had waited for the device'
                WHEN 'input' THEN 'while the host waited for a data loader'
                WHEN 'allocation' THEN 'while the host allocated or freed memory'
                WHEN 'queued' THEN 'with work queued that waited for events or other streams'
                WHEN 'start' THEN 'between back-to-back kernels'
                ELSE 'before work whose launch is not recorded'
            END, ', ' ORDER BY total_ns DESC, cause
        ) AS told
    FROM (
        SELECT
            i.artifact_id, i.proc_id, i.device, i.cause, i.total_ns, s.idle_ns
        FROM device_idle AS i
        JOIN share AS s
            ON s.artifact_id = i.artifact_id AND s.proc_id IS NOT DISTINCT FROM i.proc_id AND s.device = i.device
        WHERE i.total_ns >= 0.05 * s.idle_ns
    )
    GROUP BY artifact_id, proc_id, device
),
longest AS (
    SELECT
        g.artifact_id,
        g.proc_id,
        g.device,
        g.row,
        g.step,
        g.dur_ns,
        left(n.text, 80) AS op
    FROM device_gap AS g
    JOIN slice AS s ON s.artifact_id = g.artifact_id AND s.row = g.row
    JOIN string AS n ON n.id = s.name_id
    QUALIFY row_number() OVER (PARTITION BY g.artifact_id, g.proc_id, g.device ORDER BY g.dur_ns DESC, g.ts_ns) = 1
)
SELECT
    s.artifact_id,
    l.row,
    'slice' AS "table",
    s.proc_id,
    s.rank,
    s.ts_ns,
    s.device,
    s.span_ns,
    s.idle_ratio,
    t.told,
    t.main AS cause,
    l.dur_ns AS longest_ns,
    l.op,
    CASE t.main
        WHEN 'input' THEN 'Load ahead: DataLoader(num_workers=…, prefetch_factor=…, persistent_workers=True, pin_memory=True).'
        WHEN 'sync' THEN 'Take .item(), .cpu(), print and checks of values out of the loop, or do them every n steps.'
        WHEN 'launch' THEN 'Give the device more for each launch: torch.compile(mode="reduce-overhead"), CUDA graphs, fused optimizers, larger batches.'
        WHEN 'allocation' THEN 'Let the caching allocator keep its memory: no torch.cuda.empty_cache() in the loop; see memory findings for retries.'
        WHEN 'queued' THEN 'Look at the events that the work after the longest gap waits for, and at what runs on the other ranks then.'
        ELSE 'Look at what the host does before the longest gap: record with with_stack=True, or py-spy record --gil.'
    END AS advice,
    'device ' || s.device || ' idle by ' || t.main AS key
FROM share AS s
JOIN told AS t ON t.artifact_id = s.artifact_id AND t.proc_id IS NOT DISTINCT FROM s.proc_id AND t.device = s.device
JOIN longest AS l ON l.artifact_id = s.artifact_id AND l.proc_id IS NOT DISTINCT FROM s.proc_id AND l.device = s.device
ORDER BY s.idle_ratio DESC, s.artifact_id, s.proc_id, s.device;
