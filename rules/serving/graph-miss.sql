/*
title = "Decode steps ran without a CUDA graph because none was captured for their batch size"
severity = "medium"
role = "performance"
scope = "job"
proves = """
The engine captured graphs up to the batch size that is named, and ran decode steps of larger batches; or it says of decode steps
that they ran without a graph although it had captured some."""
cannot_prove = """
What the missing graph costs, unless throughput with and without one is on record: for large batches launches matter less."""
message = "{what}{cost}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.vllm.ai/en/latest/design/cuda_graphs.html"]

[thresholds.min_readings]
value = 3
unit = "decode steps or readings that were too large"
why = "one or two are a peak; the log samples one step of many"

[thresholds.min_share]
value = 0.1
unit = "such readings / readings with running requests"
why = "below a tenth of the steps, what they lose is below a tenth as well"

[variant.record]
needs = ["log_event|sample.gauge"]
strength = "strong"
*/
-- variant: record
WITH
largest AS (SELECT number AS size, artifact_id, line FROM serving_setting WHERE key = 'max_graph_batch' AND number > 0),
is_eager AS (SELECT bool_or((fields ->> 'is_eager') = 'True') AS told FROM log WHERE class = 'serving.engine-settings'),
said AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, e.ts_ns,
        (e.fields ->> 'batch')::BIGINT AS batch,
        count(*) OVER () AS n,
        max((e.fields ->> 'batch')::BIGINT) OVER () AS most
    FROM log AS e
    WHERE e.class IN ('serving.eager-decode', 'serving.graph-miss') AND e.role = 'performance'
    QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
),
eager_rate AS (
    -- Tokens a second of decode steps of one size, with and without a graph.
    SELECT
        median(t.value) FILTER (WHERE e.row IS NOT NULL) AS without_graph,
        median(t.value) FILTER (WHERE e.row IS NULL) AS with_graph
    FROM serving_reading AS t
    JOIN serving_reading AS r ON r.artifact_id = t.artifact_id AND r.line = t.line AND r.quantity = 'running'
    LEFT JOIN log AS e ON e.artifact_id = t.artifact_id AND e.line = t.line AND e.class = 'serving.eager-decode'
    WHERE t.quantity = 'token_rate' AND t.n IS NULL AND t.value > 0
),
reading AS (
    SELECT r.*, count(*) OVER () AS n_busy
    FROM serving_reading AS r
    WHERE r.quantity = 'running' AND r.value > 0
),
too_large AS (
    SELECT
        r.artifact_id, r.row, r.line, r.proc_id, r.ts_ns,
        r.value::BIGINT AS batch,
        count(*) OVER () AS n,
        max(r.value) OVER () AS most,
        r.n_busy
    FROM reading AS r
    JOIN largest AS l ON r.value > l.size
    QUALIFY row_number() OVER (ORDER BY r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
),
found AS (
    SELECT
        s.artifact_id, s.row, s.line, s.proc_id, s.ts_ns, 'log_event' AS "table", 1 AS preference, s.most,
        'Decode steps of up to ' || coalesce(s.most || ' requests', 'some requests') || ' ran without a CUDA graph, ' || s.n || ' in the log'
        || coalesce('; graphs are captured up to ' || l.size::BIGINT, '') AS what,
        coalesce('; ' || round(c.without_graph) || ' tokens/s instead of ' || round(c.with_graph), '') AS cost
    FROM said AS s
    LEFT JOIN largest AS l ON true
    LEFT JOIN eager_rate AS c ON true
    WHERE s.n >= $min_readings
    UNION ALL BY NAME
    SELECT
        t.artifact_id, t.row, t.line, t.proc_id, t.ts_ns, NULL AS "table", 2 AS preference, t.most,
        'Up to ' || t.most::BIGINT || ' requests ran at once, ' || t.n || ' of ' || t.n_busy || ' readings above ' || l.size::BIGINT || ', the largest batch with a captured CUDA graph' AS what,
        '' AS cost
    FROM too_large AS t
    JOIN largest AS l ON true
    WHERE t.n >= $min_readings AND t.n >= $min_share * t.n_busy
)
SELECT
    f.artifact_id, f.row, f.line, f.proc_id, f.ts_ns, f."table", f.what, f.cost,
    'Capture graphs for the batches that run: ' || coalesce('up to ' || f.most::BIGINT, 'larger ones')
    || ' (vLLM: compilation_config max_cudagraph_capture_size or cudagraph_capture_sizes; SGLang: --cuda-graph-max-bs), or let no more run at once than '
    || coalesce(l.size::BIGINT || '', 'are captured') || ' (max_num_seqs, --max-running-requests).' AS advice,
    'graph' AS key,
    [{'artifact_id': l.artifact_id, 'row': NULL::BIGINT, 'line': l.line, 'note': 'the sizes that were captured'}] AS evidence
FROM found AS f
LEFT JOIN largest AS l ON true
CROSS JOIN is_eager AS g
WHERE g.told IS NOT TRUE
ORDER BY f.preference, f.artifact_id, f.row
LIMIT 1;
