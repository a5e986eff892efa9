-- Connections between ranks that broke or could not be made, as each process reports it first. A row is one process.
-- own_fault: the transport itself reports a fault (a completion error, no route, no answer); otherwise the
-- message is what the death of a peer looks like too.
CREATE TEMP VIEW severed_connection AS
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.attempt,
    coalesce(e.rank, CAST(e.fields ->> 'writer_rank' AS INTEGER)) AS rank,
    e.host,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    coalesce(e.fields ->> 'peer', e.fields ->> 'other_peer') AS peer,
    e.signature,
    e.class,
    (e.class = 'comm.network' AND e.role = 'primary')
    -- A refused connection is what a peer that is not there (any more) answers.
    AND NOT regexp_matches(e.message, '(?i)connection refused') AS own_fault
FROM reported_failure AS e
WHERE e.class IN ('comm.network', 'comm.remote', 'comm.system')
   OR (e.class = 'comm.internal' AND e.role = 'primary')
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id, e.attempt
    ORDER BY (NOT own_fault), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1;
