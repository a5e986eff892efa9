-- Errors of GPU memory that could not be corrected, as the CUDA runtime and the driver report them, the first of each host
-- and rank. A row is one report. Xid 92 is a rate of corrected errors and 63 a retirement that went well: not here.
CREATE TEMP VIEW uncorrectable_error AS
WITH
fault AS (
    SELECT
        x.artifact_id,
        x.row,
        CAST(NULL AS INTEGER) AS proc_id,
        CAST(NULL AS INTEGER) AS rank,
        x.ts_ns,
        x.line,
        x.host,
        'The driver (GPU ' || coalesce(x.pci, '?') || ')' AS where_found,
        briefly(x.message, 200) AS said,
        'xid-' || x.xid AS key,
        x.timing = 'unknown' AS is_undated
    FROM driver_xid AS x
    WHERE x.xid IN (48, 64, 94, 95, 140, 171, 172) AND x.timing IN ('during', 'unknown')
    UNION ALL
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.ts_ns,
        e.line,
        e.host,
        'The CUDA runtime' AS where_found,
        e.said,
        'ecc' AS key,
        FALSE AS is_undated
    FROM reported_failure AS e
    WHERE e.signature = 'gpu-ecc-error' AND e.role = 'primary'
)
SELECT
    * EXCLUDE (is_undated),
    CASE WHEN is_undated THEN 'indication' END AS strength
FROM fault
QUALIFY row_number() OVER (PARTITION BY host, rank ORDER BY ts_ns NULLS LAST, artifact_id, row) = 1;
