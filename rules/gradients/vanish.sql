/*
title = "Gradients of early layers are next to zero"
severity = "high"
proves = """
In every sampled step the gradients of several weights are not zero but far below what their type resolves beside the
largest gradient of the step, and they shrink from layer to layer."""
cannot_prove = """
Which function shrinks them: saturated or bounded activations, missing residual paths and a small initialisation do."""
message = "{who}: the gradient of {name} is {ratio} of the largest one in all {n_samples:# sampled step|# sampled steps}; it shrinks over {n_small:# weight|# weights} in a row"
fix = "Add residual connections or normalisation, or use activations that do not saturate (ReLU, GELU); check the initialisation of {name} and the layers behind it."
causes = [{ state = "gradient-blocked", of = "rank" }]
requires = [{ state = "gradient-blocked", of = "rank" }]

[thresholds.max_ratio]
value = 1e-6
unit = "gradient norm of a weight / largest of the step"
measured = "ratio"
why = "about ten units in the last place of float32; healthy networks, deep ones too, lie above 1e-4"

[thresholds.min_weights]
value = 3
unit = "weights below the ratio"
measured = "n_small"
why = "a single one can be a parameter that the task hardly uses"

[thresholds.min_samples]
value = 2
unit = "sampled steps"
measured = "n_samples"
why = "an adapter's first step has gradients of zero by design"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
*/
-- variant: tensors
WITH
reading AS (
    SELECT
        *,
        gradient_norm / max(gradient_norm) OVER (PARTITION BY artifact_id, proc_id, step) AS ratio
    FROM gradient_reading
    WHERE gradient_norm IS NOT NULL AND isfinite(gradient_norm)
),
weight AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n_samples,
        max(ratio) AS ratio,
        min(gradient_norm) AS least
    FROM reading
    WHERE len(CAST(shape AS JSON)::BIGINT[]) >= 2
    GROUP BY artifact_id, proc_id, rank, name
    HAVING count(*) >= $min_samples AND isfinite(max(ratio))
),
ordered AS (
    -- Rows come in the order of the model's parameters.
    SELECT
        *,
        lag(ratio) OVER (PARTITION BY artifact_id, proc_id ORDER BY row) AS shallower
    FROM weight
)
SELECT
    artifact_id,
    min(row) AS row,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    min_by(name, row) AS name,
    min_by(name, row) AS module,
    printf('%.1e', min_by(ratio, row)) AS ratio,
    min(n_samples) AS n_samples,
    count(*) AS n_small,
    'vanish' AS key
FROM ordered
WHERE ratio < $max_ratio AND least > 0 AND (shallower IS NULL OR shallower < $max_ratio)
GROUP BY artifact_id, proc_id, rank
HAVING count(*) >= $min_weights AND corr(ln(ratio), row) > 0.5
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
