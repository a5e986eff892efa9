/*
title = "Values come close to the largest of their type"
severity = "medium"
proves = """
The recorded operator reads or writes finite values beyond the named share of the largest value of their type; the first
infinity, where one follows in the recordings, comes that many steps later."""
cannot_prove = """
That the type will be left: values may stay where they are."""
message = "{who}: {op}{in_module} holds values up to {absmax}{at_step}, {ratio:percent} of the largest {dtype}"
fix = "Compute this operator in float32 or bfloat16, or scale its operands before (attention: scale queries, not scores)."
causes = [{ state = "value-nonfinite", of = "rank" }]

[thresholds.min_ratio]
value = 0.5
unit = "largest finite value / largest value of the type"
measured = "ratio"
why = "one doubling from the limit"

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"
*/
-- variant: tensors
WITH
reading AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        n.node_id,
        o.text AS op,
        m.text AS module,
        t.row,
        t.dtype,
        t.absmax,
        t.absmax / CASE t.dtype WHEN 'float16' THEN 65504.0 WHEN 'float8_e4m3fn' THEN 448.0 WHEN 'float8_e5m2' THEN 57344.0 END AS ratio
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    WHERE n.phase = 'forward' AND t.role = 'output' AND t.dtype IN ('float16', 'float8_e4m3fn', 'float8_e5m2')
      AND t.n_nan + t.n_inf = 0
      -- Masks lie at the limit by design.
      AND o.text NOT IN ('aten::masked_fill', 'aten::full', 'aten::full_like', 'aten::where', 'aten::fill_', 'aten::add', 'aten::_to_copy')
)
SELECT
    *,
    CASE WHEN coalesce(module, '') = '' THEN '' ELSE ' of ' || module END AS in_module,
    op AS key
FROM reading
WHERE ratio >= $min_ratio
  AND NOT EXISTS (SELECT 1 FROM birth AS b WHERE b.proc_id IS NOT DISTINCT FROM reading.proc_id AND b.is_harmful AND b.step <= reading.step)
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY step, node_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
