-- What counters of serving engines grew by from one scrape to the next: a row an interval of one quantity.
-- quantity: preemptions, queries and hits (tokens or blocks asked of the prefix cache, and found), prompt_tokens,
-- generation_tokens, finished (requests); n: the scrape that ends it. A counter that fell began anew.
CREATE TEMP VIEW serving_increase AS
WITH
known (name, quantity) AS (
    VALUES
        ('vllm:num_preemptions_total', 'preemptions'), ('vllm:num_preemptions', 'preemptions'),
        ('sglang:num_retracted_requests_total', 'preemptions'), ('sglang:num_retracted_reqs_total', 'preemptions'),
        ('vllm:prefix_cache_queries_total', 'queries'), ('vllm:prefix_cache_queries', 'queries'),
        ('vllm:gpu_prefix_cache_queries_total', 'queries'), ('vllm:gpu_prefix_cache_queries', 'queries'),
        ('vllm:prefix_cache_hits_total', 'hits'), ('vllm:prefix_cache_hits', 'hits'),
        ('vllm:gpu_prefix_cache_hits_total', 'hits'), ('vllm:gpu_prefix_cache_hits', 'hits'),
        ('vllm:prompt_tokens_total', 'prompt_tokens'), ('sglang:prompt_tokens_total', 'prompt_tokens'),
        ('sglang:prompt_tokens_total', 'queries'), ('sglang:cached_tokens_total', 'hits'),
        ('vllm:generation_tokens_total', 'generation_tokens'), ('sglang:generation_tokens_total', 'generation_tokens'),
        ('vllm:request_success_total', 'finished'), ('sglang:num_requests_total', 'finished'),
        ('tgi_request_success', 'finished'), ('nv_inference_request_success', 'finished')
),
step AS (
    SELECT
        g.*,
        k.quantity,
        lag(g.value) OVER (PARTITION BY g.source, g.name, g.entity, k.quantity ORDER BY g.n) AS before,
        lag(g.ts_ns) OVER (PARTITION BY g.source, g.name, g.entity, k.quantity ORDER BY g.n) AS from_ns
    FROM serving_gauge AS g
    JOIN known AS k ON k.name = g.name
)
SELECT
    source,
    part,
    n,
    quantity,
    min(artifact_id) AS artifact_id,
    min(row) AS row,
    min(line) AS line,
    min(from_ns) AS from_ns,
    max(ts_ns) AS ts_ns,
    sum(CASE WHEN value >= before THEN value - before ELSE value END) AS increase,
    sum(value) AS total
FROM step
WHERE before IS NOT NULL
GROUP BY source, part, n, quantity;
