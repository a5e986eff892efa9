/*
title = "Live memory grows from step to step"
severity = "critical"
cannot_prove = """
Who holds on to them: the stack says where they were made, not which list, attribute or closure keeps them. Growth that is
meant (a cache that fills up, a growing history) looks the same until it stops."""
message = "{who} keeps {slope_bytes:bytes} more every {per} ({certainty}){told}"
fix = "Find what keeps these tensors: append loss.item() or tensor.detach().cpu() instead of tensors, clear lists and caches once a step, do not register buffers or hooks again and again; the references to one of them are found with gc.get_referrers."
causes = [{ state = "memory-retained", of = "process" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory"]

[thresholds.min_kept_ratio]
value = 0.05
unit = "bytes that stay turn after turn / live bytes at the end"
measured = "kept_bytes / live_bytes"
why = "statistics and counters that a job keeps are below a hundredth of its memory; below a twentieth the growth is not what matters"

[thresholds.min_device_growth]
value = 0.25
unit = "growth over the samples / allocated bytes at their end"
why = "as for a snapshot whose allocation failed: beyond a quarter of what is live the memory grows without end"

[thresholds.min_host_growth]
value = 0.5
unit = "growth over the samples / resident bytes at their start"
why = "import, caches and fragmentation of a healthy process level off well before it is half as large again"

[thresholds.min_samples]
value = 8
unit = "samples after the first two"
why = "fewer points have no trend to speak of"

[thresholds.min_share_at_failure]
value = 0.25
unit = "bytes that piled up / bytes allocated as an allocation failed"
why = "beyond a quarter of the live set the growth is what filled the device, as for memory-capacity"

[thresholds.min_held_ratio]
value = 0.5
unit = "bytes that one holder keeps by the recorded references / bytes that piled up"
why = "what keeps less than half of them is not what the growth is about"

[variant.snapshot]
needs = ["memory_event"]
strength = "strong"
proves = """
The least memory that is live within a step rises step after step with a slope whose 95 % interval lies above zero,
and does not level off; what rises and falls within a step does not count. Allocations from the same place stay, one
step after the other, up to the last steps."""

[variant.series]
needs = ["sample"]
strength = "indication"
proves = """
Sampled memory rises from sample to sample with a slope whose 95 % interval lies above zero, and does not level off."""
says = "From sampled totals: which tensors stay, and whether they are meant to, is not in them."
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
    CASE WHEN format_bytes(CAST(g.slope_low_bytes AS BIGINT)) = format_bytes(CAST(g.slope_high_bytes AS BIGINT)) THEN 'the same each time' ELSE format_bytes(CAST(g.slope_low_bytes AS BIGINT)) || ' to ' || format_bytes(CAST(g.slope_high_bytes AS BIGINT)) || ', 95 %' END AS certainty,
    'step' AS per,
    ': ' || g.n_kept || ' allocations of ' || coalesce(g.place, 'a place that was not recorded') || ' stay, '
        || format_bytes(g.kept_bytes) || ' of ' || format_bytes(g.live_bytes) || ' live after ' || g.n_turns || ' steps'
        || CASE WHEN g.turn_origin = 'periodicity' THEN ' (steps told by the rhythm of the allocations)' ELSE '' END
        || CASE g.source
            WHEN 'module-state' THEN '; they are registered with modules'
            WHEN 'loader' THEN '; they come from the data loader'
            WHEN 'gradient' THEN '; backward passes made them'
            WHEN 'retained-graph' THEN '; forward passes made them'
            WHEN 'optimizer' THEN '; the optimizer made them'
            ELSE ''
        END
        || CASE WHEN g.is_repeated THEN '' ELSE '; nearly each is of another size, as in a cache by length or shape' END
        || coalesce('; ' || k.holder || ' keeps them', '')
        AS told,
    g.place AS where_in_code,
    g.source,
    g.turn_origin,
    g.n_turns,
    g.first_step,
    g.kept_bytes,
    g.n_kept,
    g.live_bytes,
    g.turns_left,
    k.holder,
    CASE
        WHEN k.holder IS NOT NULL
            THEN 'Let go of the tensors that ' || k.holder || ' collects: keep numbers or detached copies on the host instead, or clear it once a step. The way to them: ' || k.way || '.'
        WHEN g.source = 'module-state'
        THEN 'Register buffers, hooks and adapters once, outside the loop, and remove the old one before a new one takes its place.'
        WHEN g.source = 'loader'
            THEN 'Let go of each batch before the next one is taken; do not keep batches, prefetched copies or samples in lists.'
    END AS fix,
    CASE WHEN k.holder IS NOT NULL
        THEN 'Whether what ' || k.holder || ' collects is meant to be kept: a cache that fills up and a history look the same until they stop.'
    END AS cannot_prove,
    CASE WHEN g.is_decisive THEN 'critical' WHEN g.is_lasting THEN 'high' ELSE 'medium' END AS severity,
    CASE WHEN NOT g.is_decisive THEN [] END AS causes,
    -- A graph that is kept explains it, and so does a device that carries what belongs to its peers.
    ['memory-retained'] AS requires,
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
WHERE g.kept_ratio >= $min_kept_ratio
ORDER BY g.ts_ns, g.artifact_id, g.row, g.device;
-- against: snapshot
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    'Over the last ' || e.n_needed_turns || ' steps live memory rose to no more than ' || format_bytes(e.needed_bytes) || ', '
        || format_bytes(e.live_bytes) || ' is live at the end, and the least of each step does not keep rising' AS says
FROM memory_moment AS e
WHERE e.moment = 'end' AND e.n_needed_turns IS NOT NULL AND e.row IS NOT NULL AND e.device >= 0
  AND NOT EXISTS (SELECT 1 FROM memory_growth AS g WHERE g.artifact_id = e.artifact_id AND g.device = e.device)
ORDER BY e.artifact_id, e.device;
-- variant: series
WITH
rising AS (
    SELECT
        t.*,
        CASE WHEN t.quantity = 'allocated' THEN t.last_bytes ELSE t.first_bytes END AS base_bytes,
        count(*) OVER (PARTITION BY t.artifact_id, t.proc_id, t.quantity) AS n_alike,
        -- Beside reserved memory that rises several times as fast, what is allocated is not what fills the device.
        EXISTS (
            SELECT 1 FROM memory_trend AS c
            WHERE c.artifact_id = t.artifact_id AND c.quantity = 'reserved' AND t.quantity = 'allocated'
              AND c.is_rising AND c.slope_bytes >= 3 * t.slope_bytes
        ) AS is_small,
        count(*) FILTER (WHERE t.quantity = 'worker') OVER (PARTITION BY t.artifact_id, t.proc_id) AS n_workers
    FROM memory_trend AS t
    WHERE t.is_rising AND t.quantity IN ('allocated', 'main', 'worker')
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.device,
    r.slope_bytes,
    r.slope_low_bytes,
    r.slope_high_bytes,
    CASE WHEN format_bytes(CAST(r.slope_low_bytes AS BIGINT)) = format_bytes(CAST(r.slope_high_bytes AS BIGINT)) THEN 'the same each time' ELSE format_bytes(CAST(r.slope_low_bytes AS BIGINT)) || ' to ' || format_bytes(CAST(r.slope_high_bytes AS BIGINT)) || ', 95 %' END AS certainty,
    CASE WHEN r.has_steps THEN 'step' ELSE 'sample' END AS per,
    ': ' || r.name || ' rose from about ' || format_bytes(CAST(r.first_bytes AS BIGINT)) || ' to about '
        || format_bytes(CAST(r.last_bytes AS BIGINT)) || ' by the line through ' || r.n_samples || ' samples'
        || CASE r.quantity
            WHEN 'worker' THEN ', as that of ' || r.n_alike || ' data loader workers of it; its main process does not grow with them'
            WHEN 'main' THEN ' of resident host memory'
            ELSE ''
        END
        || coalesce('; ' || k.holder || ' keeps ' || k.n_tensors || ' tensors of ' || format_bytes(k.bytes) || ' in all', '') AS told,
    r.quantity,
    r.n_samples,
    k.holder,
    CASE
        WHEN k.holder IS NOT NULL
            THEN 'Let go of the tensors that ' || k.holder || ' collects: keep numbers or what is needed of them (loss.item(), sums, tensor.detach()) instead, or clear it once a step. The way to them: ' || k.way || '.'
        WHEN r.quantity = 'worker'
        THEN 'Keep the data set in arrays or Arrow tables instead of lists and dicts of Python objects, whose reference counts un-share every page; restart workers each epoch (persistent_workers=False) as a stopgap.'
        WHEN r.quantity = 'main'
            THEN 'Keep numbers, not tensors with their history: loss.item(), tensor.detach(); with gradients of higher order set grad to None or use torch.autograd.grad; look at growth with tracemalloc and gc.get_objects().'
    END AS fix,
    CASE WHEN k.holder IS NOT NULL
        THEN 'Whether what ' || k.holder || ' collects is meant to be kept: a cache that fills up and a history look the same until they stop. The references were recorded at one moment.'
    END AS cannot_prove,
    CASE
        WHEN r.last_bytes - r.first_bytes < CASE r.quantity WHEN 'allocated' THEN $min_device_growth ELSE $min_host_growth END * r.base_bytes
            OR r.n_samples < $min_samples OR r.is_small THEN 'medium'
        ELSE 'high'
    END AS severity,
    -- A job that ends by itself all the same is still at fault.
    CASE WHEN o.line IS NULL THEN [] END AS causes,
    -- What registers or keeps them by name explains a total that rises.
    ['memory-retained'] AS requires,
    'the last of the ' || r.n_samples || ' samples: ' || format_bytes(CAST(r.last_bytes AS BIGINT)) AS note,
    list_filter([
        {
            'artifact_id': r.artifact_id,
            'row': r.first_row,
            'line': r.first_line,
            'note': 'the first of them: ' || format_bytes(CAST(r.first_bytes AS BIGINT))
        },
        CASE WHEN k.row IS NOT NULL THEN {
            'artifact_id': k.artifact_id,
            'row': k.row,
            'line': NULL,
            'note': 'one of ' || k.n_tensors || ' tensors, ' || format_bytes(k.bytes) || ' in all, that are kept in this way'
        } END,
        CASE WHEN o.line IS NOT NULL THEN {
            'artifact_id': o.artifact_id,
            'row': o.row,
            'line': o.line,
            'note': 'the allocation that then failed: ' || format_bytes(CAST(r.last_bytes - r.first_bytes AS BIGINT))
                || ' of the ' || format_bytes(o.allocated_bytes) || ' allocated had piled up'
        } END
    ], LAMBDA e: e IS NOT NULL) AS evidence,
    r.name AS key
FROM rising AS r
LEFT JOIN tensor_keeper AS k
    ON r.quantity <> 'worker' AND k.proc_id IS NOT DISTINCT FROM r.proc_id
    AND k.bytes >= $min_held_ratio * (r.last_bytes - r.first_bytes)
LEFT JOIN out_of_memory_text AS o
    ON r.quantity = 'allocated' AND o.proc_id = r.proc_id AND (o.ts_ns IS NULL OR r.ts_ns IS NULL OR o.ts_ns >= r.ts_ns)
    AND r.last_bytes - r.first_bytes >= $min_share_at_failure * o.allocated_bytes
WHERE r.quantity <> 'main' OR r.n_workers = 0
QUALIFY row_number() OVER (
    PARTITION BY r.artifact_id, r.proc_id ORDER BY (r.last_bytes - r.first_bytes) / r.base_bytes DESC, r.name, r.row
) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row, r.name;
