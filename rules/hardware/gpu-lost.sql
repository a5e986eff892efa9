/*
title = "A GPU no longer answers"
severity = "critical"
scope = "job"
cannot_prove = """
Why it left: power, heat, a loose or worn PCIe link and the card itself look the same here. Without a common clock it is
not shown that the GPU was lost before the job failed."""
message = "GPU {pci} no longer answers: {said}{detail}"
fix = "Drain the host and power-cycle it; check power, cooling and seating of the GPU, and the PCIe error counters (lspci -vv, dmesg); rerun from the last checkpoint on another host."
causes = [{ state = "device-lost", of = "device" }]
references = ["https://docs.nvidia.com/deploy/xid-errors/index.html"]

[variant.kernel]
needs = ["log_event.kernel"]
strength = "strong"
proves = "The kernel log says that the GPU is not reachable on its bus any more."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = "The driver told the job that the GPU is not reachable any more."

[variant.device-report]
needs = ["fact"]
strength = "strong"
proves = "nvidia-smi says that the GPU is not reachable any more."
says = "nvidia-smi was asked at an unknown time; it shows the loss, not when it was."
*/
-- variant: kernel
SELECT *
FROM gpu_lost_report
ORDER BY ts_ns, artifact_id, row;
-- variant: log
SELECT *
FROM gpu_lost_report
ORDER BY ts_ns, artifact_id, row;
-- variant: device-report
WITH
pcie AS (
    SELECT
        e.artifact_id,
        e.row,
        e.line,
        count(*) OVER () AS n
    FROM log AS e
    WHERE e.class = 'hw.pcie'
    QUALIFY row_number() OVER (ORDER BY e.artifact_id, e.row) = 1
)
SELECT
    f.artifact_id,
    f.line,
    coalesce(nullif(regexp_extract(f.value, '([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])', 1), ''), '(unnamed)') AS pci,
    briefly(f.value, 200) AS said,
    CASE WHEN p.n > 0 THEN '; the kernel counts ' || p.n || ' messages about PCIe errors' ELSE '' END AS detail,
    CASE
        WHEN p.n > 0
            THEN [{'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'an error of a PCIe link on this host'}]
    END AS evidence,
    'gpu-lost' AS key
FROM fact AS f
LEFT JOIN pcie AS p ON TRUE
WHERE f.scope = 'device'
  AND regexp_matches(f.value, '(?i)unable to determine the device handle|GPU is lost|fallen off the bus')
QUALIFY row_number() OVER (PARTITION BY pci ORDER BY f.artifact_id, f.line) = 1
ORDER BY f.artifact_id, f.line;
