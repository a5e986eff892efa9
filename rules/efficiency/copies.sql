/*
title = "The device waits for copies"
severity = "medium"
role = "performance"
proves = """
Copies and fills ran while no kernel did, for at least a tenth of the time from the first to the last work of the device; or
copies from or to pageable memory took as much, which the driver stages through a buffer of its own while the host waits."""
cannot_prove = """
That the data has to move at all, or could move earlier; where memory is not told from pinned, only the first holds."""
message = "{who}: copies took {copy_ratio:percent} of {span_ns:duration} on device {device}, {exposed_ratio:percent} while nothing else ran{pageable}; most in {op}: {n_copies:# copy|# copies}{volume}"
fix = "Copy from pinned memory (pin_memory=True in the loader, tensor.pin_memory()) with non_blocking=True on a stream of its own, one batch ahead; keep on the device what is copied again and again."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html", "https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html"]

[thresholds.min_copy_ratio]
value = 0.1
unit = "time of copies that nothing else overlaps, or of pageable copies / time from the first to the last work"
measured = "copy_ratio"
why = "a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[thresholds.min_work]
value = 50
unit = "kernels, copies and fills"
why = "fewer are one small pass or the loading of weights"

[thresholds.min_copies]
value = 5
unit = "copies of one kind"
why = "a copy or two at the beginning load weights or make buffers"

[variant.trace]
needs = ["slice.device"]
strength = "strong"
*/
-- variant: trace
WITH
kind AS (
    SELECT
        s.artifact_id,
        s.proc_id,
        coalesce(s.device, 0) AS device,
        n.text AS op,
        contains(n.text, 'Pageable') AS is_pageable,
        count(*) AS n_copies,
        sum(s.dur_ns) AS total_ns,
        sum(s.bytes) AS bytes,
        arg_max(s.row, (s.dur_ns, -s.row)) AS row
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.kind = 'memcpy'
    GROUP BY s.artifact_id, s.proc_id, coalesce(s.device, 0), n.text
),
pageable AS (
    SELECT
        artifact_id,
        proc_id,
        device,
        sum(total_ns) AS total_ns
    FROM kind
    WHERE is_pageable
    GROUP BY artifact_id, proc_id, device
),
heaviest AS (
    SELECT
        *
    FROM kind
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id, device ORDER BY total_ns DESC, op) = 1
)
SELECT
    u.artifact_id,
    h.row,
    'slice' AS "table",
    u.proc_id,
    u.rank,
    u.ts_ns,
    u.device,
    u.span_ns,
    u.copy_ns / u.span_ns AS copy_ratio,
    u.exposed_copy_ns / u.span_ns AS exposed_ratio,
    CASE
        WHEN p.total_ns >= $min_copy_ratio * u.span_ns
            THEN printf('; %.0f %% of the time went into copies with pageable memory', 100.0 * p.total_ns / u.span_ns)
        ELSE ''
    END AS pageable,
    h.op,
    h.n_copies,
    CASE WHEN h.bytes > 0 THEN printf(' of %.1f MiB in all, %.2f GB/s', h.bytes / 1048576.0, h.bytes / h.total_ns) ELSE '' END AS volume,
    'device ' || u.device || ' ' || h.op AS key
FROM device_use AS u
JOIN heaviest AS h
    ON h.artifact_id = u.artifact_id AND h.proc_id IS NOT DISTINCT FROM u.proc_id AND h.device = u.device
LEFT JOIN pageable AS p
    ON p.artifact_id = u.artifact_id AND p.proc_id IS NOT DISTINCT FROM u.proc_id AND p.device = u.device
WHERE u.n_work >= $min_work AND h.n_copies >= $min_copies
  AND greatest(u.exposed_copy_ns, coalesce(p.total_ns, 0)) >= $min_copy_ratio * u.span_ns
ORDER BY copy_ratio DESC, u.artifact_id, u.proc_id, u.device;
