/*
title = "Batches fall outside of the sizes for which CUDA graphs were captured"
severity = "medium"
role = "performance"
proves = """
The compiler or the serving engine says that sizes came for which it had no graph: each new one is recorded, or runs without a graph."""
cannot_prove = """
How often such sizes come, where the message is printed once."""
message = "{who} meets sizes without a CUDA graph: {reason}"
fix = "Pad to a few sizes (buckets) and capture those; or mark the dimension dynamic and set torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True. When serving, raise the largest captured batch size to the number of sequences admitted."
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
    CASE
        WHEN e.class = 'capture.dynamic-shapes' THEN (e.fields ->> 'n_sizes') || ' distinct sizes, each with a graph of its own'
        ELSE left(split_part(e.message, chr(10), 1), 200)
    END AS reason,
    e.class AS key
FROM log AS e
WHERE e.class IN ('capture.dynamic-shapes', 'capture.shape-miss') AND e.role <> 'noise'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.class ORDER BY e.ts_ns DESC NULLS LAST, e.artifact_id DESC, e.row DESC) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
