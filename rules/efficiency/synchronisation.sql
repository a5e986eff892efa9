/*
title = "The device runs dry because the host waits for it"
severity = "medium"
role = "performance"
proves = """
When the device finished all its work, a call of the host was waiting for that (a synchronisation or a blocking copy), and
the next work was launched only afterwards: the device was idle meanwhile."""
cannot_prove = """
That the value that was waited for is not needed; waits that a library makes look like those of the job's own code."""
message = "{who}: device {device} was idle for {sync_ratio:percent} of {span_ns:duration} after {n_gaps:# wait|# waits} of the host, most often in {call}{caller}"
fix = "Take .item(), .cpu(), .tolist(), nonzero, print and checks of values out of the loop or do them every n steps; copy with non_blocking=True into pinned memory; torch.cuda.set_sync_debug_mode(\"warn\") names each such line."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization", "https://docs.nvidia.com/nsight-systems/AnalysisGuide/index.html"]

[thresholds.min_sync_ratio]
value = 0.1
unit = "idle time after waits of the host / time from the first to the last work"
measured = "sync_ratio"
why = "a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[thresholds.min_gaps]
value = 5
unit = "gaps"
measured = "n_gaps"
why = "one wait at the end of each of a few passes is how steps are timed and losses printed"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
bound AS (
    SELECT
        u.*,
        u.sync_ns / u.span_ns AS sync_ratio,
        i.n_gaps,
        i.row AS next_row
    FROM device_use AS u
    JOIN device_idle AS i
        ON i.artifact_id = u.artifact_id AND i.proc_id IS NOT DISTINCT FROM u.proc_id AND i.device = u.device
        AND i.cause = 'sync'
    WHERE u.sync_ns >= $min_sync_ratio * u.span_ns AND i.n_gaps >= $min_gaps
),
waited AS (
    -- Of the gaps that are listed: the call that waited, and the operator that made it.
    SELECT
        g.artifact_id,
        g.proc_id,
        g.device,
        n.text AS call,
        o.text AS caller,
        sum(g.dur_ns) AS total_ns,
        arg_max(g.cause_row, (g.dur_ns, g.cause_row)) AS row
    FROM device_gap AS g
    JOIN slice AS s ON s.artifact_id = g.artifact_id AND s.row = g.cause_row
    JOIN string AS n ON n.id = s.name_id
    LEFT JOIN slice AS p ON p.artifact_id = s.artifact_id AND p.row = s.parent_row AND p.kind = 'cpu_op'
    LEFT JOIN string AS o ON o.id = p.name_id
    WHERE g.cause = 'sync'
    GROUP BY g.artifact_id, g.proc_id, g.device, n.text, o.text
    QUALIFY row_number() OVER (
        PARTITION BY g.artifact_id, g.proc_id, g.device ORDER BY total_ns DESC, n.text, o.text
    ) = 1
)
SELECT
    b.artifact_id,
    coalesce(w.row, b.next_row) AS row,
    'slice' AS "table",
    b.proc_id,
    b.rank,
    b.ts_ns,
    b.device,
    b.span_ns,
    b.sync_ratio,
    b.n_gaps,
    coalesce(w.call, 'a call that is not listed') AS call,
    coalesce(' of ' || w.caller, '') AS caller,
    w.caller AS op,
    'device ' || b.device || ' ' || coalesce(w.caller, w.call, '') AS key
FROM bound AS b
LEFT JOIN waited AS w
    ON w.artifact_id = b.artifact_id AND w.proc_id IS NOT DISTINCT FROM b.proc_id AND w.device = b.device
ORDER BY b.sync_ratio DESC, b.artifact_id, b.proc_id, b.device;
