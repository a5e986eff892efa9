/*
title = "Gradients add up over steps"
severity = "critical"
cannot_prove = """
That zero_grad is missing in the code: a zero_grad on another optimizer, or one inside of a branch, looks the same."""
message = "{who}: {what}"
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

[thresholds.min_traced]
value = 2
unit = "traced steps of the optimizer in which every gradient is added to one before; at most one more in which none is"
measured = "n_steps"
why = "the first step of a run has no gradient before; the last one of a trace can be cut"

[variant.tensors]
needs = ["tensor", "sample"]
strength = "proof"
proves = """
The gradient norm grows with the number of steps as a running sum does, from the start, while the loss does not
improve; each gradient stays at its address and is written to without ever being made anew."""

[variant.calls]
needs = ["slice"]
strength = "strong"
proves = """
In the traced steps of the optimizer every gradient is added to the one before (AccumulateGrad calls add_, which it
does only where there is one) and nothing sets any to zero."""
says = "Gradients that a kernel without a name of its own sets to zero would look the same."

[variant.metrics]
needs = ["sample"]
strength = "strong"
proves = """
The gradient norm grows with the number of steps as a running sum does, from the start, while the loss does not
improve."""
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
    'the gradient norm grows with the step number, ' || g.first_norm || ' to ' || g.last_norm || ' over ' || g.n_steps
        || ' steps, as a sum of all gradients so far does'
        || '; ' || k.n_kept || ' gradients stay at their address and are written to in every step' AS what,
    'the first norm; the median of the first three is ' || g.first_norm AS note,
    [{
        'artifact_id': g.last_at.artifact_id,
        'row': g.last_at.row,
        'line': g.last_at.line,
        'note': 'the last norm; the median of the last tenth is ' || g.last_norm
    }] AS evidence,
    'not-zeroed' AS key
FROM grown AS g
JOIN kept AS k ON k.proc_id IS NOT DISTINCT FROM g.proc_id
QUALIFY row_number() OVER (PARTITION BY g.proc_id ORDER BY g.preference, k.n_kept DESC, k.artifact_id) = 1
ORDER BY g.ts_ns, g.artifact_id, g.row;
-- variant: calls
WITH
called AS (
    SELECT
        s.artifact_id,
        s.proc_id,
        s.step,
        s.row,
        s.ts_ns,
        s.parent_row,
        n.text AS name
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.step IS NOT NULL
      AND (
        n.text IN ('torch::autograd::AccumulateGrad', 'aten::add_', 'aten::zero_', 'aten::_foreach_zero_')
        OR n.text LIKE 'Optimizer.step#%' OR n.text LIKE 'Optimizer.zero_grad#%'
      )
),
step AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        c.step,
        min(c.row) FILTER (WHERE c.name LIKE 'Optimizer.step#%') AS row,
        min(c.ts_ns) FILTER (WHERE c.name LIKE 'Optimizer.step#%') AS ts_ns,
        count(*) FILTER (WHERE c.name = 'torch::autograd::AccumulateGrad') AS n_gradients,
        count(*) FILTER (WHERE c.name = 'aten::add_' AND a.name = 'torch::autograd::AccumulateGrad') AS n_added,
        -- Inside of other operators buffers are zeroed that are no gradients.
        count(*) FILTER (
            WHERE c.name LIKE 'Optimizer.zero_grad#%' OR (c.name LIKE '%zero_' AND coalesce(o.kind, '') <> 'cpu_op')
        ) AS n_zeroed
    FROM called AS c
    LEFT JOIN called AS a ON a.artifact_id = c.artifact_id AND a.row = c.parent_row AND c.name = 'aten::add_'
    LEFT JOIN slice AS o ON o.artifact_id = c.artifact_id AND o.row = c.parent_row AND c.name LIKE '%zero_'
    GROUP BY c.artifact_id, c.proc_id, c.step
),
told AS (
    SELECT
        artifact_id,
        proc_id,
        min_by(row, step) FILTER (WHERE n_added >= n_gradients) AS row,
        min_by(ts_ns, step) FILTER (WHERE n_added >= n_gradients) AS ts_ns,
        min(step) FILTER (WHERE n_added >= n_gradients) AS step,
        count(*) FILTER (WHERE n_added >= n_gradients) AS n_steps,
        count(*) AS n_all,
        max(n_gradients) AS n_gradients
    FROM step
    WHERE row IS NOT NULL AND n_gradients > 0
    GROUP BY artifact_id, proc_id
)
SELECT
    t.artifact_id,
    t.row,
    'slice' AS "table",
    t.proc_id,
    p.rank,
    t.step,
    t.ts_ns,
    t.n_steps,
    'in ' || t.n_steps || ' of ' || t.n_all || ' traced steps of the optimizer all ' || t.n_gradients
        || ' gradients are added to those before, and nothing sets them to zero' AS what,
    'not-zeroed' AS key
FROM told AS t
LEFT JOIN proc AS p ON p.id = t.proc_id
WHERE t.n_steps >= $min_traced AND t.n_steps >= t.n_all - 1
  AND NOT EXISTS (
    SELECT 1 FROM step AS z WHERE z.artifact_id = t.artifact_id AND z.proc_id IS NOT DISTINCT FROM t.proc_id AND z.n_zeroed > 0
  )
QUALIFY row_number() OVER (PARTITION BY t.proc_id ORDER BY t.step, t.artifact_id) = 1
ORDER BY t.ts_ns, t.artifact_id, t.row;
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
    'the gradient norm grows with the step number, ' || first_norm || ' to ' || last_norm || ' over ' || n_steps
        || ' steps, as a sum of all gradients so far does' AS what,
    'the first norm; the median of the first three is ' || first_norm AS note,
    [{
        'artifact_id': last_at.artifact_id,
        'row': last_at.row,
        'line': last_at.line,
        'note': 'the last norm; the median of the last tenth is ' || last_norm
    }] AS evidence,
    'not-zeroed' AS key
FROM training_norm_growth
WHERE n_points >= $min_points AND growth >= $min_growth AND correlation >= $min_correlation
  AND correlation >= exponential_correlation AND loss_change >= $min_loss_change
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY preference) = 1
ORDER BY ts_ns, artifact_id, row;
