/*
title = "No label of the batch counts, or labels lie outside of the classes"
severity = "critical"
cannot_prove = """
How the batch came to be so: truncation that cuts off every answer, a mask that is inverted, or a class that was added to
the data and not to the model."""
message = "{who}{at_step}: {what}"
fix = "{remedy}"
causes = [{ state = "batch-unusable", of = "rank" }]

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"
proves = "The loss was a mean over no label at all (0/0), as the recorded operators show."

[thresholds.min_empty]
value = 3
unit = "logged losses, all of them 0 or NaN"
why = "a single logged loss of zero can be one empty batch"

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
A label was refused because it is outside of the classes of the model, or the loss was a mean over no label, as the
log says."""

[variant.dropped]
needs = ["log_event", "sample"]
strength = "strong"
proves = """
A library says that no label of the data counts, or leaves out samples whose labels it could not place, and the loss
is 0 or NaN from the first step on."""
says = "The library warns of each sample that it leaves out; that these were all is read from the loss, which some trainers log as 0 where it is NaN."
*/
-- variant: tensors
SELECT
    b.artifact_id,
    b.row,
    b.proc_id,
    b.rank,
    b.step,
    b.ts_ns,
    o.text AS op,
    b.cause,
    'no label of the batch counts (all are ignored, or of classes with weight 0), so ' || o.text || ' takes the mean of nothing' AS what,
    'Leave out batches without a valid label, or divide by max(count, 1); check truncation, the mask that sets labels to ignore_index, and class weights of 0.' AS remedy,
    'proof' AS strength,
    b.cause AS key
FROM birth AS b
JOIN string AS o ON o.id = b.op_id
-- A count of zero that the job divides by itself is told by numerics-nan-provenance: what is counted is not on record.
WHERE b.cause = 'no-valid-targets' AND b.is_harmful AND b.phase = 'forward'
QUALIFY row_number() OVER (PARTITION BY b.proc_id ORDER BY b.ordinal) = 1
ORDER BY b.step, b.artifact_id, b.row;
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
    e.fields ->> 'index' AS label,
    CASE e.class
        WHEN 'data.label-range' THEN 'a label is outside of the classes: '
        ELSE 'no label of the data counts: '
    END || e.message AS what,
    CASE e.class
        WHEN 'data.label-range' THEN 'Compare the number of classes of the model''s head with the largest label of the data; pass ignore_index for labels that mark nothing.'
        ELSE 'Print one sample''s labels and the tokens of the mark behind which they are to begin (template, separator, chat role): it is looked for token by token, and is not in the data as it is tokenized.'
    END AS remedy,
    'proof' AS strength,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class IN ('data.label-range', 'data.no-valid-labels', 'data.labels-ignored') AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: dropped
WITH
course AS (
    SELECT
        proc_id,
        count(*) AS n_losses,
        min(step) AS step
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY proc_id
    -- A NaN is neither above nor below.
    HAVING count(*) >= $min_empty AND bool_and(value = 0 OR isnan(value))
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    c.step,
    e.ts_ns,
    e.line,
    'the loss is 0 or NaN in all ' || c.n_losses || ' logged steps, and samples are left out of it because their labels were not found: '
        || briefly(e.message, 160) AS what,
    'Print one sample''s labels and the tokens of the mark behind which they are to begin (template, separator, chat role): it is looked for token by token, so spaces, a pad token inside of it, another tokenizer version or truncation hide it. Learn nothing from the hint on lengths before that.' AS remedy,
    e.signature AS key
FROM log AS e
JOIN course AS c ON c.proc_id IS NOT DISTINCT FROM e.proc_id
WHERE e.class IN ('data.no-valid-labels', 'data.labels-ignored')
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
