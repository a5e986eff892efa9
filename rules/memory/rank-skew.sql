/*
title = "One device or rank carries more than its peers"
severity = "critical"
scope = "job"
cannot_prove = """
Whether the peers could take a share: a first or last stage of a pipeline, or a coordinating rank, may have to hold more."""
message = "{subject} carries {bytes:bytes}, {peers}{told}"
fix = "Keep each rank to its own device (torch.cuda.set_device(local_rank), torch.load(map_location=...)), gather to the host or reduce instead of gathering on one device, and spread modules by their memory (max_memory of the device map)."
causes = [{ state = "memory-retained", of = "process" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.load.html"]

[thresholds.min_device_ratio]
value = 3.0
unit = "live bytes of the device / live bytes of the fullest of its peers"
why = "stages of a pipeline differ by embeddings and heads, at most by a factor of two in models that are meant to fit"

[thresholds.min_rank_ratio]
value = 1.5
unit = "peak of live bytes of the rank / median of its peers' peaks"
why = "replicas and shards of one job differ by the padding of their batches, a few percent"

[thresholds.min_rank_excess]
value = 268435456
unit = "bytes above the median of its peers"
why = "a context or a logger of rank 0 takes less than 256 MiB"

[thresholds.min_sibling_ratio]
value = 0.1
unit = "bytes that ranks of other devices hold on this one / bytes in use on it"
why = "a bare CUDA context takes a few hundred MiB; several of them with tensors take more than a tenth of a device"

[variant.snapshot]
needs = ["memory_segment"]
strength = "strong"
proves = """
On the device whose memory ran out, or stands out, lies a multiple of what its peers hold at the same time."""

[variant.listed]
needs = ["log_event", "sample.device"]
strength = "strong"
proves = """
On the device whose memory ran out lie contexts and tensors of ranks whose main device is another one, which together
hold what was missing."""
says = "The processes were listed at another moment than the failure."
*/
-- variant: snapshot
WITH
-- Of each device of each snapshot: at the failure, else at the peak.
held AS (
    SELECT
        m.*,
        f.row AS failed_row,
        p.attempt
    FROM memory_moment AS m
    LEFT JOIN allocation_failure AS f ON f.artifact_id = m.artifact_id AND f.device = m.device AND f.n_allocated_later = 0
    LEFT JOIN proc AS p ON p.id = m.proc_id
    WHERE m.device >= 0 AND m.moment = CASE WHEN f.row IS NULL THEN 'peak' ELSE 'oom' END
    QUALIFY row_number() OVER (PARTITION BY m.artifact_id, m.device ORDER BY m.row DESC) = 1
),
largest AS (
    SELECT artifact_id, device, place, row, bytes
    FROM memory_owner
    WHERE moment IN ('oom', 'peak') AND place IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY artifact_id, device ORDER BY bytes DESC, place) = 1
),
-- Devices of one process.
beside AS (
    SELECT
        h.artifact_id,
        h.device,
        max(o.live_bytes) AS peer_bytes,
        count(*) AS n_peers
    FROM held AS h
    JOIN held AS o ON o.artifact_id = h.artifact_id AND o.device <> h.device AND o.live_bytes > 0
    GROUP BY h.artifact_id, h.device
),
-- Ranks of one attempt, each with its main device.
main AS (
    SELECT *
    FROM held
    WHERE rank IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY attempt, rank ORDER BY live_bytes DESC, artifact_id, device) = 1
),
among AS (
    SELECT
        h.artifact_id,
        h.device,
        CAST(median(o.live_bytes) AS BIGINT) AS peer_bytes,
        count(*) AS n_peers
    FROM main AS h
    JOIN main AS o ON o.attempt = h.attempt AND o.rank <> h.rank
    GROUP BY h.artifact_id, h.device
),
apart AS (
    SELECT
        h.*,
        b.peer_bytes,
        'Device ' || h.device AS subject,
        'the fullest of the other devices of the process ' || format_bytes(b.peer_bytes) AS peers,
        'device' AS kind
    FROM held AS h
    JOIN beside AS b ON b.artifact_id = h.artifact_id AND b.device = h.device
    WHERE h.live_bytes >= $min_device_ratio * b.peer_bytes
    UNION ALL
    SELECT
        h.*,
        a.peer_bytes,
        'Rank ' || h.rank AS subject,
        'the median of its ' || a.n_peers || ' peers ' || format_bytes(a.peer_bytes) AS peers,
        'rank' AS kind
    FROM main AS h
    JOIN among AS a ON a.artifact_id = h.artifact_id AND a.device = h.device
    WHERE h.live_bytes >= $min_rank_ratio * a.peer_bytes
      AND h.live_bytes >= a.peer_bytes + $min_rank_excess
)
SELECT
    a.artifact_id,
    coalesce(a.failed_row, a.row) AS row,
    a.proc_id,
    a.rank,
    a.step,
    a.ts_ns,
    a.device,
    a.subject,
    a.live_bytes AS bytes,
    a.peers,
    a.peer_bytes,
    coalesce('; ' || format_bytes(w.bytes) || ' were made in ' || w.place, '') AS told,
    w.place AS where_in_code,
    CASE WHEN a.failed_row IS NULL THEN 'medium' END AS severity,
    [{'artifact_id': a.artifact_id, 'row': w.row, 'note': 'the first allocation of the place that holds most there'}] AS evidence,
    a.kind AS key
FROM apart AS a
LEFT JOIN largest AS w ON w.artifact_id = a.artifact_id AND w.device = a.device
QUALIFY row_number() OVER (PARTITION BY a.artifact_id, a.device ORDER BY a.kind) = 1
ORDER BY a.ts_ns, a.artifact_id, a.row, a.device;
-- variant: listed
WITH
guest AS (
    SELECT
        artifact_id,
        device,
        count(*) AS n_guests,
        sum(bytes) AS bytes
    FROM sibling_on_device
    GROUP BY artifact_id, device
)
SELECT
    o.artifact_id,
    o.row,
    o.proc_id,
    o.rank,
    o.step,
    o.ts_ns,
    o.line,
    o.device,
    'Device ' || o.device AS subject,
    CAST(g.bytes AS BIGINT) AS bytes,
    'of ' || g.n_guests || ' ranks whose main device is another one' AS peers,
    ', and ' || format_bytes(o.requested_bytes) || ' were missing' AS told,
    o.requested_bytes,
    m.value AS used_bytes,
    'listed' AS key,
    [{'artifact_id': m.artifact_id, 'line': m.line, 'note': 'memory in use on the device'}] AS evidence
FROM out_of_memory_text AS o
JOIN guest AS g ON g.device = o.device
JOIN metric AS m ON m.artifact_id = g.artifact_id AND m.name = 'memory.used' AND m.device = o.device
WHERE g.bytes >= $min_sibling_ratio * m.value
  AND g.bytes >= o.requested_bytes
QUALIFY row_number() OVER (PARTITION BY o.artifact_id, o.row ORDER BY m.value DESC, m.artifact_id, m.row) = 1
ORDER BY o.ts_ns, o.artifact_id, o.row;
