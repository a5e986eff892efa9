/*
title = "A CUDA graph was recorded again until the compiler gave up"
severity = "high"
role = "performance"
proves = """
The compiler recorded the same function again and again, reached its limit and runs it without a graph from then on."""
cannot_prove = """
Which assignment moved it, and what the step time would be with the graph."""
message = "{who} recorded function {function_id} again up to the limit of {n_limit}, and runs it without a CUDA graph since{because}"
fix = "Keep what the graph depends on in place: the same order of calls, outputs dropped before the next iteration, cudagraph_mark_step_begin() at its start."
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT * EXCLUDE (has_moved)
FROM rerecorded_graph
WHERE NOT has_moved
ORDER BY ts_ns, artifact_id, row;
