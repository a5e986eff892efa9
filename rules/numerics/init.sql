/*
title = "Weights start far outside of the band of their kind"
severity = "high"
proves = """
In the first sampled steps most matrices of the model have a standard deviation many times what their number of inputs
calls for, and the forward, where it was recorded, drives its activations to their ends."""
cannot_prove = """
Whether they were initialised so or loaded: only their values at the start are known."""
message = "{who}: {n_wide} of {n_weights:# matrix starts|# matrices start} with a deviation beyond {band} / sqrt(inputs); {name} has {std} with {fan_in} inputs{saturated}"
fix = "Initialise by fan-in (nn.init.kaiming_normal_, xavier_normal_) or with the model's initializer_range; check that a loaded state is scaled as the model expects."
causes = [{ state = "gradient-blocked", of = "rank" }]

[thresholds.band]
value = 4.0
unit = "standard deviation * sqrt(number of inputs)"
why = "Kaiming and Xavier give 0.6 to 1.5, a fixed 0.02 at most 2; embeddings, which are larger, are no majority"

[thresholds.min_share]
value = 0.5
unit = "matrices beyond the band / matrices"
measured = "n_wide / n_weights"
why = "single ones, such as embeddings and scales, lie outside by design"

[thresholds.min_weights]
value = 2
unit = "matrices"
measured = "n_wide"
why = "a majority of one is none"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
*/
-- variant: tensors
WITH
first AS (
    SELECT
        *,
        CAST(shape AS JSON)::BIGINT[] AS sizes
    FROM gradient_reading
    WHERE sample = 1 AND std IS NOT NULL AND step <= 1 AND NOT contains(lower(name), 'emb')
),
weight AS (
    SELECT
        *,
        list_product(sizes[2:]) AS fan_in
    FROM first
    WHERE len(sizes) >= 2 AND dtype <> 'int8'
),
saturated AS (
    -- Activations that end at 1 whose input is far beyond where they end.
    SELECT
        n.proc_id,
        min(o.text) AS op,
        max(t.absmax) AS absmax,
        count(DISTINCT n.node_id) AS n_ends
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    WHERE n.phase = 'forward' AND t.role = 'input' AND o.text IN ('aten::tanh', 'aten::sigmoid') AND t.absmax > 10
    GROUP BY n.proc_id
)
SELECT
    w.artifact_id,
    min(w.row) AS row,
    w.proc_id,
    w.rank,
    min(w.step) AS step,
    min(w.ts_ns) AS ts_ns,
    max_by(w.name, w.std * sqrt(w.fan_in)) AS name,
    max_by(w.name, w.std * sqrt(w.fan_in)) AS module,
    printf('%.3g', max_by(w.std, w.std * sqrt(w.fan_in))) AS std,
    max_by(w.fan_in, w.std * sqrt(w.fan_in)) AS fan_in,
    count(*) FILTER (WHERE w.std * sqrt(w.fan_in) > $band) AS n_wide,
    count(*) AS n_weights,
    CAST($band AS INTEGER) AS band,
    coalesce('; ' || min(s.op) || ' is driven up to ' || printf('%.3g', max(s.absmax)) || ' in ' || max(s.n_ends) || ' places', '') AS saturated,
    'init' AS key
FROM weight AS w
LEFT JOIN saturated AS s ON s.proc_id IS NOT DISTINCT FROM w.proc_id
GROUP BY w.artifact_id, w.proc_id, w.rank
HAVING count(*) FILTER (WHERE w.std * sqrt(w.fan_in) > $band) >= greatest($min_weights, $min_share * count(*))
QUALIFY row_number() OVER (PARTITION BY w.proc_id ORDER BY w.artifact_id) = 1
ORDER BY ts_ns, w.artifact_id, row;
