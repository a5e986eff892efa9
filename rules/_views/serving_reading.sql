-- What serving engines say of their state: a row a reading of one quantity, from /metrics and from the lines of their
-- logs. quantity: running, waiting (requests), kv_usage (0 to 1), hit_ratio (0 to 1, of the prefix cache), token_rate.
-- engine: vllm, sglang, triton or tgi; series: where readings follow
-- one another; n: the scrape, NULL of a log.
CREATE TEMP VIEW serving_reading AS
WITH
exported (name, engine, quantity, factor) AS (
    VALUES
        ('vllm:num_requests_running', 'vllm', 'running', 1.0), ('vllm:num_requests_waiting', 'vllm', 'waiting', 1.0),
        ('vllm:kv_cache_usage_perc', 'vllm', 'kv_usage', 1.0), ('vllm:gpu_cache_usage_perc', 'vllm', 'kv_usage', 1.0),
        ('vllm:gpu_prefix_cache_hit_rate', 'vllm', 'hit_ratio', 1.0),
        ('sglang:num_running_reqs', 'sglang', 'running', 1.0), ('sglang:num_queue_reqs', 'sglang', 'waiting', 1.0),
        ('sglang:token_usage', 'sglang', 'kv_usage', 1.0), ('sglang:full_token_usage', 'sglang', 'kv_usage', 1.0),
        ('sglang:swa_token_usage', 'sglang', 'kv_usage', 1.0), ('sglang:mamba_usage', 'sglang', 'kv_usage', 1.0), ('sglang:cache_hit_rate', 'sglang', 'hit_ratio', 1.0),
        ('sglang:gen_throughput', 'sglang', 'token_rate', 1.0),
        ('nv_inference_pending_request_count', 'triton', 'waiting', 1.0),
        ('tgi_batch_current_size', 'tgi', 'running', 1.0), ('tgi_queue_size', 'tgi', 'waiting', 1.0)
),
printed (name, unit, engine, quantity, factor) AS (
    VALUES
        ('running', 'reqs', 'vllm', 'running', 1.0), ('waiting', 'reqs', 'vllm', 'waiting', 1.0),
        ('pending', 'reqs', 'vllm', 'waiting', 1.0), ('gpu_kv_cache_usage', '%', 'vllm', 'kv_usage', 0.01),
        ('prefix_cache_hit_rate', '%', 'vllm', 'hit_ratio', 0.01),
        ('avg_generation_throughput', 'tokens/s', 'vllm', 'token_rate', 1.0),
        ('running_req', NULL, 'sglang', 'running', 1.0), ('queue_req', NULL, 'sglang', 'waiting', 1.0),
        -- Models with several kinds of layers have a pool for each: the fullest one decides.
        ('token_usage', NULL, 'sglang', 'kv_usage', 1.0), ('full_token_usage', NULL, 'sglang', 'kv_usage', 1.0),
        ('swa_token_usage', NULL, 'sglang', 'kv_usage', 1.0), ('mamba_usage', NULL, 'sglang', 'kv_usage', 1.0),
        ('cache_hit_rate', '%', 'sglang', 'hit_ratio', 0.01), ('gen_throughput', NULL, 'sglang', 'token_rate', 1.0)
),
found AS (
    SELECT g.artifact_id, g.row, g.line, g.proc_id, g.ts_ns, x.engine, x.quantity, g.value * x.factor AS value, concat_ws('/', g.source, nullif(g.part, '')) AS series, g.n
    FROM serving_gauge AS g
    JOIN exported AS x ON x.name = g.name
    UNION ALL BY NAME
    SELECT m.artifact_id, m.row, m.line, m.proc_id, m.ts_ns, p.engine, p.quantity, m.value * p.factor AS value, m.artifact_id || '/' || coalesce(m.proc_id, 0) AS series, NULL AS n
    FROM metric AS m
    JOIN printed AS p ON p.name = m.name AND p.unit IS NOT DISTINCT FROM m.unit
    WHERE m.source = 'log'
    UNION ALL BY NAME
    -- SGLang counts, for each batch, the tokens of prompts that it found and those that it had to compute.
    SELECT c.artifact_id, c.row, c.line, c.proc_id, c.ts_ns, 'sglang' AS engine, 'hit_ratio' AS quantity, c.value / nullif(c.value + x.value, 0) AS value, c.artifact_id || '/' || coalesce(c.proc_id, 0) AS series, NULL AS n
    FROM metric AS c
    JOIN metric AS x ON x.artifact_id = c.artifact_id AND x.line = c.line AND x.name = 'new_token' AND x.source = 'log'
    WHERE c.name = 'cached_token' AND c.source = 'log'
      AND NOT EXISTS (SELECT 1 FROM metric AS h WHERE h.artifact_id = c.artifact_id AND h.line = c.line AND h.name = 'cache_hit_rate')
    UNION ALL BY NAME
    SELECT e.artifact_id, e.row, e.line, e.proc_id, e.ts_ns, 'vllm' AS engine, 'hit_ratio' AS quantity, (e.fields ->> 'hit_percent')::DOUBLE / 100 AS value, e.artifact_id || '/' || coalesce(e.proc_id, 0) AS series, NULL AS n
    FROM log AS e
    WHERE e.class = 'serving.prefix-hits'
    UNION ALL BY NAME
    SELECT h.artifact_id, h.row, h.line, NULL AS proc_id, h.ts_ns, 'vllm' AS engine, 'hit_ratio' AS quantity, h.increase / nullif(q.increase, 0) AS value, concat_ws('/', h.source, nullif(h.part, '')) AS series, h.n
    FROM serving_increase AS h
    JOIN serving_increase AS q ON q.source = h.source AND q.part = h.part AND q.n = h.n AND q.quantity = 'queries'
    WHERE h.quantity = 'hits'
)
SELECT * FROM found WHERE value IS NOT NULL AND isfinite(value);
