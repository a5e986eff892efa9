/*
title = "An activation never passes anything on"
severity = "high"
cannot_prove = """
That other batches would do the same, where one forward was recorded only."""
message = "{who}: {op}{in_module} gives zero for the whole batch{at_step}, and {n_dead:# weight has|# weights have} a gradient of exactly zero in all {n_samples:# sampled step|# sampled steps}"
fix = "Check bias and scale in front of {op}{in_module}: start biases at 0, lower the rate that drove the units negative, or use LeakyReLU or GELU."
causes = [{ state = "gradient-blocked", of = "rank" }]

[thresholds.min_samples]
value = 2
unit = "sampled steps"
why = "an adapter's first gradients are zero by design"

[variant.tensors]
needs = ["tensor", "node"]
strength = "proof"
proves = """
The recorded activation gave zero for every element of the batch although its input was not zero, and weights in front
of it have gradients of exactly zero in every sampled step."""

[variant.gradients]
needs = ["tensor"]
strength = "indication"
proves = """
Weights and biases of one layer have gradients of exactly zero in every sampled step while later layers have some."""
says = "No forward was recorded: that an activation is dead follows from weights and biases of one layer whose gradients are exactly zero while later layers have some. A masked or unused part of the model looks the same."
*/
-- variant: tensors
WITH
blocked AS (
    SELECT
        artifact_id,
        proc_id,
        name,
        min(row) AS row,
        count(*) AS n_samples
    FROM gradient_reading
    WHERE gradient_norm IS NOT NULL
    GROUP BY artifact_id, proc_id, name
    HAVING max(gradient_norm) = 0 AND count(*) >= $min_samples
),
activation AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        n.node_id,
        o.text AS op,
        m.text AS module,
        min(t.row) FILTER (WHERE t.role = 'output') AS row,
        max(t.absmax) FILTER (WHERE t.role = 'input') AS read,
        max(t.absmax) FILTER (WHERE t.role = 'output') AS written,
        sum(t.n_nan + t.n_inf) AS n_bad
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    WHERE n.phase = 'forward'
      AND o.text IN (
        'aten::relu', 'aten::relu_', 'aten::gelu', 'aten::silu', 'aten::hardtanh', 'aten::threshold', 'aten::clamp_min',
        'aten::sigmoid', 'aten::elu', 'aten::leaky_relu'
      )
    GROUP BY n.artifact_id, n.proc_id, n.rank, n.step, n.ts_ns, n.node_id, o.text, m.text
)
SELECT
    a.artifact_id,
    a.row,
    a.proc_id,
    a.rank,
    a.step,
    a.ts_ns,
    a.op,
    a.module,
    CASE WHEN coalesce(a.module, '') = '' THEN '' ELSE ' in ' || a.module END AS in_module,
    a.read AS input_absmax,
    count(DISTINCT b.name) AS n_dead,
    min(b.n_samples) AS n_samples,
    list({'artifact_id': b.artifact_id, 'row': b.row, 'note': 'gradient of ' || b.name} ORDER BY b.row) AS evidence,
    'dead' AS key
FROM activation AS a
JOIN blocked AS b ON b.proc_id IS NOT DISTINCT FROM a.proc_id
WHERE a.written = 0 AND a.read > 0 AND a.n_bad = 0
GROUP BY a.artifact_id, a.row, a.proc_id, a.rank, a.step, a.ts_ns, a.node_id, a.op, a.module, a.read
QUALIFY row_number() OVER (PARTITION BY a.proc_id ORDER BY a.step, a.node_id, a.artifact_id) = 1
ORDER BY a.ts_ns, a.artifact_id, a.row;
-- variant: gradients
WITH
parameter AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        regexp_replace(name, '\.[^.]*$', '') AS module,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(gradient_norm) AS norm,
        count(*) AS n_samples
    FROM gradient_reading
    WHERE gradient_norm IS NOT NULL
    GROUP BY artifact_id, proc_id, rank, name
    HAVING count(*) >= $min_samples + 1
),
layer AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        module,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(norm) AS norm,
        count(*) AS n_parameters,
        min(n_samples) AS n_samples
    FROM parameter
    GROUP BY artifact_id, proc_id, rank, module
)
SELECT
    d.artifact_id,
    d.row,
    d.proc_id,
    d.rank,
    d.step,
    d.ts_ns,
    'an activation' AS op,
    d.module,
    ' behind ' || d.module AS in_module,
    d.n_parameters AS n_dead,
    d.n_samples,
    'medium' AS severity,
    'dead' AS key
FROM layer AS d
WHERE d.norm = 0 AND d.n_parameters >= 2
  AND EXISTS (
    SELECT 1 FROM layer AS l
    WHERE l.artifact_id = d.artifact_id AND l.proc_id IS NOT DISTINCT FROM d.proc_id AND l.row > d.row AND l.norm > 0
  )
QUALIFY row_number() OVER (PARTITION BY d.proc_id ORDER BY d.row, d.artifact_id) = 1
ORDER BY d.ts_ns, d.artifact_id, d.row;
