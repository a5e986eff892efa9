/*
title = "The gradient scaler is used out of order"
severity = "critical"
cannot_prove = """
Which line is at fault: the traceback shows the call that was refused, not the one that is missing."""
message = "{who}{at_step}: {what}"
fix = "{remedy}"
causes = [{ state = "rank-failed", of = "rank" }, { state = "weights-unmoved", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping"]

[thresholds.min_samples]
value = 3
unit = "sampled steps"
why = "two equal products can be chance"

[thresholds.max_spread]
value = 0.01
unit = "(largest - smallest) / largest product of norm and scale"
why = "norms of unclipped gradients of different batches differ by several percent; clipped ones by rounding"

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The scaler refused a call: unscale, step or update are missing, doubled or in the wrong order, or gradients are in a
type that it does not take."""

[variant.tensors]
needs = ["tensor", "sample"]
strength = "strong"
proves = """
The recorded gradients, times the loss scale, have the same norm in every step: they were clipped while they still
carried the scale."""
says = "That gradients are clipped is read from their norms, which are all the same once multiplied by the loss scale, and far below the norm that was logged."
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.where_in_code,
    'the gradient scaler refused a call: ' || e.message AS what,
    CASE
        WHEN contains(e.message, 'FP16 gradients')
            THEN 'Keep trainable parameters in float32 and let autocast compute in half precision; find the parameters that .half() or a loaded state made float16.'
        WHEN contains(e.message, 'after step')
            THEN 'Call scaler.update() once at the end of every iteration, after scaler.step(optimizer).'
        WHEN contains(e.message, 'already been called')
            THEN 'Call unscale_ once per optimizer and iteration, and scaler.update() at its end.'
        ELSE 'Call backward on scaler.scale(loss), and hand to scaler.step the optimizer that holds these parameters.'
    END AS remedy,
    'proof' AS strength,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'code.amp' AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: tensors
WITH
total AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        step,
        min(row) AS row,
        min(ts_ns) AS ts_ns,
        sqrt(sum(gradient_norm * gradient_norm)) AS norm
    FROM gradient_reading
    WHERE gradient_norm IS NOT NULL AND isfinite(gradient_norm)
    GROUP BY artifact_id, proc_id, rank, step
),
scaled AS (
    SELECT
        t.*,
        t.norm * s.value AS product,
        n.value AS logged
    FROM total AS t
    JOIN training_curve AS s ON s.proc_id IS NOT DISTINCT FROM t.proc_id AND s.name = 'loss_scale' AND s.step = t.step
        AND s.preference = 1
    JOIN training_curve AS n ON n.proc_id IS NOT DISTINCT FROM t.proc_id AND n.name = 'grad_norm' AND n.step = t.step
        AND n.preference = 1
    WHERE s.value > 1
)
SELECT
    artifact_id,
    min(row) AS row,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    round(median(product), 3) AS clip,
    'gradients are clipped to ' || round(median(product), 3) || ' while they still carry the loss scale: what reaches the optimizer has the norm '
        || printf('%.2g', median(norm)) || ', ' || printf('%.3g', median(logged)) || ' was logged' AS what,
    'Call scaler.unscale_(optimizer) before clip_grad_norm_.' AS remedy,
    'clipped-scaled' AS key
FROM scaled
GROUP BY artifact_id, proc_id, rank
HAVING count(*) >= $min_samples
   AND (max(product) - min(product)) <= $max_spread * max(product)
   AND min(logged) > 10 * max(product)
   AND max(logged) - min(logged) > $max_spread * max(logged)
ORDER BY ts_ns, artifact_id, row;
