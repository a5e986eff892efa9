/*
title = "No label of the batch counts, or labels lie outside of the classes"
severity = "critical"
proves = """
The loss was a mean over no label at all (0/0), as the recorded operators show; or a label was refused because it is
outside of the classes of the model."""
cannot_prove = """
How the batch came to be so: truncation that cuts off every answer, a mask that is inverted, or a class that was added to
the data and not to the model."""
message = "{who}{at_step}: {what}"
fix = "{remedy}"
causes = [{ state = "batch-unusable", of = "rank" }]

[variant.tensors]
needs = ["tensor", "node"]
strength = "strong"

[variant.log]
needs = ["log_event"]
strength = "strong"
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
    'every label of the batch is ignored, so ' || o.text || ' takes the mean of nothing' AS what,
    'Leave out batches without a valid label, or divide by max(count, 1); check truncation and the mask that sets labels to ignore_index.' AS remedy,
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
    'a label is outside of the classes: ' || e.message AS what,
    'Compare the number of classes of the model''s head with the largest label of the data; pass ignore_index for labels that mark nothing.' AS remedy,
    'proof' AS strength,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class = 'data.label-range' AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
