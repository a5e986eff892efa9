/*
title = "Gathering or moving weights takes much of the step"
severity = "high"
role = "performance"
proves = """
In the trace, a good part of the time went to all-gathers and reduce-scatters of sharded weights and gradients, or to copies between
the host and the device, while nothing was computed on the device beside them (on the host, where the job has no device)."""
cannot_prove = """
Whether a faster network, larger batches or another way of sharding would pay. Copies of the job's input count with those of offloaded
weights where both are there."""
message = "{who}: {exposed:duration} of {span:duration} ({share:percent}) went to {what} with nothing computed beside; {n} of them, {bytes_said}{overlapped:percent} of their time lay under computation"
fix = "{remedy}"
causes = [{ state = "throughput-low", of = "job" }]
references = [
    "https://docs.pytorch.org/docs/stable/fsdp.html",
    "https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training",
]

[thresholds.min_share]
value = 0.25
unit = "time of gathers and copies without computation / time of the trace, for high"
measured = "share"
why = "a tenth is usual for sharded training and hard to avoid; a quarter is a choice of batch, network or sharding"

[thresholds.min_told_share]
value = 0.15
unit = "the same, for medium"
why = "waits for a rank that is a little behind are in it"

[thresholds.min_moves]
value = 8
unit = "gathers, scatters and copies"
measured = "n"
why = "fewer may be start-up"

[variant.trace]
needs = ["slice"]
strength = "strong"
*/
-- variant: trace
WITH
named AS (
    SELECT
        s.artifact_id,
        s.row,
        s.proc_id,
        s.rank,
        s.step,
        s.kind,
        s.ts_ns,
        s.dur_ns,
        s.bytes,
        s.parent_row,
        n.text AS name
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.dur_ns > 0 AND s.ts_ns IS NOT NULL AND s.kind IN ('kernel', 'memcpy', 'annotation', 'cpu_op')
),
-- Weights are sharded or offloaded by what the frameworks call their ranges.
sharded AS (
    SELECT DISTINCT artifact_id
    FROM named
    WHERE kind = 'annotation' AND regexp_matches(name, '^(FullyShardedDataParallel|FSDP::|DeepSpeedZero|ZeRO)')
),
device AS (SELECT DISTINCT artifact_id FROM named WHERE kind = 'kernel'),
work AS (
    SELECT
        n.*,
        CASE
            WHEN n.kind = 'kernel' AND regexp_matches(n.name, '(?i)(nccl|rccl).*(all_?gather|reduce_?scatter)') THEN 'gather'
            WHEN n.kind = 'memcpy' AND regexp_matches(n.name, 'HtoD|DtoH') THEN 'copy'
            WHEN n.kind = 'kernel' AND NOT regexp_matches(n.name, '(?i)nccl|rccl') THEN 'compute'
            -- Gloo reduces and scatters by reducing over all.
            WHEN d.artifact_id IS NULL AND n.kind = 'annotation' AND regexp_matches(n.name, '^gloo:_?(all_?gather|reduce_?scatter|all_?reduce)') THEN 'gather'
            WHEN d.artifact_id IS NULL AND n.kind = 'cpu_op' AND NOT starts_with(n.name, 'c10d') AND NOT starts_with(n.name, 'autograd::') THEN 'leaf'
        END AS part
    FROM named AS n
    JOIN sharded AS h ON h.artifact_id = n.artifact_id
    LEFT JOIN device AS d ON d.artifact_id = n.artifact_id
),
parent AS (
    SELECT DISTINCT artifact_id, parent_row AS row FROM named WHERE kind = 'cpu_op' AND parent_row IS NOT NULL
),
busy AS (
    SELECT w.*, w.part IN ('gather', 'copy') AS is_move
    FROM work AS w
    LEFT JOIN parent AS p ON w.part = 'leaf' AND p.artifact_id = w.artifact_id AND p.row = w.row
    WHERE w.part IS NOT NULL AND p.row IS NULL
),
edge AS (
    SELECT artifact_id, ts_ns AS at_ns, CAST(is_move AS INTEGER) AS move, CAST(NOT is_move AS INTEGER) AS compute FROM busy
    UNION ALL
    SELECT artifact_id, ts_ns + dur_ns, -CAST(is_move AS INTEGER), -CAST(NOT is_move AS INTEGER) FROM busy
),
stretch AS (
    SELECT
        artifact_id,
        at_ns,
        lead(at_ns) OVER w - at_ns AS dur_ns,
        sum(move) OVER w AS n_move,
        sum(compute) OVER w AS n_compute
    FROM (SELECT artifact_id, at_ns, sum(move) AS move, sum(compute) AS compute FROM edge GROUP BY artifact_id, at_ns)
    WINDOW w AS (PARTITION BY artifact_id ORDER BY at_ns)
),
cost AS (
    SELECT
        artifact_id,
        CAST(coalesce(sum(dur_ns) FILTER (WHERE n_move > 0 AND n_compute = 0), 0) AS BIGINT) AS exposed,
        CAST(coalesce(sum(dur_ns) FILTER (WHERE n_move > 0), 0) AS BIGINT) AS moving,
        CAST(sum(dur_ns) AS BIGINT) AS span
    FROM stretch
    GROUP BY artifact_id
),
moves AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n,
        sum(bytes) AS bytes,
        coalesce(sum(dur_ns) FILTER (WHERE part = 'copy'), 0) > coalesce(sum(dur_ns) FILTER (WHERE part = 'gather'), 0) AS is_copies,
        list({'artifact_id': artifact_id, 'row': row, 'note': name} ORDER BY dur_ns DESC, row)[1:4] AS places
    FROM busy
    WHERE is_move
    GROUP BY artifact_id, proc_id, rank
)
SELECT
    m.artifact_id,
    m.places[1].row AS row,
    'slice' AS "table",
    m.proc_id,
    m.rank,
    m.step,
    m.ts_ns,
    c.exposed,
    c.span,
    c.exposed / c.span AS share,
    1 - c.exposed / c.moving AS overlapped,
    m.n,
    CASE WHEN m.bytes > 0 THEN CAST(m.bytes // 1048576 AS VARCHAR) || ' MiB; ' ELSE '' END AS bytes_said,
    CASE WHEN m.is_copies THEN 'copies between host and device' ELSE 'gathers and scatters of sharded weights' END AS what,
    CASE WHEN m.is_copies
        THEN 'Offload less (optimizer alone, or nothing), pin the host''s memory, and let copies run ahead (pin_memory, overlap_comm, prefetch).'
        ELSE 'Compute more between two gathers: a larger batch or accumulation under no_sync, SHARD_GRAD_OP or ZeRO-2, sharding within a host only (HYBRID_SHARD), larger wrapped units and prefetch.'
    END AS remedy,
    CASE WHEN c.exposed < $min_share * c.span THEN 'medium' ELSE 'high' END AS severity,
    m.places[2:4] AS evidence,
    'sharding' AS fault,
    CASE WHEN m.is_copies THEN 'copies' ELSE 'gathers' END AS key
FROM moves AS m
JOIN cost AS c ON c.artifact_id = m.artifact_id
WHERE m.n >= $min_moves AND c.exposed >= $min_told_share * c.span
QUALIFY row_number() OVER (PARTITION BY m.proc_id ORDER BY c.exposed DESC, m.artifact_id) = 1
ORDER BY m.ts_ns, m.artifact_id;
