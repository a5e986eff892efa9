/*
title = "An index was outside the tensor that it indexes"
severity = "critical"
cannot_prove = """
Which Python line launched that kernel on a GPU: the error surfaces at a later call unless CUDA_LAUNCH_BLOCKING=1 was set."""
message = "{who}: {what}{at_step}{detail}"
fix = "Check the range of labels, token ids and positions against the table they index (vocabulary size, number of classes, maximum position) on the CPU; run once with CUDA_LAUNCH_BLOCKING=1 to see the call."
causes = [{ state = "index-out-of-range", of = "rank" }, { state = "context-poisoned", of = "process" }]
requires = [{ state = "value-nonfinite", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution"]

[variant.assertion]
needs = ["log_event"]
strength = "strong"
proves = """
A kernel found an index, label or token id outside the range that its operand allows. Every later CUDA call of the
process returns the same error."""

[variant.host]
needs = ["log_event"]
strength = "strong"
proves = """
An operator on the CPU found an index, label or token id outside the range that its operand allows, and raised."""
says = "The operator ran on the CPU, which checks each index and names the call; no device was involved."

[variant.error]
needs = ["log_event"]
strength = "indication"
proves = """
The CUDA runtime reports that an assertion in a kernel failed, as indices out of range make them. Every later CUDA
call of the process returns the same error."""
says = "The assertion's own line, which names the condition, is not in the log."
*/
-- variant: assertion
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'a device-side assertion failed' AS what,
    e.fields ->> 'condition' AS condition,
    e.fields ->> 'function' AS op,
    ': ' || coalesce(e.fields ->> 'function', 'a kernel') || ' found that `' || (e.fields ->> 'condition') || '` does not hold' AS detail,
    -- A check of the values themselves is no index: it reports what an earlier operator produced.
    CASE WHEN regexp_matches(lower(e.fields ->> 'condition'), 'isnan|isfinite|isinf|!= ?inf|>= ?zero|>= ?0(\.0+)?f?$|probability|input_val')
        AND NOT regexp_matches(lower(e.fields ->> 'condition'), 'idx|index|label|n_classes|target|src') THEN 'symptom' END AS role,
    e.fields ->> 'condition' AS key
FROM log AS e
WHERE e.class = 'cuda.assert'
  AND (e.fields ->> 'condition') IS NOT NULL
  AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: host
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    CASE WHEN e.class = 'data.label-range' THEN 'a label is outside the range of the classes' ELSE 'an index is outside its table' END AS what,
    e.where_in_code,
    ': ' || e.said || coalesce(', in ' || e.where_in_code, '') AS detail,
    ['index-out-of-range', 'rank-failed'] AS causes,
    CASE WHEN e.completed THEN 'medium' END AS severity,
    e.signature AS key
FROM reported_failure AS e
WHERE e.class IN ('data.label-range', 'data.index')
  AND e.role = 'primary'
  AND NOT e.moved_on
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: error
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    'a device-side assertion failed' AS what,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    coalesce('; it surfaced in ' || u.function || ' (' || u.file || ':' || u.line || ')', '') AS detail,
    e.signature AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class = 'cuda.assert'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
