-- Quantiles of the latencies that serving engines export as histograms, between two scrapes: a row an interval of one
-- quantity, interpolated within a bucket as histogram_quantile does, but
-- for the first bucket, of which the bound is taken. quantity: token (time per output token), first
-- (to the first token), queue, request (end to end). p95, p99: seconds; n_observed: how many the interval holds.
CREATE TEMP VIEW serving_latency AS
WITH
known (name, quantity) AS (
    VALUES
        ('vllm:time_per_output_token_seconds_bucket', 'token'), ('vllm:inter_token_latency_seconds_bucket', 'token'),
        ('sglang:inter_token_latency_seconds_bucket', 'token'), ('sglang:time_per_output_token_seconds_bucket', 'token'),
        ('tgi_request_mean_time_per_token_duration_bucket', 'token'),
        ('vllm:time_to_first_token_seconds_bucket', 'first'), ('sglang:time_to_first_token_seconds_bucket', 'first'),
        ('vllm:request_queue_time_seconds_bucket', 'queue'), ('sglang:queue_time_seconds_bucket', 'queue'),
        ('tgi_request_queue_duration_bucket', 'queue'),
        ('vllm:e2e_request_latency_seconds_bucket', 'request'), ('sglang:e2e_request_latency_seconds_bucket', 'request'),
        ('tgi_request_duration_bucket', 'request')
),
grown AS (
    SELECT
        g.source,
        g.part,
        g.n,
        k.quantity,
        g.name,
        g.bound,
        min(g.artifact_id) AS artifact_id,
        min(g.row) AS row,
        min(g.line) AS line,
        max(g.ts_ns) AS ts_ns,
        sum(g.value) AS value
    FROM serving_gauge AS g
    JOIN known AS k ON k.name = g.name
    WHERE g.bound IS NOT NULL
    GROUP BY ALL
),
stepped AS (
    SELECT
        *,
        greatest(value - lag(value) OVER (PARTITION BY source, part, name, bound ORDER BY n), 0) AS below,
        lag(ts_ns) OVER (PARTITION BY source, part, name, bound ORDER BY n) AS from_ns
    FROM grown
),
held AS (
    SELECT
        *,
        max(below) OVER (PARTITION BY source, part, name, n) AS n_observed,
        coalesce(lag(below) OVER (PARTITION BY source, part, name, n ORDER BY bound), 0) AS below_lower,
        coalesce(lag(bound) OVER (PARTITION BY source, part, name, n ORDER BY bound), 0) AS lower
    FROM stepped
    WHERE below IS NOT NULL
),
quantile AS (
    SELECT
        h.*,
        q.share,
        CASE
            WHEN isinf(h.bound) THEN h.lower
            WHEN h.lower = 0 THEN h.bound -- how far below it, the first bucket does not tell
            ELSE h.lower + (h.bound - h.lower) * (q.share * h.n_observed - h.below_lower) / nullif(h.below - h.below_lower, 0)
        END AS seconds
    FROM held AS h
    CROSS JOIN (VALUES (0.5), (0.95), (0.99)) AS q (share)
    WHERE h.n_observed > 0 AND h.below >= q.share * h.n_observed AND h.below_lower < q.share * h.n_observed
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
    max(n_observed) AS n_observed,
    max(seconds) FILTER (WHERE share = 0.5) AS p50,
    max(seconds) FILTER (WHERE share = 0.95) AS p95,
    max(seconds) FILTER (WHERE share = 0.99) AS p99
FROM quantile
GROUP BY source, part, n, quantity;
