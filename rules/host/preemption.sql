/*
title = "The scheduler or the platform took the job's place away"
severity = "critical"
scope = "job"
cannot_prove = """
A signal alone (SIGTERM, SIGUSR1) has many senders: a launcher that tears its workers down, an operator, a limit of time or
memory. It is given as a symptom, and so is a cancellation without a reason, which people use on jobs that hang."""
message = "{what}{host_text}: {said}"
fix = "Resume from the last checkpoint; ask for a class or partition that is not preempted, or save on the warning signal (SIGTERM, SIGUSR1) and requeue."
causes = [{ state = "job-stopped", of = "job" }]
requires = [{ state = "host-full", of = "host" }, { state = "disk-full", of = "host" }]
references = [
  "https://slurm.schedmd.com/preempt.html",
  "https://kubernetes.io/docs/concepts/scheduling-eviction/pod-priority-preemption/",
]

[variant.scheduler]
needs = ["log_event.scheduler"]
strength = "strong"
proves = """
The scheduler, the platform or its autoscaler says that it preempted, evicted, requeued or took down the job, its node
or its instance."""

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
A log of the job says that the job, its node or its instance was preempted, evicted, requeued or taken down."""

[variant.cancelled]
needs = ["log_event.scheduler"]
strength = "indication"
proves = "The scheduler says that the job was cancelled; for what reason it does not say."
says = "Only a signal or a cancellation without a reason is in the evidence."

[variant.signal]
needs = ["log_event"]
strength = "indication"
proves = "The process was sent a signal that asks it to end."
says = "Only a signal or a cancellation without a reason is in the evidence."
*/
-- variant: scheduler
SELECT * EXCLUDE (is_signal)
FROM place_taken
WHERE NOT is_signal
ORDER BY ts_ns, artifact_id, row;
-- variant: log
SELECT * EXCLUDE (is_signal)
FROM place_taken
WHERE NOT is_signal
ORDER BY ts_ns, artifact_id, row;
-- variant: cancelled
SELECT * EXCLUDE (is_signal)
FROM place_taken
WHERE is_signal
ORDER BY ts_ns, artifact_id, row;
-- variant: signal
SELECT * EXCLUDE (is_signal)
FROM place_taken
WHERE is_signal
ORDER BY ts_ns, artifact_id, row;
