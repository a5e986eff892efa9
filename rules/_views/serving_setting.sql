-- Limits and settings that a serving engine says it runs with: a row an engine's key, with the greatest number said.
-- key: cache_tokens, n_blocks, block_size, max_requests, max_batched_tokens, max_length, memory_share, max_graph_batch.
CREATE TEMP VIEW serving_setting AS
WITH
said AS (
    SELECT e.artifact_id, e.row, e.line, k.key, try_cast(e.fields ->> k.key AS DOUBLE) AS number
    FROM log AS e
    CROSS JOIN (
        VALUES ('cache_tokens'), ('n_blocks'), ('block_size'), ('max_requests'), ('max_batched_tokens'), ('max_length'),
            ('memory_share'), ('max_graph_batch'), ('conservativeness'), ('concurrency')
    ) AS k (key)
    WHERE e.class = 'serving.engine-settings'
    UNION ALL BY NAME
    SELECT
        f.artifact_id, NULL AS row, f.line,
        CASE f.key
            WHEN 'cache_config.block_size' THEN 'block_size' WHEN 'cache_config.num_gpu_blocks' THEN 'n_blocks'
            WHEN 'cache_config.gpu_memory_utilization' THEN 'memory_share'
        END AS key,
        f.number
    FROM fact AS f
    WHERE f.key IN ('cache_config.block_size', 'cache_config.num_gpu_blocks', 'cache_config.gpu_memory_utilization')
    UNION ALL BY NAME
    SELECT e.artifact_id, e.row, e.line, 'max_graph_batch' AS key, list_max(list_transform(regexp_extract_all(e.fields ->> 'sizes', '\d+'), LAMBDA x: x::DOUBLE)) AS number
    FROM log AS e
    WHERE e.class IN ('serving.graph-sizes', 'serving.engine-settings') AND (e.fields ->> 'sizes') IS NOT NULL AND length(e.fields ->> 'sizes') < 400
)
SELECT key, max(number) AS number, arg_max(artifact_id, number) AS artifact_id, arg_max(line, number) AS line
FROM said
WHERE number IS NOT NULL
GROUP BY key;
