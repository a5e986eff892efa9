/*
title = "A quantized model leaves its reference"
severity = "high"
scope = "job"
proves = """
Two recordings of the same forward, one with quantized operators, agree up to the named layer and differ behind it in the
largest absolute values by more than the named share. Where both runs also stored the outputs of their layers: by how much
single elements part, the layer that parts most first."""
cannot_prove = """
How far single elements are apart, where only statistics were recorded, and those that are not among the 64 that are kept of
a stored tensor; a layer may drift without moving its largest value."""
message = "The quantized forward leaves its reference behind {layer}: {op} gives values up to {absmax}, the reference {reference} ({drift:percent} apart){ranked}"
fix = "Keep {layer} in float, or quantize it per channel: one scale for a matrix with outliers leaves the other weights no bits."
causes = []

[thresholds.max_drift]
value = 0.05
unit = "|largest value - that of the reference| / that of the reference"
measured = "drift"
why = "int8 with one scale a matrix resolves a 254th of its largest value; layers that fit stay below two percent"

[variant.operators]
needs = ["tensor", "node"]
strength = "strong"
*/
-- variant: operators
WITH
written AS (
    SELECT
        n.artifact_id,
        n.proc_id,
        n.rank,
        n.step,
        n.node_id,
        o.text AS op,
        nullif(m.text, '') AS module,
        min(t.row) AS row,
        max(t.absmax) AS absmax
    FROM node AS n
    JOIN tensor AS t ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
    JOIN string AS o ON o.id = n.op_id
    LEFT JOIN string AS m ON m.id = n.module_id
    WHERE n.phase = 'forward' AND t.role = 'output'
    GROUP BY n.artifact_id, n.proc_id, n.rank, n.step, n.node_id, o.text, m.text
),
recording AS (
    SELECT
        artifact_id,
        step,
        count(*) AS n_nodes,
        bool_or(contains(op, 'quantized::')) AS is_quantized,
        list(coalesce(module, '') ORDER BY node_id) AS modules
    FROM written
    GROUP BY artifact_id, step
),
pair AS (
    SELECT
        q.artifact_id,
        q.step,
        min(r.artifact_id) AS reference_id
    FROM recording AS q
    JOIN recording AS r ON r.step = q.step AND r.n_nodes = q.n_nodes AND r.modules = q.modules
    WHERE q.is_quantized AND NOT r.is_quantized
    GROUP BY q.artifact_id, q.step
),
compared AS (
    SELECT
        w.artifact_id,
        w.row,
        w.rank,
        w.step,
        w.node_id,
        w.op,
        w.absmax,
        f.absmax AS reference,
        f.artifact_id AS reference_id,
        f.row AS reference_row,
        abs(w.absmax - f.absmax) / nullif(f.absmax, 0) AS drift,
        last_value(w.module IGNORE NULLS) OVER (PARTITION BY w.artifact_id, w.step ORDER BY w.node_id) AS layer
    FROM written AS w
    JOIN pair AS p ON p.artifact_id = w.artifact_id AND p.step = w.step
    JOIN written AS f ON f.artifact_id = p.reference_id AND f.step = w.step AND f.node_id = w.node_id
),
stored AS (
    -- Tensors of one file name in the folders of both runs.
    SELECT
        p.artifact_id,
        x.artifact_id AS stored_id,
        a.row AS stored_row,
        a.byte,
        a.name,
        a.absmax,
        list_max([abs(z[1] - z[2]) FOR z IN list_zip(a.picked, b.picked)]) AS apart
    FROM (SELECT DISTINCT artifact_id, reference_id FROM pair) AS p
    JOIN artifact AS q ON q.id = p.artifact_id
    JOIN artifact AS r ON r.id = p.reference_id
    JOIN checkpoint_file AS x ON starts_with(q.path, x.folder) AND NOT starts_with(r.path, x.folder)
    JOIN checkpoint_file AS y ON y.file = x.file AND starts_with(r.path, y.folder) AND NOT starts_with(q.path, y.folder)
    JOIN stored_tensor AS a ON a.artifact_id = x.artifact_id
    JOIN stored_tensor AS b ON b.artifact_id = y.artifact_id AND b.name = a.name AND b.shape = a.shape
    WHERE len(a.picked) = len(b.picked)
),
ranked AS (
    SELECT
        artifact_id,
        '; of the stored outputs ' || string_agg(printf('%s by %.3g', name, apart), ', ' ORDER BY apart DESC, name) FILTER (place <= 4)
            || CASE WHEN count(*) > 4 THEN ', …' ELSE '' END || ' at least (largest difference of an element)' AS told,
        list({'artifact_id': stored_id, 'byte': byte, 'note': printf('%s: %.3g apart, values up to %.3g', name, apart, absmax)} ORDER BY apart DESC, name)[:8] AS places
    FROM (SELECT *, row_number() OVER (PARTITION BY artifact_id ORDER BY apart DESC, name) AS place FROM stored WHERE isfinite(apart) AND apart > 0)
    GROUP BY artifact_id
)
SELECT
    artifact_id,
    row,
    NULL::INTEGER AS proc_id,
    NULL::INTEGER AS rank,
    step,
    op,
    layer,
    layer AS module,
    absmax,
    reference,
    drift,
    coalesce((SELECT k.told FROM ranked AS k WHERE k.artifact_id = compared.artifact_id), '') AS ranked,
    list_concat(
        [{'artifact_id': reference_id, 'row': reference_row, 'byte': NULL::BIGINT, 'note': 'the reference'}],
        coalesce((SELECT [{'artifact_id': e.artifact_id, 'row': NULL::BIGINT, 'byte': e.byte, 'note': e.note} FOR e IN k.places] FROM ranked AS k WHERE k.artifact_id = compared.artifact_id), [])
    ) AS evidence,
    layer AS key
FROM compared
WHERE drift > $max_drift AND layer IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY artifact_id ORDER BY step, node_id, row) = 1
ORDER BY step, artifact_id, row;
