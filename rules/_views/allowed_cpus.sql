-- Processors that each process may use, as lists of numbers: `told` as it was written, `local_rank` and host whose it is.
CREATE TEMP VIEW allowed_cpus AS
WITH
told AS (
    SELECT
        f.artifact_id,
        f.line,
        f.proc_id,
        p.attempt,
        p.host,
        p.rank,
        coalesce(p.local_rank, p.rank) AS local_rank,
        p.device,
        f.value AS told
    FROM fact AS f
    JOIN proc AS p ON p.id = f.proc_id
    WHERE f.key = 'cpus.allowed' AND p.rank IS NOT NULL
      AND regexp_full_match(f.value, '[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*')
    QUALIFY row_number() OVER (PARTITION BY f.proc_id ORDER BY f.artifact_id, f.line) = 1
)
SELECT
    *,
    list_sort(list_distinct(flatten([
        range(
            CAST(split_part(part, '-', 1) AS BIGINT),
            least(CAST(coalesce(nullif(split_part(part, '-', 2), ''), split_part(part, '-', 1)) AS BIGINT), 100000) + 1
        )
        FOR part IN string_split(told, ',')
    ]))) AS cpus
FROM told;
