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
SELECT * EXCLUDE (has_moved)
FROM rerecorded_graph
WHERE has_moved
ORDER BY ts_ns, artifact_id, row;
