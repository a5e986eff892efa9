/*
title = "An exponential comes close to the end of its type"
severity = "medium"
proves = """
A recorded exponential gave finite values beyond 1e30 in float32: a few more units in its argument and it is infinite."""
cannot_prove = """
That its argument will grow."""
message = "{who}: {op}{in_module} gives values up to {absmax}{at_step}; float32 ends at an argument of 88.7"
fix = "Subtract the maximum before exp (logsumexp, softmax), clamp the argument, or predict the logarithm itself."
causes = [{ state = "value-nonfinite", of = "rank" }]

[thresholds.largest]
value = 1e30
unit = "value of the exponential in float32"
why = "exp(69): logits and log-variances of a model that works stay far below"

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"
*/
-- variant: tensors
SELECT
    n.artifact_id,
    t.row,
    n.proc_id,
    n.rank,
    n.step,
    n.ts_ns,
    o.text AS op,
    m.text AS module,
    CASE WHEN coalesce(m.text, '') = '' THEN '' ELSE ' of ' || m.text END AS in_module,
    printf('%.2g', t.absmax) AS absmax,
    o.text AS key
FROM node AS n
JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
JOIN string AS o ON o.id = n.op_id
LEFT JOIN string AS m ON m.id = n.module_id
WHERE n.phase = 'forward' AND t.role = 'output' AND o.text IN ('aten::exp', 'aten::expm1', 'aten::exp_', 'aten::exp2')
  AND t.absmax > $largest AND t.n_inf = 0 AND t.dtype IN ('float32', 'bfloat16')
  AND NOT EXISTS (SELECT 1 FROM birth AS b WHERE b.proc_id IS NOT DISTINCT FROM n.proc_id AND b.is_harmful AND b.step <= n.step)
QUALIFY row_number() OVER (PARTITION BY n.proc_id ORDER BY n.step, n.node_id, t.row) = 1
ORDER BY n.ts_ns, n.artifact_id, t.row;
