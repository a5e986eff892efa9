/*
title = "An error is the echo of a broken capture"
severity = "high"
role = "symptom"
proves = """
The process reports a state that only a capture which broke earlier leaves behind: an invalidated capture, a random
generator still in capture mode, or an allocator that still believes a capture is under way."""
cannot_prove = """
What broke the capture: that is an earlier error of the same process, which may not be in the log."""
message = "{who} fails{at_step} because of a capture that broke before: {error}"
fix = "Mend the first capture error; the process has to be restarted, since the random generator stays in capture mode."
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "capture-broken", of = "process" }]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    briefly(e.message, 200) AS error,
    e.class AS key
FROM log AS e
WHERE e.class IN ('capture.invalidated', 'capture.rng', 'capture.alloc-during', 'capture.usage')
  AND e.role = 'secondary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.class ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
