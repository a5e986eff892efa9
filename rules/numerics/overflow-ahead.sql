/*
title = "Values come close to the largest of their type"
severity = "medium"
proves = """
The recorded operator gives finite values beyond the named share of the largest value of their type, out of operands that
were further from it; the first infinity, where one follows in the recordings, comes that many steps later."""
cannot_prove = """
That the type will be left, where nothing on record was infinite later: values may stay where they are."""
message = "{who}: {op}{in_module} gives values up to {absmax}{at_step}, {ratio:percent} of the largest {dtype}{course}{chain}{lead}"
fix = "Compute this operator in float32 or bfloat16, or scale its operands before (attention: scale queries, not scores)."
causes = []

[thresholds.min_ratio]
value = 0.5
unit = "largest finite value / largest value of the type"
measured = "ratio"
why = "one doubling from the limit"

[thresholds.handed_on]
value = 0.9
unit = "largest value of an operand of the same type / largest value of the type"
why = "masks lie at the limit by design (finfo.min), and an operator that hands such values on does not make them"

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"
*/
-- variant: tensors
WITH
-- Largest values: IEEE 754, OCP 8-bit floating point.
largest (dtype, largest) AS (
    VALUES ('float16', 65504.0), ('bfloat16', 3.3895314e38), ('float8_e4m3fn', 448.0), ('float8_e5m2', 57344.0)
),
output AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        n.graph_id,
        n.node_id,
        o.text AS op,
        m.text AS module,
        t.row,
        t.dtype,
        t.absmax,
        l.largest,
        t.absmax / l.largest AS ratio
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN largest AS l ON l.dtype = t.dtype
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    WHERE n.phase = 'forward' AND t.role = 'output' AND t.n_nan + t.n_inf = 0
      -- These write constants.
      AND o.text NOT IN ('aten::masked_fill', 'aten::masked_fill_', 'aten::full', 'aten::full_like', 'aten::where', 'aten::fill_', 'aten::scalar_tensor')
),
reading AS (
    SELECT *
    FROM output AS r
    WHERE ratio >= $min_ratio
      AND NOT EXISTS (
        SELECT 1 FROM tensor AS i
        WHERE i.artifact_id = r.artifact_id AND i.node_id = r.node_id AND i.step IS NOT DISTINCT FROM r.step
          AND i.role = 'input' AND i.dtype = r.dtype AND i.absmax >= $handed_on * r.largest
      )
      AND NOT EXISTS (SELECT 1 FROM birth AS b WHERE b.proc_id IS NOT DISTINCT FROM r.proc_id AND b.is_harmful AND b.step <= r.step)
    QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY step, node_id, row) = 1
),
-- Whose output each operator read that had the largest values.
fed AS (
    SELECT
        e.artifact_id,
        e.graph_id,
        e.to_node AS node_id,
        max_by(e.from_node, (t.absmax, e.from_node)) AS source
    FROM edge AS e
    JOIN reading AS r ON r.artifact_id = e.artifact_id AND r.graph_id = e.graph_id
    JOIN tensor AS t ON t.artifact_id = e.artifact_id AND t.row = e.tensor_row
    WHERE e.kind = 'data'
    GROUP BY e.artifact_id, e.graph_id, e.to_node
),
way AS (
    SELECT
        r.artifact_id,
        r.row,
        concat_ws(' → ', o3.op, o2.op, o1.op) AS operators
    FROM reading AS r
    LEFT JOIN fed AS f1 ON f1.artifact_id = r.artifact_id AND f1.graph_id = r.graph_id AND f1.node_id = r.node_id
    LEFT JOIN fed AS f2 ON f2.artifact_id = r.artifact_id AND f2.graph_id = r.graph_id AND f2.node_id = f1.source
    LEFT JOIN fed AS f3 ON f3.artifact_id = r.artifact_id AND f3.graph_id = r.graph_id AND f3.node_id = f2.source
    LEFT JOIN (SELECT DISTINCT n.artifact_id, n.graph_id, n.node_id, s.text AS op FROM node AS n JOIN string AS s ON s.id = n.op_id) AS o1
        ON o1.artifact_id = r.artifact_id AND o1.graph_id = r.graph_id AND o1.node_id = f1.source
    LEFT JOIN (SELECT DISTINCT n.artifact_id, n.graph_id, n.node_id, s.text AS op FROM node AS n JOIN string AS s ON s.id = n.op_id) AS o2
        ON o2.artifact_id = r.artifact_id AND o2.graph_id = r.graph_id AND o2.node_id = f2.source
    LEFT JOIN (SELECT DISTINCT n.artifact_id, n.graph_id, n.node_id, s.text AS op FROM node AS n JOIN string AS s ON s.id = n.op_id) AS o3
        ON o3.artifact_id = r.artifact_id AND o3.graph_id = r.graph_id AND o3.node_id = f3.source
),
past AS (
    SELECT
        r.artifact_id,
        r.row,
        min(p.step) AS step,
        min_by(p.absmax, (p.step, p.row)) AS absmax
    FROM reading AS r
    JOIN output AS p ON p.proc_id IS NOT DISTINCT FROM r.proc_id AND p.op = r.op AND p.module IS NOT DISTINCT FROM r.module
        AND p.dtype = r.dtype AND p.step < r.step AND p.node_id = r.node_id
    GROUP BY r.artifact_id, r.row
),
next AS (
    SELECT
        r.artifact_id,
        r.row,
        min_by({'artifact_id': b.artifact_id, 'row': b.row, 'step': b.step}, (b.step, b.ordinal)) AS birth
    FROM reading AS r
    JOIN birth AS b ON b.proc_id IS NOT DISTINCT FROM r.proc_id AND b.is_harmful AND b.cause = 'overflow' AND b.step > r.step
    GROUP BY r.artifact_id, r.row
)
SELECT
    r.*,
    CASE WHEN coalesce(r.module, '') = '' THEN '' ELSE ' of ' || r.module END AS in_module,
    coalesce('; at step ' || p.step || ' it was ' || printf('%.4g', p.absmax), '') AS course,
    CASE WHEN w.operators = '' THEN '' ELSE '; its largest operand came by ' || w.operators END AS chain,
    CASE WHEN x.birth IS NULL THEN ''
        ELSE '; ' || (x.birth.step - r.step) || ' steps later, at step ' || x.birth.step || ', the type was left' END AS lead,
    x.birth.step - r.step AS lead_steps,
    CASE WHEN x.birth IS NOT NULL
        THEN [{'artifact_id': x.birth.artifact_id, 'row': x.birth.row, 'note': 'the first infinity'}]
    END AS evidence,
    r.op AS key
FROM reading AS r
LEFT JOIN way AS w ON w.artifact_id = r.artifact_id AND w.row = r.row
LEFT JOIN past AS p ON p.artifact_id = r.artifact_id AND p.row = r.row
LEFT JOIN next AS x ON x.artifact_id = r.artifact_id AND x.row = r.row
ORDER BY r.ts_ns, r.artifact_id, r.row;
-- against: tensors
SELECT
    t.artifact_id,
    max_by(t.row, (t.absmax, -t.row)) AS row,
    'tensor' AS "table",
    t.proc_id,
    'The largest recorded value of type float16 is ' || printf('%.4g', max(t.absmax)) || ', of 65504 that it can hold' AS says
FROM tensor AS t
WHERE t.dtype = 'float16' AND t.node_id IS NOT NULL AND t.role = 'output'
GROUP BY t.artifact_id, t.proc_id
HAVING bool_and(t.n_nan = 0 AND t.n_inf = 0) AND max(t.absmax) < $min_ratio * 65504
ORDER BY t.artifact_id, t.proc_id;
