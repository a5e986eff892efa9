/*
title = "A collective timed out"
severity = "high"
role = "symptom"
proves = """
This rank waited for the collective until the time limit. What it waited for happened, or failed to happen, on another
rank, before the time of the message less the limit. Where the rank's flight recorder holds the same call, unfinished, that
is the same event: its row is cited."""
cannot_prove = """
Which rank did not come, and why: the rank that reports a timeout is seldom the one at fault."""
message = "{who} timed out in {operation}{at_step} after {timeout}{recorded}"
fix = "Look for what another rank did before {timeout} earlier; a longer limit only delays the report."
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "collective-stuck", of = "group" }]
references = ["https://docs.pytorch.org/docs/stable/distributed.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
report AS (
    SELECT
        e.*,
        coalesce(CAST(e.fields ->> 'rank' AS INTEGER), e.rank) AS waiting_rank
    FROM log AS e
    WHERE e.class = 'comm.timeout'
      AND e.role IN ('symptom', 'primary')
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
    QUALIFY row_number() OVER (
        PARTITION BY e.proc_id, coalesce(CAST(e.fields ->> 'rank' AS INTEGER), e.rank)
        -- Of several reports of one timeout, the one that knows the step.
        ORDER BY e.step NULLS LAST, e.ts_ns NULLS LAST, e.artifact_id, e.row
    ) = 1
),
-- Of a report the call in the flight recorder of its rank; of two that it could be, in groups that it does not tell, none.
recorded AS (
    SELECT
        r.artifact_id,
        r.row,
        min(coalesce(g.description || ' (' || n.text || ')', n.text)) AS group_said,
        min(c.state) AS state,
        list({ 'artifact_id': c.artifact_id, 'row': c.row, 'note': 'the same call in the rank''s flight recorder' } ORDER BY c.artifact_id, c.row) AS evidence
    FROM report AS r
    JOIN collective AS c ON c.rank = r.waiting_rank AND c.sequence = TRY_CAST(r.fields ->> 'sequence' AS BIGINT)
    JOIN proc AS p ON p.id = c.proc_id AND p.attempt = r.attempt
    JOIN process_group AS g ON g.artifact_id = c.artifact_id AND g.id = c.group_id
    JOIN string AS n ON n.id = g.name_id
    WHERE c.state <> 'completed' AND NOT coalesce(c.is_p2p OR c.retired, FALSE)
      -- ALLREDUCE or _ALLGATHER_BASE there, all_reduce or all_gather here
      AND regexp_replace(lower(r.fields ->> 'operation'), '[^a-z]|base', '', 'g') = regexp_replace(c.operation, '[^a-z]|base', '', 'g')
      AND coalesce(regexp_extract(r.fields ->> 'process_group', '([^( ]+)(\([^)]*\))?$', 1), n.text) = n.text
    GROUP BY r.artifact_id, r.row
    HAVING count(*) = 1
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.waiting_rank AS rank,
    r.step,
    r.ts_ns,
    r.line,
    coalesce(r.fields ->> 'operation', r.fields ->> 'op', 'a collective') AS operation,
    coalesce((CAST(r.fields ->> 'timeout_ms' AS BIGINT) // 1000) || ' s', 'its limit') AS timeout,
    r.fields ->> 'sequence' AS sequence,
    coalesce('; its flight recorder has the call as number ' || (r.fields ->> 'sequence') || ' of group ' || c.group_said || ', ' || c.state, '') AS recorded,
    c.evidence,
    r.signature AS key
FROM report AS r
LEFT JOIN recorded AS c ON c.artifact_id = r.artifact_id AND c.row = r.row
ORDER BY r.ts_ns, r.artifact_id, r.row;
