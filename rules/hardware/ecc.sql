/*
title = "GPU memory had errors that could not be corrected"
severity = "critical"
scope = "job"
proves = """
The CUDA runtime, an Xid code or the GPU's own counters report errors of its memory that error correction could detect
but not mend: what was read there was lost."""
cannot_prove = """
Counters since the last reset of the GPU (volatile) do not say at what moment of the job it happened; totals over the
life of the GPU (aggregate) are not used."""
message = "{where_found} reported uncorrectable errors of GPU memory: {said}"
fix = "Drain the host and reset the GPU, so that the row is remapped; replace it when remapping failed or the errors return; rerun from the last checkpoint."
causes = [{ state = "device-lost", of = "device" }]
references = ["https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/index.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"

[variant.counters]
needs = ["sample.device"]
strength = "indication"
says = "The counters were read at an unknown time; the errors may be older than the job."
*/
-- variant: log
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
        left(x.message, 200) AS said,
        'xid-' || x.xid AS key,
        x.timing = 'unknown' AS is_undated
    FROM xid_event AS x
    -- 92 is a rate of corrected errors, 63 the retirement that went well.
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
QUALIFY row_number() OVER (PARTITION BY host, rank ORDER BY ts_ns NULLS LAST, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: counters
SELECT
    m.artifact_id,
    m.row,
    m.ts_ns,
    m.line,
    m.device,
    'nvidia-smi (GPU ' || coalesce(CAST(m.device AS VARCHAR), '?') || ')' AS where_found,
    m.name || ' is ' || CAST(CAST(m.value AS BIGINT) AS VARCHAR) AS said,
    'high' AS severity,
    'counter' AS key
FROM metric AS m
WHERE m.source = 'nvidia-smi'
  AND m.value > 0
  AND (
      regexp_matches(lower(m.name), '^ecc\..*volatile.*uncorrect')
      OR m.name IN ('remapped_rows.pending', 'remapped_rows.failure', 'retired_pages.pending')
  )
QUALIFY row_number() OVER (PARTITION BY m.device ORDER BY (m.name NOT LIKE 'ecc%'), m.artifact_id, m.row) = 1
ORDER BY m.artifact_id, m.row;
