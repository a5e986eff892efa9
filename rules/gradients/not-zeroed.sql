/*
title = "Gradients add up over steps"
severity = "critical"
proves = """
The gradient norm grows with the number of steps as a running sum does, from the start, while the loss does not improve;
with tensor statistics also that each gradient stays at its address and is written to without ever being made anew."""
cannot_prove = """
That zero_grad is missing in the code: a zero_grad on another optimizer, or one inside of a branch, looks the same."""
message = "{who}: the gradient norm grows with the step number, {first_norm} to {last_norm} over {n_steps:# step|# steps}, as a sum of all gradients so far does{where_kept}"
fix = "Call optimizer.zero_grad(set_to_none=True) once per optimizer step, on the optimizer that holds these parameters."
causes = [{ state = "gradient-invalid", of = "rank" }]
requires = [{ state = "weights-unmoved", of = "rank" }]

[thresholds.min_points]
value = 20
unit = "logged gradient norms"
why = "fewer cannot tell a line from a burst"

[thresholds.min_growth]
value = 5.0
unit = "median norm of the last tenth / first norms"
measured = "last_norm / first_norm"
why = "warm-up and sharpening raise norms by less within one logged stretch"

[thresholds.min_correlation]
value = 0.9
unit = "correlation of the norm with its ordinal"
why = "a sum of gradients of one direction grows by the same amount each step; divergence grows by a factor"

[thresholds.min_loss_change]
value = 0.8
unit = "median loss of the last quarter / of the first"
why = "norms of a run that learns well can rise as its loss falls; summed gradients soon lead away from the minimum"

[variant.tensors]
needs = ["tensor", "sample"]
strength = "proof"

[variant.metrics]
needs = ["sample"]
strength = "strong"
says = "Only the norms are known: a loss that grows steadily could raise them as well."
*/
-- variant: tensors
WITH
grown AS (
    SELECT * FROM training_norm_growth
    WHERE n_points >= $min_points AND growth >= $min_growth AND correlation >= $min_correlation
      AND correlation >= exponential_correlation
),
kept AS (
    -- Never made anew: the same address, written to at least once a step, from the first sample to the last.
    SELECT
        artifact_id,
        proc_id,
        count(*) AS n_kept
    FROM (
        SELECT
            artifact_id,
            proc_id,
            name,
            count(DISTINCT gradient_addr) AS n_addresses,
            max(gradient_version) - min(gradient_version) AS n_writes,
            max(step) - min(step) AS n_steps
        FROM gradient_reading
        WHERE gradient_norm IS NOT NULL
        GROUP BY artifact_id, proc_id, name
    )
    WHERE n_addresses = 1 AND n_steps > 0 AND n_writes >= n_steps
    GROUP BY artifact_id, proc_id
)
SELECT
    g.artifact_id,
    g.row,
    g.line,
    g.proc_id,
    g.rank,
    g.step,
    g.ts_ns,
    g.first_norm,
    g.last_norm,
    g.n_steps,
    k.n_kept,
    '; ' || k.n_kept || ' gradients stay at their address and are written to in every step' AS where_kept,
    'not-zeroed' AS key
FROM grown AS g
JOIN kept AS k ON k.proc_id IS NOT DISTINCT FROM g.proc_id
QUALIFY row_number() OVER (PARTITION BY g.proc_id ORDER BY g.preference, k.n_kept DESC, k.artifact_id) = 1
ORDER BY g.ts_ns, g.artifact_id, g.row;
-- variant: metrics
SELECT
    artifact_id,
    row,
    line,
    proc_id,
    rank,
    step,
    ts_ns,
    first_norm,
    last_norm,
    n_steps,
    '' AS where_kept,
    'not-zeroed' AS key
FROM training_norm_growth
WHERE n_points >= $min_points AND growth >= $min_growth AND correlation >= $min_correlation
  AND correlation >= exponential_correlation AND loss_change >= $min_loss_change
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY preference) = 1
ORDER BY ts_ns, artifact_id, row;
