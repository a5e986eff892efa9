/*
title = "Trainable parameters get no gradient"
severity = "high"
cannot_prove = """
Whether that is meant: a head that the task does not use has no gradient either. Where the path is cut shows only in the
graph of the forward. A step without gradients does not tell a cut path from an optimizer that holds other parameters
than the model's."""
message = "{who}: {what}"
fix = "Look for detach(), torch.no_grad(), .item() or .data on the way from {first_name} to the loss, and for a call of requires_grad_(False) behind the place where it was made trainable. With gradient checkpointing, use_reentrant=False or model.enable_input_require_grads()."
causes = [{ state = "gradient-blocked", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation"]

[thresholds.min_samples]
value = 2
unit = "sampled steps, all of them without this gradient"
why = "a branch that one batch does not take has no gradient in that step"

[thresholds.min_share]
value = 0.05
unit = "parameters without a gradient / trainable parameters"
measured = "n_cut / n_trainable"
why = "a pooler or head that the task leaves unused is a few of hundreds, and common in healthy jobs: told, not judged"

[thresholds.min_zero_norms]
value = 5
unit = "gradient norms of exactly zero in a row, up to the last that was logged"
measured = "n_zero"
why = "an adapter's first step, a batch without a label or a skipped step has one; norms of learning models are never exactly zero in a row"

[thresholds.max_fall]
value = 0.1
unit = "(loss when the zeros begin - loss at the end) / the former, medians of halves"
why = "a loss that falls shows that gradients arrive, and the logged norm is not theirs"

[thresholds.max_rise]
value = 5.0
unit = "largest loss from the first zero on / their median"
why = "batches differ by two or three times; beyond it the weights moved"

[variant.tensors]
needs = ["tensor"]
strength = "proof"
proves = """
In every sampled step the named parameters have no gradient after the backward, or do not require one, while others
have one."""

[variant.metrics]
needs = ["sample"]
strength = "strong"
proves = "The gradient norm is exactly zero in step after step while the loss is not."
says = "A norm of zero says that no gradient reached any trainable parameter, or that the norm was taken where there are none: before the backward, or of an empty list. Which call cut them off is not in the metrics."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
torch refused a loss without a graph or a step of an optimizer none of whose parameters had a gradient, or warned of a
checkpointed block without an input that requires one, as is cited."""
says = "What torch refused, or warned of, is told. A checkpointed block got no input that requires a gradient: with reentrant checkpointing nothing inside of it can learn. Which parameters that are, it does not say."
*/
-- variant: tensors
WITH
course AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        min(row) AS row,
        min(ts_ns) AS ts_ns,
        min(step) AS step,
        bool_and(coalesce(is_missing, FALSE)) AND count(*) >= $min_samples AS is_cut
    FROM gradient_reading
    GROUP BY artifact_id, proc_id, rank, name
),
cut AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) FILTER (WHERE is_cut) AS row,
        min(ts_ns) FILTER (WHERE is_cut) AS ts_ns,
        min(step) AS step,
        count(*) FILTER (WHERE is_cut) AS n_cut,
        count(*) AS n_trainable,
        list(name ORDER BY name) FILTER (WHERE is_cut) AS names,
        list(row ORDER BY name) FILTER (WHERE is_cut) AS rows,
        'have no gradient in any sampled step' AS how
    FROM course
    GROUP BY artifact_id, proc_id, rank
    HAVING count(*) FILTER (WHERE is_cut) BETWEEN 1 AND count(*) - 1
),
-- Adapters that lie on the device and are not among what trains.
frozen AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns,
        (SELECT min(c.step) FROM course AS c WHERE c.proc_id IS NOT DISTINCT FROM t.proc_id) AS step,
        count(DISTINCT n.text) AS n_cut,
        count(DISTINCT n.text) AS n_trainable,
        list_sort(list_distinct(list(n.text ORDER BY n.text))) AS names,
        list(t.row ORDER BY n.text, t.row) AS rows,
        'of an adapter are frozen: they require no gradient' AS how
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role = 'placement'
      AND contains(lower(n.text), 'lora_')
      AND EXISTS (SELECT 1 FROM course AS c WHERE c.proc_id IS NOT DISTINCT FROM t.proc_id)
      AND NOT EXISTS (
        SELECT 1 FROM course AS c WHERE c.proc_id IS NOT DISTINCT FROM t.proc_id AND contains(lower(c.name), 'lora_')
      )
    GROUP BY t.artifact_id, t.proc_id, t.rank
)
SELECT
    artifact_id,
    row,
    proc_id,
    rank,
    step,
    ts_ns,
    n_cut,
    n_trainable,
    names[1] AS first_name,
    names[1] AS module,
    n_cut || ' parameters ' || how || ': ' || list_aggregate(names[1:4], 'string_agg', ', ')
        || CASE WHEN n_cut > 4 THEN ', …' ELSE '' END AS what,
    [{'artifact_id': artifact_id, 'row': r, 'table': 'tensor'} FOR r IN rows[1:4]] AS evidence,
    CASE WHEN n_cut < $min_share * n_trainable THEN 'medium' ELSE 'high' END AS severity,
    names[1] AS key
FROM (SELECT * FROM cut UNION ALL SELECT * FROM frozen)
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY n_cut DESC, artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- against: tensors
SELECT
    artifact_id,
    max_by(row, (step, name)) AS row,
    'tensor' AS "table",
    proc_id,
    'All ' || count(DISTINCT name) || ' parameters that require a gradient have one in all ' || count(DISTINCT step) || ' sampled steps' AS says
FROM gradient_reading
GROUP BY artifact_id, proc_id
HAVING bool_and(NOT coalesce(is_missing, FALSE) AND gradient_norm IS NOT NULL) AND count(DISTINCT step) >= $min_samples
ORDER BY artifact_id, proc_id;
-- variant: metrics
WITH
norm AS (
    SELECT
        *,
        max(place) FILTER (WHERE value <> 0) OVER (PARTITION BY artifact_id, proc_id) AS last_real
    FROM training_curve
    WHERE name = 'grad_norm' AND preference = 1
),
zero AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min(line) AS line,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        count(*) AS n_zero,
        max(last_real) AS last_real,
        min(n) AS n_norms
    FROM norm
    WHERE place > coalesce(last_real, 0) AND value = 0
    GROUP BY artifact_id, proc_id, rank
    HAVING count(*) >= $min_zero_norms
),
-- Losses from the first zero on.
loss AS (
    SELECT
        z.artifact_id,
        z.proc_id,
        c.value,
        row_number() OVER (PARTITION BY z.artifact_id, z.proc_id ORDER BY c.row) * 2 > count(*) OVER (PARTITION BY z.artifact_id, z.proc_id) AS is_late
    FROM zero AS z
    JOIN training_curve AS c ON c.artifact_id = z.artifact_id AND c.proc_id IS NOT DISTINCT FROM z.proc_id
    WHERE c.name = 'loss' AND c.preference = 1 AND coalesce(c.line >= z.line, c.row >= z.row)
)
SELECT
    z.artifact_id,
    z.row,
    z.line,
    z.proc_id,
    z.rank,
    z.step,
    z.ts_ns,
    z.n_zero,
    'what the optimizer is to train' AS first_name,
    'the gradient norm is exactly 0 ' || CASE
        WHEN z.last_real IS NULL THEN 'in all ' || z.n_zero || ' logged steps'
        ELSE 'from step ' || coalesce(CAST(z.step AS VARCHAR), '?') || ' to the end (' || z.n_zero || ' logged steps), and was not before' END
        || ', while the loss is not and holds its course: no gradient reaches a parameter, or the norm is taken where there are none' AS what,
    CASE WHEN z.last_real IS NULL
        THEN 'Print which parameters have requires_grad before the first step: a frozen adapter (is_trainable=True, model.train(), a second wrapping) or a path cut by detach() or no_grad() leaves none.'
        ELSE 'Look at what the job did right before step ' || coalesce(CAST(z.step AS VARCHAR), '?') || ' (saving, evaluating, loading or switching an adapter): something called requires_grad_(False), set the adapter to inference mode or changed what the loss is computed from. Compare requires_grad before and after.'
    END AS fix,
    'critical' AS severity,
    'norm-zero' AS key
FROM zero AS z
WHERE (
    SELECT count(*) >= 4 AND min(abs(l.value)) > 0 AND bool_and(isfinite(l.value))
        -- Weights that stay as they are give no loss far above the usual ones.
        AND max(l.value) <= $max_rise * median(l.value)
        AND median(l.value) FILTER (WHERE l.is_late) >= (1 - $max_fall) * median(l.value) FILTER (WHERE NOT l.is_late)
    FROM loss AS l
    WHERE l.artifact_id = z.artifact_id AND l.proc_id IS NOT DISTINCT FROM z.proc_id
)
-- Gradients that were recorded show that the norm is not that of what trains.
AND NOT EXISTS (
    SELECT 1 FROM gradient_reading AS g WHERE g.proc_id IS NOT DISTINCT FROM z.proc_id AND g.gradient_norm > 0 AND g.step >= z.step
)
QUALIFY row_number() OVER (PARTITION BY z.proc_id ORDER BY z.artifact_id, z.row) = 1
ORDER BY z.ts_ns, z.artifact_id, z.row;
-- variant: log
WITH
told AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.step,
        e.ts_ns,
        e.line,
        e.signature,
        NULL AS where_in_code,
        1 AS place,
        CASE e.signature WHEN 'nothing-trainable' THEN 'the parameters that are to train' ELSE 'the checkpointed blocks' END AS first_name,
        CASE e.signature
            WHEN 'nothing-trainable' THEN 'the job counts no parameter that is trainable'
            ELSE 'no input of a checkpointed block requires a gradient, so nothing inside of the blocks learns'
        END AS what,
        NULL AS fix,
        'high' AS severity,
        ['gradient-blocked'] AS causes
    FROM log AS e
    WHERE e.signature IN ('checkpoint-no-grad-inputs', 'nothing-trainable') AND e.role <> 'noise'
    -- A loss that falls shows that something learns all the same.
    AND NOT EXISTS (
        SELECT 1 FROM training_curve AS c
        WHERE c.proc_id IS NOT DISTINCT FROM e.proc_id AND c.name = 'loss' AND c.n >= 4 AND c.preference = 1
        HAVING median(c.value) FILTER (WHERE c.place * 4 > c.n * 3) < 0.9 * median(c.value) FILTER (WHERE c.place * 4 <= c.n)
    )
    UNION ALL
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.step,
        e.ts_ns,
        e.line,
        e.signature,
        e.where_in_code,
        2,
        'the parameters',
        CASE e.signature
            WHEN 'no-grad-fn' THEN 'the loss does not depend on anything that requires a gradient: ' || e.said
            ELSE 'none of the parameters that the optimizer holds had a gradient when the loss scaler looked: ' || e.said
        END,
        CASE WHEN e.signature = 'scaler-no-gradients'
            THEN 'Look for what cuts the loss off from the parameters: torch.tensor(...) of computed values, .item(), .detach(), .numpy(), no_grad(), a constant returned for an empty batch. If nothing does, the optimizer holds other parameters: make it after .to(device), wrapping and adapters, and call backward on scaler.scale(loss).'
        END,
        'critical',
        ['gradient-blocked', 'rank-failed']
    FROM reported_failure AS e
    WHERE e.signature IN ('no-grad-fn', 'scaler-no-gradients') AND e.role = 'primary'
)
SELECT
    * EXCLUDE (place, signature),
    signature AS key
FROM told
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY place, ts_ns NULLS LAST, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
