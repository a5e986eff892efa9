/*
title = "Tensors of the model are not where they should be"
severity = "high"
proves = """
Declared: a tensor lay on another device than its device map says, or on none (meta). Shared: several ranks of one host keep their
model on the same device although each of them sees more. Hops: in the order of the modules the map changes between devices more often
than it has devices, so activations go back and forth in every pass."""
cannot_prove = """
Where the tensors were later: the map is that of the moment when the recorder began. The order of the forward is taken from the order
in which modules were made."""
message = "{what}"
fix = "{remedy}"
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "weights-incomplete", of = "job" }]
references = ["https://huggingface.co/docs/accelerate/usage_guides/big_modeling"]

[thresholds.min_extra_hops]
value = 2
unit = "changes of device beyond one for each further device"
why = "one way back, for the head that shares its weight with the embedding, is usual"

[variant.map]
needs = ["placement"]
strength = "proof"
*/
-- variant: map
WITH
place AS (
    SELECT
        p.*,
        n.text AS name,
        CASE
            WHEN p.device = 'cuda' THEN 'cuda:0'
            ELSE p.device
        END AS lies_on
    FROM placement AS p
    JOIN string AS n ON n.id = p.name_id
),
misplaced AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min_by(name, row) AS name,
        min_by(lies_on, row) AS lies_on,
        min_by(declared, row) AS declared,
        count(*) AS n,
        bool_or(lies_on = 'meta') AS is_empty,
        list({'artifact_id': artifact_id, 'row': row, 'note': name || ' on ' || lies_on || ', declared ' || declared} ORDER BY row)[2:6] AS evidence
    FROM place
    WHERE NOT is_as_declared
      -- Offloaded weights are kept beside the model, which has empty tensors until a forward needs them.
      AND NOT (
        lies_on = 'meta' AND declared IN ('cpu', 'disk')
        AND EXISTS (SELECT 1 FROM place AS o WHERE o.artifact_id = place.artifact_id AND o.device NOT IN ('cpu', 'meta'))
      )
    GROUP BY artifact_id, proc_id, rank
),
main AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        arg_max(lies_on, bytes) AS device,
        arg_max(row, bytes) AS row,
        sum(bytes) AS bytes
    FROM (
        SELECT artifact_id, proc_id, rank, lies_on, min(row) AS row, sum(coalesce(size_bytes, 1)) AS bytes
        FROM place
        WHERE kind = 'parameter'
        GROUP BY artifact_id, proc_id, rank, lies_on
    )
    GROUP BY artifact_id, proc_id, rank
),
visible AS (
    SELECT
        f.proc_id,
        max(f.value) AS devices
    FROM fact AS f
    WHERE f.key = 'CUDA_VISIBLE_DEVICES'
    GROUP BY f.proc_id
),
crowded AS (
    SELECT
        p.attempt,
        p.host,
        m.device,
        min(m.artifact_id) AS artifact_id,
        min_by(m.row, m.rank) AS row,
        list(m.rank ORDER BY m.rank) AS ranks,
        min_by(m.proc_id, m.rank) AS proc_id
    FROM main AS m
    JOIN proc AS p ON p.id = m.proc_id
    LEFT JOIN visible AS v ON v.proc_id = m.proc_id
    WHERE starts_with(m.device, 'cuda') AND m.rank IS NOT NULL
    GROUP BY p.attempt, p.host, m.device
    -- Where each rank is shown a device of its own, all call theirs cuda:0.
    HAVING count(DISTINCT m.rank) >= 2 AND count(DISTINCT coalesce(v.devices, '')) = 1
        AND (max(v.devices) IS NULL OR contains(max(v.devices), ','))
),
turn AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        row,
        name,
        lies_on,
        lag(lies_on) OVER (PARTITION BY artifact_id ORDER BY row) AS before
    FROM place
    WHERE kind = 'parameter' AND lies_on <> 'meta'
),
hopping AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) FILTER (WHERE lies_on <> before) AS row,
        count(*) FILTER (WHERE lies_on <> before) AS n_hops,
        count(DISTINCT lies_on) AS n_devices,
        list(before || ' to ' || lies_on || ' at ' || name ORDER BY row) FILTER (WHERE lies_on <> before) AS hops
    FROM turn
    GROUP BY artifact_id, proc_id, rank
)
SELECT
    artifact_id,
    row,
    'placement' AS "table",
    proc_id,
    rank,
    name AS module,
    name || CASE WHEN n > 1 THEN ' and ' || (n - 1) || ' more tensors' ELSE '' END
        || CASE
            WHEN is_empty THEN CASE WHEN n > 1 THEN ' have' ELSE ' has' END || ' no data (meta device); the device map wants ' || CASE WHEN n > 1 THEN 'the first' ELSE 'it' END || ' on '
            ELSE CASE WHEN n > 1 THEN ' lie, the first on ' ELSE ' lies on ' END || lies_on || '; the device map says '
        END || declared AS what,
    CASE WHEN is_empty
        THEN 'Look at what the checkpoint lacks (load_state_dict with strict=True), and load or initialise these tensors before the first forward.'
        ELSE 'Move nothing by hand after the model was dispatched; put modules that share weights on one device; make the map anew for the devices at hand.'
    END AS remedy,
    CASE WHEN is_empty THEN 'critical' ELSE 'high' END AS severity,
    CASE WHEN is_empty THEN [] ELSE ['weights-incomplete'] END AS requires,
    evidence,
    name AS key
FROM misplaced
UNION ALL BY NAME
SELECT
    artifact_id,
    row,
    'placement' AS "table",
    proc_id,
    ranks[1] AS rank,
    'Ranks ' || list_aggregate(ranks[1:8], 'string_agg', ', ') || coalesce(' of ' || host, '') || ' all keep their model on ' || device AS what,
    'Call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the first tensor is made, and use that device.' AS remedy,
    'high' AS severity,
    ['throughput-low'] AS causes,
    device AS key
FROM crowded
UNION ALL BY NAME
SELECT
    artifact_id,
    row,
    'placement' AS "table",
    proc_id,
    rank,
    'Modules lie on ' || n_devices || ' devices in ' || (n_hops + 1) || ' stretches: ' || list_aggregate(hops[1:4], 'string_agg', ', ')
        || CASE WHEN n_hops > 4 THEN ', …' ELSE '' END AS what,
    'Give each device one stretch of modules (infer_auto_device_map with no_split_module_classes).' AS remedy,
    'medium' AS severity,
    'performance' AS role,
    ['throughput-low'] AS causes,
    'hops' AS key
FROM hopping
WHERE n_hops - (n_devices - 1) >= $min_extra_hops
ORDER BY artifact_id, row, key;
