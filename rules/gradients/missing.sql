/*
title = "Trainable parameters get no gradient"
severity = "high"
proves = """
In every sampled step the named parameters require a gradient and have none after the backward, while others have one; or
an adapter's parameters are on record as placed and are not among those that train."""
cannot_prove = """
Whether that is meant: a head that the task does not use has no gradient either. Where the path is cut shows only in the
graph of the forward."""
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

[variant.tensors]
needs = ["tensor"]
strength = "proof"

[variant.log]
needs = ["log_event"]
strength = "strong"
says = "The warning says that a checkpointed block got no input that requires a gradient: with reentrant checkpointing nothing inside of it can learn. Which parameters that are, it does not say."
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
    CASE WHEN n_cut < $min_share * n_trainable THEN 'medium' ELSE 'high' END AS severity,
    names[1] AS key
FROM (SELECT * FROM cut UNION ALL SELECT * FROM frozen)
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY n_cut DESC, artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'the checkpointed blocks' AS first_name,
    'no input of a checkpointed block requires a gradient, so nothing inside of the blocks learns' AS what,
    e.signature AS key
FROM log AS e
WHERE e.signature = 'checkpoint-no-grad-inputs' AND e.role <> 'noise'
  -- A loss that falls shows that something learns all the same.
  AND NOT EXISTS (
    SELECT 1 FROM training_curve AS c
    WHERE c.proc_id IS NOT DISTINCT FROM e.proc_id AND c.name = 'loss' AND c.n >= 4 AND c.preference = 1
    HAVING median(c.value) FILTER (WHERE c.place * 4 > c.n * 3) < 0.9 * median(c.value) FILTER (WHERE c.place * 4 <= c.n)
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
