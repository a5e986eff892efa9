/*
title = "Tensors of earlier steps are kept with their autograd history"
severity = "critical"
proves = """
Results of several operators of the same forward pass, or what its backward pass made, stay alive step after step: whoever
keeps one tensor that requires grad keeps all that its backward would need."""
cannot_prove = """
Which variable keeps the graph. That the tensors belong to one graph is read from their stacks: outputs of several
operators that are kept one by one look the same."""
message = "{who} keeps {slope_bytes:bytes} of each {per}, made by {n_operators_text} in {place}: {kept_bytes:bytes} of {live_bytes:bytes} live"
fix = "Add up or store loss.item() or loss.detach(), not the loss; detach states that go from step to step; do not call backward with retain_graph=True or create_graph=True in the loop, or set .grad to None after it."
causes = [{ state = "memory-retained", of = "process" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory"]

[thresholds.min_kept_ratio]
value = 0.05
unit = "bytes that stay turn after turn / live bytes at the end"
why = "as in memory-leak"

[variant.snapshot]
needs = ["memory_event"]
strength = "strong"
*/
-- variant: snapshot
SELECT
    g.artifact_id,
    coalesce(g.failed_row, g.row) AS row,
    g.proc_id,
    g.rank,
    g.step,
    g.ts_ns,
    g.device,
    g.slope_bytes,
    g.slope_low_bytes,
    g.slope_high_bytes,
    'step' AS per,
    CASE g.source WHEN 'gradient' THEN 'backward passes' ELSE 'several operators of the forward pass' END AS n_operators_text,
    coalesce(g.place, 'a place that was not recorded') AS place,
    g.place AS where_in_code,
    g.source,
    g.turn_origin,
    g.n_turns,
    g.n_kept,
    g.kept_bytes,
    g.live_bytes,
    CASE WHEN g.is_decisive THEN 'critical' WHEN g.is_lasting THEN 'high' ELSE 'medium' END AS severity,
    CASE WHEN NOT g.is_decisive THEN ['memory-retained'] END AS causes,
    [{'artifact_id': g.artifact_id, 'row': g.row, 'note': 'the last of the allocations that stay'}] AS evidence,
    g.place AS key
FROM live_growth AS g
WHERE g.source IN ('retained-graph', 'gradient')
  AND g.kept_ratio >= $min_kept_ratio
ORDER BY g.ts_ns, g.artifact_id, g.row, g.device;
