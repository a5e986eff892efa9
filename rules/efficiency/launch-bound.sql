/*
title = "The host launches work more slowly than the device does it"
severity = "medium"
role = "performance"
proves = """
The device was idle time and again because the next kernel had not been launched yet when it had finished all before it, and
the host waited neither for it nor for input or memory. Only gaps of up to 100 us count, which lie between launches that
follow each other."""
cannot_prove = """
How fast the same code launches without a profiler, which costs the host some microseconds for each operator."""
message = "{who}: device {device} waited for launches in {n_gaps:# gap|# gaps}, {launch_ratio:percent} of {span_ns:duration}; half of its kernels take less than {median_ns:duration}"
fix = "Give the device more for each launch: torch.compile(mode=\"reduce-overhead\") or CUDA graphs, fused or foreach optimizers, larger batches; record once without stacks and shapes to see what the profiler adds."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs", "https://hta.readthedocs.io/en/latest/source/features/idle_time_breakdown.html"]

[thresholds.min_launch_ratio]
value = 0.1
unit = "idle time for want of a launch / time from the first to the last work"
measured = "launch_ratio"
why = "a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[thresholds.min_gaps]
value = 30
unit = "gaps"
measured = "n_gaps"
why = "a stretch is launch-bound when it happens time and again; a handful of gaps are the start of a pass"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
bound AS (
    SELECT
        *,
        launch_ns / span_ns AS launch_ratio
    FROM device_use
    WHERE n_launch_gaps >= $min_gaps AND launch_ns >= $min_launch_ratio * span_ns
)
SELECT
    b.artifact_id,
    i.row,
    'slice' AS "table",
    b.proc_id,
    b.rank,
    b.ts_ns,
    b.device,
    b.span_ns,
    b.launch_ratio,
    b.n_launch_gaps AS n_gaps,
    (
        SELECT median(k.dur_ns)::BIGINT
        FROM slice AS k
        WHERE k.artifact_id = b.artifact_id AND k.kind = 'kernel' AND coalesce(k.device, 0) = b.device
    ) AS median_ns,
    'device ' || b.device AS key
FROM bound AS b
JOIN device_idle AS i
    ON i.artifact_id = b.artifact_id AND i.proc_id IS NOT DISTINCT FROM b.proc_id AND i.device = b.device
    AND i.cause = 'launch'
ORDER BY b.launch_ratio DESC, b.artifact_id, b.proc_id, b.device;
