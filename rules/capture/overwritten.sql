/*
title = "The output of a CUDA graph was read after a later run had overwritten it"
severity = "critical"
proves = """
cudagraph trees refused to hand out a tensor: it lies in the memory of a graph that ran again since the tensor was made."""
cannot_prove = """
Which of the calls should have been the last one that used it."""
message = "{who} read an output of a compiled region{at_step} after a later run of the graph had overwritten it{made_at}"
fix = "Clone the output outside of the compiled region before the next call, or call torch.compiler.cudagraph_mark_step_begin() before each iteration."
causes = [{ state = "rank-failed", of = "rank" }]
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
    e.step,
    e.ts_ns,
    e.line,
    coalesce('; it was made by ' || (e.fields ->> 'made_by') || ' (' || (e.fields ->> 'made_file') || ':' || (e.fields ->> 'made_line') || ')', '') AS made_at,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    e.class AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class = 'capture.output-lifetime'
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
