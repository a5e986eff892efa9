/*
title = "A tensor that backward needs was changed in place"
severity = "critical"
proves = """
Autograd had saved a tensor for backward, and its version counter says that it was written to before backward came to use
it; or a view or leaf that may not be written to was."""
cannot_prove = """
Which line wrote to it: the traceback shows the backward call. The kind is read from shape, producing function and the
distance of the versions, and is a reading, not a record; anomaly detection names the forward call."""
message = "{who}{at_step}: {what} was changed in place before backward used it{versions}{kind}"
fix = "{remedy} Run once with torch.autograd.set_detect_anomaly(True) to see the forward call."
causes = [{ state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/notes/autograd.html#in-place-correctness-checks"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
surrounding AS (
    SELECT
        (SELECT bool_or(world_size > 1 OR rank > 0) FROM proc)
        OR EXISTS (SELECT 1 FROM fact WHERE regexp_matches(lower(key), '(^|\.)world_size$|nproc') AND number > 1)
        OR EXISTS (SELECT 1 FROM fact WHERE scope = 'command' AND value LIKE '%torchrun%') AS is_distributed
),
broken AS (
    SELECT
        e.*,
        e.fields ->> 'function' AS made_by,
        e.fields ->> 'shape' AS shape,
        CAST(e.fields ->> 'version_found' AS INTEGER) - CAST(e.fields ->> 'version_expected' AS INTEGER) AS n_writes
    FROM reported_failure AS e
    WHERE e.class = 'autograd.inplace'
      AND e.role = 'primary'
),
read_as AS (
    SELECT
        b.*,
        CASE
            WHEN b.signature = 'leaf-modified' THEN 'leaf'
            WHEN b.signature = 'view-modified' THEN 'view'
            -- A transposed weight is saved by the Linear that used it; an optimizer step writes to the weight itself.
            WHEN regexp_matches(coalesce(b.made_by, ''), '^(T|Transpose|AsStrided|View|Permute)Backward') THEN 'parameter'
            WHEN b.made_by IS NULL AND b.shape IS NOT NULL AND b.shape NOT LIKE '%,%' AND s.is_distributed THEN 'buffer-or-parameter'
            WHEN b.made_by IS NULL AND b.shape IS NOT NULL THEN 'leaf-tensor'
            WHEN b.made_by IS NOT NULL THEN 'activation'
            ELSE 'unknown'
        END AS reading
    FROM broken AS b
    CROSS JOIN surrounding AS s
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.where_in_code,
    r.made_by AS op,
    r.reading,
    CASE
        WHEN r.signature = 'leaf-modified' THEN 'a leaf that requires grad'
        WHEN r.signature = 'view-modified' THEN 'a view that may not be written to' || coalesce(' (output of ' || r.made_by || ')', '')
        ELSE 'a saved tensor' || coalesce(' of shape [' || r.shape || ']', '') || coalesce(', output of ' || r.made_by || ',', '')
    END AS what,
    coalesce(' (written ' || r.n_writes || CASE WHEN r.n_writes = 1 THEN ' time' ELSE ' times' END || ' since it was saved)', '') AS versions,
    CASE r.reading
        WHEN 'parameter' THEN ': it is a view of a parameter, which an optimizer step between forward and backward changes'
        WHEN 'buffer-or-parameter' THEN ': a vector without a producing function is a buffer or a parameter, and DDP writes to buffers at each forward'
        WHEN 'leaf-tensor' THEN ': it has no producing function, so it is a parameter, a buffer or an input'
        WHEN 'activation' THEN ': it is an activation, overwritten by an operation that works in place'
        ELSE ''
    END AS kind,
    CASE r.reading
        WHEN 'parameter' THEN 'Call every backward that needs the old weights before optimizer.step(), or compute the second forward after it.'
        WHEN 'buffer-or-parameter' THEN 'Call the wrapped model once per backward, or pass broadcast_buffers=False (or SyncBatchNorm) to DDP; if it is a parameter, move optimizer.step() behind the last backward.'
        WHEN 'leaf-tensor' THEN 'Move optimizer.step() and other writes to parameters, buffers or inputs behind the last backward, or clone what is changed.'
        WHEN 'activation' THEN 'Replace the in-place operation (x += y, relu_(), x[i] = …, inplace=True) by one that makes a new tensor.'
        WHEN 'leaf' THEN 'Write to the leaf under torch.no_grad(), or build a new tensor.'
        WHEN 'view' THEN 'Clone the output before it is changed.'
        ELSE 'Replace the in-place operation by one that makes a new tensor.'
    END AS remedy,
    coalesce(r.made_by, r.signature) AS key
FROM read_as AS r
QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.attempt ORDER BY r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
