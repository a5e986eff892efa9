-- Collectives that a rank's watchdog gave up, as the message tells: the first report of each rank and number. A row is one
-- rank's call. process_group: as the message names it, NULL in messages of old versions. n_alike: ranks that timed out in
-- the same call; has_majority: whether calls under this number differ and one of them is called by more ranks.
CREATE TEMP VIEW timed_out_call AS
WITH
report AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.attempt,
        coalesce(e.rank, CAST(e.fields ->> 'writer_rank' AS INTEGER)) AS rank,
        e.ts_ns,
        e.line,
        e.fields ->> 'process_group' AS process_group,
        e.fields ->> 'sequence' AS sequence,
        e.fields ->> 'operation' AS operation,
        (e.fields ->> 'operation') || coalesce(' of ' || (e.fields ->> 'numel_in') || ' elements', ' of shape ' || (e.fields ->> 'shape'), '') AS called
    FROM log AS e
    WHERE e.signature = 'nccl-watchdog-timeout'
      AND e.role <> 'noise'
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
      AND regexp_matches(e.fields ->> 'sequence', '^\d{1,18}$')
),
first_report AS (
    SELECT * FROM report
    WHERE rank IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY attempt, process_group, sequence, rank ORDER BY ts_ns NULLS LAST, artifact_id, row
    ) = 1
),
counted AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY attempt, process_group, sequence, called) AS n_alike
    FROM first_report
)
SELECT
    *,
    min(n_alike) OVER (PARTITION BY attempt, process_group, sequence)
    < max(n_alike) OVER (PARTITION BY attempt, process_group, sequence) AS has_majority
FROM counted;
