/*
title = "Tensors of earlier steps are kept with their autograd history"
severity = "critical"
cannot_prove = """
Which variable keeps the graph. That the tensors belong to one graph is read from their stacks: outputs of several
operators that are kept one by one look the same. The error of autograd does not name the tensor either."""
message = "{who} {what}"
fix = "Add up or store loss.item() or loss.detach(), not the loss; detach states that go from step to step; do not call backward with retain_graph=True or create_graph=True in the loop, or set .grad to None after it. retain_graph=True against the error of a second backward only hides the tensor that was not detached."
causes = [{ state = "memory-retained", of = "process" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory"]

[thresholds.min_kept_ratio]
value = 0.05
unit = "bytes that stay turn after turn / live bytes at the end"
measured = "kept_bytes / live_bytes"
why = "as in memory-leak"

[thresholds.min_held_ratio]
value = 0.5
unit = "bytes that one holder keeps by the recorded references / bytes that piled up"
why = "as in memory-leak"

[variant.snapshot]
needs = ["memory_event"]
strength = "strong"
proves = """
Results of several operators of the same forward pass, or what its backward pass made, stay alive step after step:
whoever keeps one tensor that requires grad keeps all that its backward would need."""

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
Autograd refused a backward, because the loss hangs on a tensor whose graph an earlier backward had freed."""
says = "That steps before went well is read from their metrics. A branch that runs a second backward in this step alone would fail alike. Nothing tells which tensor came from an earlier step, or how much memory that kept."
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
    'keeps ' || format_bytes(CAST(g.slope_bytes AS BIGINT)) || ' of each step, made by '
        || CASE g.source WHEN 'gradient' THEN 'backward passes' ELSE 'several operators of the forward pass' END
        || ' in ' || coalesce(g.place, 'a place that was not recorded')
        || ': ' || format_bytes(g.kept_bytes) || ' of ' || format_bytes(g.live_bytes) || ' live'
        || coalesce('; ' || k.holder || ' keeps them', '') AS what,
    g.place AS where_in_code,
    g.source,
    g.turn_origin,
    g.n_turns,
    g.n_kept,
    g.kept_bytes,
    g.live_bytes,
    CASE WHEN k.holder IS NOT NULL
        THEN 'Let ' || k.holder || ' keep loss.item() or tensor.detach() instead of tensors with their history. The way to them: ' || k.way || '.'
    END AS fix,
    CASE WHEN k.holder IS NOT NULL
        THEN 'That the tensors belong to one graph: that is read from their stacks, and outputs of several operators that are kept one by one look the same.'
    END AS cannot_prove,
    CASE WHEN g.is_decisive THEN 'critical' WHEN g.is_lasting THEN 'high' ELSE 'medium' END AS severity,
    CASE WHEN NOT g.is_decisive THEN ['memory-retained'] END AS causes,
    CASE WHEN g.failed_row IS NULL THEN 'the last of the ' || g.n_kept || ' allocations that stay' ELSE 'the allocation that then failed' END AS note,
    list_filter([
        CASE WHEN w.row IS NOT NULL THEN {'artifact_id': g.artifact_id, 'row': w.row, 'note': 'the first of the ' || g.n_kept || ' allocations that stay'} END,
        {'artifact_id': g.artifact_id, 'row': g.row, 'note': 'the last of them'},
        CASE WHEN k.row IS NOT NULL THEN {'artifact_id': k.artifact_id, 'row': k.row, 'note': 'one of ' || k.n_tensors || ' tensors, ' || format_bytes(k.bytes) || ' in all, that are kept in this way'} END
    ], LAMBDA e: e IS NOT NULL) AS evidence,
    g.place AS key
FROM live_growth AS g
LEFT JOIN memory_owner AS w ON w.artifact_id = g.artifact_id AND w.device = g.device AND w.moment = 'growth'
LEFT JOIN tensor_keeper AS k ON k.proc_id IS NOT DISTINCT FROM g.proc_id AND k.bytes >= $min_held_ratio * g.kept_bytes
WHERE g.source IN ('retained-graph', 'gradient')
  AND g.kept_ratio >= $min_kept_ratio
ORDER BY g.ts_ns, g.artifact_id, g.row, g.device;
-- variant: log
WITH
step_done AS (
    -- Steps whose gradients are on record; where only losses are, those before the last one, whose backward may be this.
    SELECT
        proc_id,
        coalesce(nullif(count(DISTINCT step) FILTER (WHERE name = 'grad_norm'), 0), count(DISTINCT step) - 1) AS n,
        coalesce(max(step) FILTER (WHERE name = 'grad_norm'), max(step) - 1) AS last_step
    FROM metric
    WHERE name IN ('loss', 'grad_norm') AND step IS NOT NULL
    GROUP BY proc_id
),
refused AS (
    SELECT
        e.*,
        coalesce(d.n, 0) AS n_before,
        d.last_step,
        (
            SELECT min_by({'artifact_id': m.artifact_id, 'row': m.row, 'line': m.line}, (m.artifact_id, m.row)) FROM metric AS m
            WHERE m.proc_id IS NOT DISTINCT FROM e.proc_id AND m.name IN ('loss', 'grad_norm') AND m.step = d.last_step
        ) AS last_at
    FROM reported_failure AS e
    LEFT JOIN step_done AS d ON d.proc_id IS NOT DISTINCT FROM e.proc_id
    WHERE e.class = 'autograd.graph-reuse' AND e.role = 'primary' AND NOT e.moved_on AND NOT e.completed
)
SELECT
    artifact_id,
    row,
    line,
    proc_id,
    rank,
    step,
    ts_ns,
    where_in_code,
    CASE
        WHEN n_before = 0 THEN 'ran a backward through a graph that an earlier backward had freed, and no step before it is on record: either a step runs two backwards, or a tensor came with its history from the step before'
        ELSE 'ran a backward through a graph that an earlier one had freed, after ' || n_before
            || CASE n_before WHEN 1 THEN ' step' ELSE ' steps' END || ' that went well (the last is ' || last_step
            || '), so not every step runs two: most likely a tensor of an earlier step went into this loss with its autograd history, as the state of a recurrent network that is not detached does'
    END AS what,
    CASE WHEN n_before = 0 THEN 'indication' ELSE 'strong' END AS strength,
    ['rank-failed'] AS causes,
    CASE WHEN n_before > 0 THEN [{'artifact_id': last_at.artifact_id, 'row': last_at.row, 'line': last_at.line, 'note': 'the last of them on record'}] END AS evidence,
    'graph-reused' AS key
FROM refused
QUALIFY row_number() OVER (PARTITION BY proc_id, attempt ORDER BY ts_ns NULLS LAST, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
