/*
title = "The host waits because the device's launch queue is full"
severity = "info"
role = "performance"
proves = """
Launches waited while 1024 earlier ones of the same stream had not started: the host is that far ahead, and the device is
what limits the job. 1024 is the depth of the queue as HolisticTraceAnalysis has it."""
cannot_prove = """
That the host loses by it: it only matters where the same thread has other work to do, such as launching on another stream."""
message = "{who}: launches on stream {stream} of device {device} met a full queue {n_blocked:# time|# times} and waited {blocked_ns:duration} in it, {blocked_ratio:percent} of {span_ns:duration}"
fix = "Nothing is wrong with the device: it is the limit. Launch other streams' work from a thread of its own, or put the work into CUDA graphs, where the host's time matters."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://hta.readthedocs.io/en/latest/source/features/augmented_counters.html"]

[thresholds.min_blocked_ratio]
value = 0.1
unit = "time of launches that met a full queue / time from the first to the last work"
measured = "blocked_ratio"
why = "a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
SELECT
    q.artifact_id,
    q.row,
    'slice' AS "table",
    q.proc_id,
    u.rank,
    u.ts_ns,
    q.device,
    coalesce(q.stream::VARCHAR, '?') AS stream,
    q.n_blocked,
    q.blocked_ns,
    q.blocked_ns / u.span_ns AS blocked_ratio,
    u.span_ns,
    'device ' || q.device AS key
FROM launch_queue AS q
JOIN device_use AS u
    ON u.artifact_id = q.artifact_id AND u.proc_id IS NOT DISTINCT FROM q.proc_id AND u.device = q.device
WHERE q.n_blocked > 0 AND q.blocked_ns >= $min_blocked_ratio * u.span_ns
ORDER BY blocked_ratio DESC, q.artifact_id, q.proc_id, q.device, q.stream;
