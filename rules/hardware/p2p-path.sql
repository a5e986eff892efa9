/*
title = "GPUs do not reach each other directly"
severity = "high"
scope = "job"
cannot_prove = """
That the device which the IOMMU names is a GPU of this job. What ACS and the IOMMU are set to is cited where it was recorded; it
is not shown that they are the reason."""
message = "{what}{setting}"
fix = "{remedy}"
causes = [{ state = "throughput-low", of = "job" }]
references = [
    "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#pci-access-control-services-acs",
]

[thresholds.max_latency]
value = 1000.0
unit = "µs of a small transfer with direct access"
why = "a few µs are usual; milliseconds mean that the transfer did not arrive and was given up"

[thresholds.min_bandwidth_ratio]
value = 0.5
unit = "GB/s with direct access / GB/s through the host"
why = "direct transfers are never much slower than those through the host"

[variant.test]
needs = ["fact"]
strength = "strong"
proves = """
Transfers between two GPUs with direct access are slower than without, or take milliseconds to begin, which happens
where PCIe switches send them up to the root (ACS) or an IOMMU translates them."""

[variant.faults]
needs = ["log_event.kernel"]
strength = "strong"
proves = """
The IOMMU refused an access by a PCIe device to an address that it does not know, as when one GPU writes to another
through it."""

[variant.compared]
needs = ["log_event", "outcome"]
strength = "strong"
proves = """
A run with direct access waited in a collective until its limit on every rank that spoke, and a run beside it, in
which NCCL was told not to use direct access, ended well."""
says = "That the runs differ in nothing else is not shown."

[variant.disabled]
needs = ["log_event"]
strength = "strong"
proves = "NCCL found direct access between two GPUs switched off."
says = "What the longer way costs was not measured."
*/
-- variant: test
WITH
pair AS (
    SELECT
        regexp_extract(key, 'p2p (GPU[0-9]+ GPU[0-9]+) ', 1) AS pair,
        max(number) FILTER (WHERE key LIKE '% GB/s enabled') AS direct,
        max(number) FILTER (WHERE key LIKE '% GB/s disabled') AS through,
        max(number) FILTER (WHERE key LIKE '% us enabled') AS latency,
        max(number) FILTER (WHERE key LIKE '% us disabled') AS latency_through,
        min(artifact_id) AS artifact_id,
        max(line) FILTER (WHERE key LIKE '% us enabled') AS latency_line,
        max(line) FILTER (WHERE key LIKE '% GB/s enabled') AS line
    FROM fact
    WHERE regexp_matches(key, '^p2p GPU[0-9]+ GPU[0-9]+ ')
    GROUP BY pair
),
bad AS (
    SELECT
        *,
        latency > $max_latency AS is_lost,
        count(*) OVER () AS n
    FROM pair
    WHERE latency > $max_latency OR direct < $min_bandwidth_ratio * through
),
setting AS (
    SELECT min_by(message, line) AS said FROM log WHERE class IN ('hw.acs', 'hw.iommu') AND role <> 'noise'
)
SELECT
    b.artifact_id,
    coalesce(CASE WHEN b.is_lost THEN b.latency_line END, b.line) AS line,
    replace(b.pair, ' ', ' and ') || CASE WHEN b.n > 1 THEN ' and ' || (b.n - 1) || ' more pairs' ELSE '' END
        || CASE
            WHEN b.is_lost THEN ' need ' || CAST(CAST(b.latency AS BIGINT) AS VARCHAR) || ' µs for a small transfer with direct access'
                || coalesce(', ' || CAST(round(b.latency_through, 1) AS VARCHAR) || ' µs without', '')
            ELSE ' move ' || CAST(round(b.direct, 1) AS VARCHAR) || ' GB/s with direct access and ' || CAST(round(b.through, 1) AS VARCHAR) || ' GB/s without'
        END AS what,
    coalesce('; recorded beside: ' || trim(s.said), '') AS setting,
    'Switch ACS off on the PCIe bridges between the GPUs (setpci on the host, or the BIOS), and the IOMMU to passthrough (iommu=pt); until then NCCL_P2P_DISABLE=1.' AS remedy,
    CASE WHEN b.is_lost THEN ['collective-stuck'] ELSE ['throughput-low'] END AS causes,
    b.pair AS key
FROM bad AS b
CROSS JOIN setting AS s
QUALIFY row_number() OVER (ORDER BY b.is_lost DESC, b.latency DESC, b.pair) = 1
ORDER BY b.pair;

-- variant: faults
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.host,
    e.ts_ns,
    'The IOMMU of ' || coalesce(e.host, 'the host') || ' refused an access by a PCIe device: ' || e.message AS what,
    '' AS setting,
    'Set the IOMMU to passthrough (iommu=pt) or switch it off for bare metal, and ACS off on the bridges between the GPUs; until then NCCL_P2P_DISABLE=1.' AS remedy,
    ['collective-stuck'] AS causes,
    e.signature AS key
FROM log AS e
WHERE e.class = 'hw.p2p' AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;

-- variant: compared
WITH
without AS (
    SELECT
        artifact_id,
        row,
        line,
        attempt
    FROM log
    WHERE class = 'hw.p2p-setting' AND role <> 'noise'
    QUALIFY row_number() OVER (PARTITION BY attempt ORDER BY artifact_id, row) = 1
),
went_well AS (
    SELECT w.*
    FROM without AS w
    WHERE EXISTS (SELECT 1 FROM outcome AS o WHERE o.attempt = w.attempt AND o.result = 'completed' AND o.strength IN ('strong', 'proof'))
      AND NOT EXISTS (SELECT 1 FROM outcome AS o WHERE o.attempt = w.attempt AND o.result = 'failed')
),
stuck AS (
    SELECT e.*
    FROM reported_failure AS e
    WHERE e.signature = 'nccl-watchdog-timeout'
      AND NOT EXISTS (SELECT 1 FROM without AS w WHERE w.attempt = e.attempt)
      AND NOT EXISTS (SELECT 1 FROM log AS o WHERE o.attempt = e.attempt AND o.role = 'primary' AND coalesce(o.fields ->> 'handled', 'false') <> 'true')
    QUALIFY row_number() OVER (PARTITION BY e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
),
setting AS (
    SELECT min_by(message, line) AS said FROM log WHERE class IN ('hw.acs', 'hw.iommu') AND role <> 'noise'
)
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.host,
    e.ts_ns,
    'With direct access between the GPUs ' || (e.fields ->> 'operation') || ' number ' || (e.fields ->> 'sequence')
        || ' never ended; without it (NCCL_P2P_DISABLE=1) the job ended well' AS what,
    coalesce('; recorded beside: ' || trim(s.said), '') AS setting,
    'Set the IOMMU to passthrough (iommu=pt) or switch it off for bare metal, and ACS off on the bridges between the GPUs; until then NCCL_P2P_DISABLE=1.' AS remedy,
    'critical' AS severity,
    ['collective-stuck'] AS causes,
    [{'artifact_id': w.artifact_id, 'row': w.row, 'line': w.line, 'note': 'the run without direct access'}] AS evidence,
    'compared' AS key
FROM stuck AS e
JOIN went_well AS w ON w.attempt <> e.attempt
CROSS JOIN setting AS s
QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row, w.attempt) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;

-- variant: disabled
WITH
setting AS (
    SELECT min_by(message, line) AS said FROM log WHERE class IN ('hw.acs', 'hw.iommu', 'hw.p2p-setting') AND role <> 'noise'
)
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.host,
    e.ts_ns,
    'NCCL found direct access between GPUs ' || (e.fields ->> 'first') || ' and ' || (e.fields ->> 'second') || ' switched off'
        || CASE WHEN (e.fields ->> 'link') IS NOT NULL THEN ', although an NVLink connects them' ELSE '' END AS what,
    coalesce('; recorded beside: ' || trim(s.said), '') AS setting,
    CASE
        WHEN (e.fields ->> 'link') IS NOT NULL THEN 'Look at the links (nvidia-smi nvlink -s, nvidia-smi topo -p2p r) and the fabric manager; reset the GPUs.'
        ELSE 'Look at nvidia-smi topo -p2p r; in virtual machines and containers the PCIe topology has to be passed through, and ACS has to be off.'
    END AS remedy,
    CASE WHEN (e.fields ->> 'link') IS NULL THEN 'medium' END AS severity,
    CASE WHEN (e.fields ->> 'link') IS NULL THEN 'performance' END AS role,
    CASE WHEN (e.fields ->> 'link') IS NULL THEN ['throughput-low'] ELSE ['rank-failed'] END AS causes,
    e.signature AS key
FROM log AS e
CROSS JOIN setting AS s
WHERE e.class = 'hw.p2p-disabled' AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.host ORDER BY (e.fields ->> 'link') IS NULL, e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
