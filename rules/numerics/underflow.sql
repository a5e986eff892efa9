/*
title = "Values sink below what their type holds"
severity = "medium"
proves = """
The named share of the recorded half-precision gradients lies, in every sampled step, wholly in the subnormal range of
float16, below 2^-14, or is mostly zero."""
cannot_prove = """
That the lost digits matter to this run."""
message = "{who}: {n_small} of {n_tensors} float16 gradients are subnormal or mostly zero in all {n_samples} sampled steps; the first is that of {name}, with values up to {absmax}"
fix = "Scale the loss (torch.amp.GradScaler), or use bfloat16, whose range is that of float32."
causes = [{ state = "gradient-blocked", of = "rank" }]

[thresholds.smallest_normal]
value = 6.104e-5
unit = "largest absolute value of the gradient"
measured = "absmax"
why = "2^-14, below which float16 loses digits"

[thresholds.max_zero_ratio]
value = 0.85
unit = "zero / all elements"
why = "embeddings and ReLU layers stay below in dense models"

[thresholds.min_share]
value = 0.5
unit = "such gradients / float16 gradients"
measured = "n_small / n_tensors"
why = "single layers may have small gradients in a healthy run"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
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
        bool_and(t.absmax < $smallest_normal OR t.zero_ratio > $max_zero_ratio) AS is_small
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role = 'gradient' AND t.dtype = 'float16' AND t.step IS NOT NULL
    GROUP BY t.artifact_id, t.proc_id, t.rank, n.text
    HAVING count(*) >= 2
)
SELECT
    artifact_id,
    min(row) FILTER (WHERE is_small) AS row,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    min_by(name, row) FILTER (WHERE is_small) AS name,
    printf('%.2g', min_by(absmax, row) FILTER (WHERE is_small)) AS absmax,
    count(*) FILTER (WHERE is_small) AS n_small,
    count(*) AS n_tensors,
    min(n_samples) AS n_samples,
    'underflow' AS key
FROM course
GROUP BY artifact_id, proc_id, rank
HAVING count(*) FILTER (WHERE is_small) >= greatest(1, $min_share * count(*))
ORDER BY ts_ns, artifact_id, row;
