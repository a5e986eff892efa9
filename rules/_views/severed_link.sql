-- Errors of NVLinks that were not corrected, as drivers and the CUDA runtime report them, the first of each host. A row is
-- one report. Messages from before the job began or after it had said that it was done are left out; a job that met none of it and
-- ended well was not harmed.
CREATE TEMP VIEW severed_link AS
WITH
told AS (
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
        x.timing = 'unknown' AS is_undated,
        'xid-' || x.xid AS key
    FROM driver_xid AS x
    WHERE x.class = 'hw.nvlink' AND x.role = 'primary' AND x.timing IN ('during', 'unknown')
    UNION ALL
    SELECT
        e.artifact_id,
        e.row,
        CAST(NULL AS INTEGER) AS proc_id,
        CAST(NULL AS INTEGER) AS rank,
        e.ts_ns,
        e.line,
        e.host,
        'The driver of the NVSwitch' AS where_found,
        briefly(e.message, 200) AS said,
        TRUE AS is_undated,
        'sxid' AS key
    FROM log AS e
    WHERE e.class = 'hw.nvswitch'
      AND e.role = 'primary'
      -- Switches recover from what they call non-fatal.
      AND ((e.fields ->> 'severity') = 'Fatal' OR e.message LIKE '%NVSwitch fatal%')
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
        FALSE AS is_undated,
        'runtime' AS key
    FROM reported_failure AS e
    WHERE e.class = 'hw.nvlink' AND e.source <> 'kernel' AND e.signature <> 'xid' AND e.role = 'primary' AND NOT e.completed
),
met AS (
    -- Whether the job itself met a fault of a device or of its communication.
    SELECT count(*) > 0 AS job_met_it
    FROM log
    WHERE source <> 'kernel' AND message NOT LIKE '%NVRM: %'
      AND role IN ('primary', 'symptom', 'secondary')
      AND (class LIKE 'hw.%' OR class LIKE 'cuda.%' OR class IN ('comm.cuda', 'comm.timeout', 'comm.heartbeat', 'comm.remote', 'comm.internal'))
)
SELECT
    t.* EXCLUDE (is_undated),
    CASE WHEN t.is_undated THEN '; whether it was during this job is not known' ELSE '' END AS detail,
    CASE WHEN t.is_undated AND NOT m.job_met_it THEN 'indication' END AS strength,
    CASE WHEN w.well AND NOT m.job_met_it THEN 'medium' END AS severity
FROM told AS t
CROSS JOIN met AS m
CROSS JOIN ended_well AS w
QUALIFY row_number() OVER (
    PARTITION BY t.host ORDER BY (t.key <> 'runtime'), t.is_undated, t.ts_ns NULLS LAST, t.artifact_id, t.row
) = 1;
