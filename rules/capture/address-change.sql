/*
title = "A static input of a CUDA graph keeps changing its address"
severity = "high"
role = "performance"
proves = """
The graph is recorded for fixed addresses of parameters and static inputs, and the compiler saw them change until it gave up."""
cannot_prove = """
Which assignment moved it, and what the step time would be with the graph."""
message = "{who} gives function {function_id} static inputs at new addresses: recorded again up to the limit of {n_limit}, it runs without a CUDA graph since{because}"
fix = "Keep parameters and static inputs in place: copy_ new values into them instead of assigning new tensors, and do not move or re-create modules between calls."
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.fields ->> 'function_id' AS function_id,
    e.fields ->> 'limit' AS n_limit,
    coalesce(': ' || left(e.fields ->> 'reason', 200), '') AS because,
    e.class AS key
FROM log AS e
WHERE e.class = 'capture.address-change' AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.fields ->> 'function_id' ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
