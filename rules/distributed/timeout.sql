/*
title = "A collective timed out"
severity = "high"
role = "symptom"
proves = """
This rank waited for the collective until the time limit. What it waited for happened, or failed to happen, on another
rank, before the time of the message less the limit."""
cannot_prove = """
Which rank did not come, and why: the rank that reports a timeout is seldom the one at fault."""
message = "{who} timed out in {operation}{at_step} after {timeout}"
fix = "Look for what another rank did before {timeout} earlier; a longer limit only delays the report."
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "collective-stuck", of = "group" }]
references = ["https://docs.pytorch.org/docs/stable/distributed.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    coalesce(CAST(e.fields ->> 'rank' AS INTEGER), e.rank) AS rank,
    e.step,
    e.ts_ns,
    e.line,
    coalesce(e.fields ->> 'operation', e.fields ->> 'op', 'a collective') AS operation,
    coalesce((CAST(e.fields ->> 'timeout_ms' AS BIGINT) // 1000) || ' s', 'its limit') AS timeout,
    e.fields ->> 'sequence' AS sequence,
    e.signature AS key
FROM log AS e
WHERE e.class = 'comm.timeout'
  AND e.role IN ('symptom', 'primary')
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id, coalesce(CAST(e.fields ->> 'rank' AS INTEGER), e.rank)
    -- Of several reports of one timeout, the one that knows the step.
    ORDER BY e.step NULLS LAST, e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
