/*
title = "Exponentials are at the end of their range"
severity = "medium"
proves = """
A recorded exponential gave finite values beyond 1e30 in float32: a few more units in its argument and it is infinite. Or
the operand of a recorded softmax or sigmoid had values of 100 and more that are no masks: beyond 88, or below -100, the
exponential in it leaves float32, and what it gives is one at one place and zero elsewhere. Where the backward of that
operator is on record as well, it is also told whether any gradient came through."""
cannot_prove = """
That its argument will grow; without a recorded backward, that the gradient is lost."""
message = "{who}: {op}{in_module} {what}"
fix = "{remedy}"
causes = []

[thresholds.largest]
value = 1e30
unit = "value of the exponential in float32"
why = "exp(69): logits and log-variances of a model that works stay far below"

[thresholds.min_logit]
value = 100.0
unit = "largest absolute value of the operand of a softmax or sigmoid"
why = "exp leaves float32 beyond 88.7 upwards and below -103 downwards; signs are not on record"

[thresholds.max_logit]
value = 9000.0
unit = "the same"
why = "constants that stand for a mask begin at 1e4; what no sum, selection or copy gave is no mask at any size"

[thresholds.max_passed]
value = 1e-6
unit = "largest gradient that the backward gave / largest value that it read"
why = "the derivative of a softmax that shares out anything is a hundred thousand times as large"

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"
*/
-- variant: tensors
WITH
operand AS (
    SELECT
        n.artifact_id,
        t.row,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        n.node_id,
        n.sequence,
        o.text AS op,
        m.text AS module,
        t.role,
        t.absmax,
        t.dtype
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    WHERE n.phase = 'forward' AND t.n_nan + t.n_inf = 0
      AND NOT EXISTS (SELECT 1 FROM birth AS b WHERE b.proc_id IS NOT DISTINCT FROM n.proc_id AND b.is_harmful AND b.step <= n.step)
),
writer AS (
    SELECT
        e.artifact_id,
        e.tensor_row AS row,
        min(o.text) AS op
    FROM edge AS e
    JOIN node AS n ON n.artifact_id = e.artifact_id AND n.graph_id = e.graph_id AND n.node_id = e.from_node
    JOIN string AS o ON o.id = n.op_id
    GROUP BY e.artifact_id, e.tensor_row
),
passed AS (
    -- What the backward of the same operator gave, beside the largest value that it read.
    SELECT
        n.artifact_id,
        n.step,
        n.sequence,
        min(t.row) AS row,
        max(t.absmax) FILTER (WHERE t.role = 'output') / nullif(max(t.absmax) FILTER (WHERE t.role = 'input'), 0) AS ratio
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS g ON g.id = n.autograd_id
    WHERE n.phase = 'backward' AND (g.text LIKE 'Softmax%' OR g.text LIKE 'Sigmoid%')
    GROUP BY n.artifact_id, n.step, n.sequence
),
told AS (
    SELECT
        e.*,
        'gives values up to ' || printf('%.2g', e.absmax) || ' at step ' || e.step || '; float32 ends at an argument of 88.7' AS what,
        'Subtract the maximum before exp (logsumexp, softmax), clamp the argument, or predict the logarithm itself.' AS remedy,
        'medium' AS severity,
        [] AS causes,
        NULL::BIGINT AS backward_row,
        1 AS place
    FROM operand AS e
    WHERE e.role = 'output' AND e.op IN ('aten::exp', 'aten::expm1', 'aten::exp_', 'aten::exp2')
      AND e.absmax > $largest AND e.dtype IN ('float32', 'bfloat16')
    UNION ALL
    SELECT
        e.*,
        'reads values up to ' || printf('%.4g', e.absmax) || ' at step ' || e.step
            || CASE WHEN p.ratio <= $max_passed
                THEN ', and its backward lets next to nothing through (' || printf('%.1g', p.ratio) || ' of what it read)'
                ELSE ': it is one at one place' END AS what,
        'Scale what goes into it (attention: by 1/sqrt(d)), normalise its input, or bound the logits.' AS remedy,
        CASE WHEN p.ratio <= $max_passed THEN 'high' ELSE 'info' END AS severity,
        CASE WHEN p.ratio <= $max_passed THEN ['gradient-blocked'] ELSE [] END AS causes,
        CASE WHEN p.ratio <= $max_passed THEN p.row END AS backward_row,
        CASE WHEN p.ratio <= $max_passed THEN 0 ELSE 2 END AS place
    FROM operand AS e
    LEFT JOIN writer AS w ON w.artifact_id = e.artifact_id AND w.row = e.row
    LEFT JOIN passed AS p ON p.artifact_id = e.artifact_id AND p.step IS NOT DISTINCT FROM e.step AND p.sequence = e.sequence
    WHERE e.role = 'input' AND e.op IN ('aten::_softmax', 'aten::softmax', 'aten::sigmoid', 'aten::sigmoid_')
      AND e.absmax >= $min_logit
      AND (e.absmax <= $max_logit OR w.op NOT IN ('aten::add', 'aten::add_', 'aten::sub', 'aten::where', 'aten::masked_fill', 'aten::masked_fill_', 'aten::minimum', 'aten::clone'))
)
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    step,
    ts_ns,
    op,
    module,
    CASE WHEN coalesce(module, '') = '' THEN '' ELSE ' of ' || module END AS in_module,
    what,
    remedy,
    severity,
    causes,
    CASE WHEN backward_row IS NOT NULL
        THEN [{'artifact_id': artifact_id, 'row': backward_row, 'note': 'its backward'}]
    END AS evidence,
    op AS key
FROM told
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY place, step, node_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
