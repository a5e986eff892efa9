-- Failed device allocations as logs word them, the first of each process, with the figures of the message in bytes.
-- other_bytes is what is used beyond this process, by whichever account is larger: the processes that the message lists,
-- or capacity − free − own. In a container the own process is listed among the others and has no line of its own.
CREATE TEMP VIEW out_of_memory_text AS
WITH
failed AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.step,
        e.ts_ns,
        e.line,
        e.host,
        e.stack_id,
        CAST(e.fields ->> 'device' AS INTEGER) AS device,
        CAST(e.fields ->> 'requested_bytes' AS BIGINT) AS requested_bytes,
        CAST(e.fields ->> 'capacity_bytes' AS BIGINT) AS capacity_bytes,
        CAST(e.fields ->> 'free_bytes' AS BIGINT) AS free_bytes,
        CAST(e.fields ->> 'allocated_bytes' AS BIGINT) AS allocated_bytes,
        coalesce(CAST(e.fields ->> 'private_pool_bytes' AS BIGINT), 0) AS private_pool_bytes,
        CAST(e.fields ->> 'allowed_bytes' AS BIGINT) AS allowed_bytes,
        CAST(e.fields ->> 'process_bytes' AS BIGINT) AS process_bytes,
        coalesce(CAST(e.fields ->> 'other_bytes' AS BIGINT), 0) AS listed_other_bytes,
        coalesce(
            CAST(e.fields ->> 'reserved_unallocated_bytes' AS BIGINT),
            CAST(e.fields ->> 'reserved_bytes' AS BIGINT) - CAST(e.fields ->> 'allocated_bytes' AS BIGINT)
        ) AS cached_bytes
    FROM log AS e
    WHERE e.class IN ('mem.gpu.oom', 'mem.gpu.limit')
      AND e.role <> 'noise'
      AND (e.fields ->> 'requested_bytes') IS NOT NULL
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
    QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
)
SELECT
    *,
    CASE
        WHEN process_bytes IS NOT NULL THEN greatest(listed_other_bytes, capacity_bytes - coalesce(free_bytes, 0) - process_bytes)
        WHEN listed_other_bytes > 0 THEN listed_other_bytes - allocated_bytes - coalesce(cached_bytes, 0)
        ELSE capacity_bytes - coalesce(free_bytes, 0) - allocated_bytes - coalesce(cached_bytes, 0)
    END AS other_bytes
FROM failed;
