/*
title = "GPU memory had errors that could not be corrected"
severity = "critical"
scope = "job"
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
proves = """
The CUDA runtime reports errors of the GPU's memory that error correction could detect but not mend: what was read
there was lost."""

[variant.kernel]
needs = ["log_event.kernel"]
strength = "strong"
proves = """
An Xid code of the driver reports errors of the GPU's memory that error correction could detect but not mend: what was
read there was lost."""

[variant.counters]
needs = ["sample.device"]
strength = "indication"
proves = "The GPU's own counters hold errors of its memory that error correction could detect but not mend."
says = "The counters were read at an unknown time; the errors may be older than the job."
*/
-- variant: log
SELECT *
FROM uncorrectable_error
ORDER BY ts_ns, artifact_id, row;
-- variant: kernel
SELECT *
FROM uncorrectable_error
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
