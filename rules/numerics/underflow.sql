/*
title = "Values sink below what their type holds"
severity = "medium"
cannot_prove = """
That the lost digits matter to this run."""
message = "{who}: {what}"
fix = "Scale the loss (torch.amp.GradScaler), or use bfloat16, whose range is that of float32."
causes = [{ state = "gradient-blocked", of = "rank" }]

[thresholds.smallest_normal]
value = 6.104e-5
unit = "largest absolute value of the gradient, where the share of subnormal elements was not recorded"
why = "2^-14, below which float16 loses digits"

[thresholds.max_subnormal]
value = 0.5
unit = "subnormal / elements that are not zero"
why = "the typical element has lost digits; scaled gradients of a healthy run keep to a few percent"

[thresholds.max_zero_ratio]
value = 0.85
unit = "zero / all elements"
why = "embeddings and ReLU layers stay below in dense models"

[thresholds.min_share]
value = 0.5
unit = "elements of such gradients / elements of float16 gradients"
measured = "share"
why = "single layers may have small gradients in a healthy run"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
proves = """
The named share of the elements of recorded float16 gradients lies, in every sampled step, in tensors most of whose
values that are not zero are subnormal, below 2^-14, or which are mostly zero."""

[variant.activations]
needs = ["tensor", "node"]
strength = "strong"
proves = "A recorded operator gave float16 values most of which are subnormal, below 2^-14."
says = "Operators are on record for single steps only."
*/
-- variant: tensors
WITH
course AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        n.text AS name,
        min(t.row) AS row,
        min(t.step) AS step,
        min(t.ts_ns) AS ts_ns,
        count(*) AS n_samples,
        max(t.absmax) AS absmax,
        min(t.subnormal_ratio / nullif(1 - t.zero_ratio, 0)) AS subnormal,
        min(t.zero_ratio) AS zero,
        max(coalesce(list_aggregate(CAST(s.text AS JSON)::BIGINT[], 'product'), 1)) AS n_elements,
        bool_and(coalesce(t.subnormal_ratio > $max_subnormal * (1 - t.zero_ratio), t.absmax < $smallest_normal) OR t.zero_ratio > $max_zero_ratio) AS is_small
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    LEFT JOIN string AS s ON s.id = t.shape_id
    WHERE t.role = 'gradient' AND t.dtype = 'float16' AND t.step IS NOT NULL
    GROUP BY t.artifact_id, t.proc_id, t.rank, n.text
    HAVING count(*) >= 2
),
told AS (
    SELECT
        *,
        name || CASE
            WHEN subnormal > $max_subnormal THEN ': at least ' || printf('%.0f', 100 * subnormal) || ' % of what is not zero is subnormal'
            WHEN zero > $max_zero_ratio THEN ': at least ' || printf('%.0f', 100 * zero) || ' % is zero'
            ELSE ': no value above ' || printf('%.2g', absmax)
        END AS note
    FROM course
)
SELECT
    artifact_id,
    min(row) FILTER (WHERE is_small) AS row,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    min_by(name, row) FILTER (WHERE is_small) AS module,
    count(*) FILTER (WHERE is_small) AS n_small,
    count(*) AS n_tensors,
    sum(n_elements) FILTER (WHERE is_small) / sum(n_elements) AS share,
    count(*) FILTER (WHERE is_small) || ' of ' || count(*) || ' float16 gradients, '
        || printf('%.0f', 100 * sum(n_elements) FILTER (WHERE is_small) / sum(n_elements))
        || ' % of their elements, are subnormal or mostly zero in all ' || min(n_samples) || ' sampled steps; of '
        || min_by(note, row) FILTER (WHERE is_small) AS what,
    (list({'artifact_id': artifact_id, 'row': row, 'note': note} ORDER BY row) FILTER (WHERE is_small))[2:9] AS evidence,
    'underflow' AS key
FROM told
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE is_small) > 0
   AND sum(n_elements) FILTER (WHERE is_small) >= $min_share * sum(n_elements)
ORDER BY ts_ns, artifact_id, row;
-- variant: activations
SELECT
    n.artifact_id,
    t.row,
    n.proc_id,
    n.rank,
    n.step,
    n.ts_ns,
    o.text AS op,
    m.text AS module,
    o.text || CASE WHEN coalesce(m.text, '') = '' THEN '' ELSE ' of ' || m.text END || ' gives float16 values of which '
        || printf('%.0f', 100 * t.subnormal_ratio) || ' % are subnormal and ' || printf('%.0f', 100 * t.zero_ratio) || ' % zero, at step ' || n.step AS what,
    'info' AS severity,
    [] AS causes,
    o.text AS key
FROM node AS n
JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
JOIN string AS o ON o.id = n.op_id
LEFT JOIN string AS m ON m.id = n.module_id
WHERE n.phase = 'forward' AND t.role = 'output' AND t.dtype = 'float16' AND t.n_nan + t.n_inf = 0
  AND t.subnormal_ratio > $max_subnormal * (1 - t.zero_ratio)
  -- Shares of many places are small by design.
  AND o.text NOT IN ('aten::_softmax', 'aten::softmax', 'aten::native_dropout')
QUALIFY row_number() OVER (PARTITION BY n.proc_id ORDER BY n.step, n.node_id, t.row) = 1
ORDER BY n.ts_ns, n.artifact_id, t.row;
