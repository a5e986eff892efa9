-- How a serving engine did over a stretch of time, beside its own baseline: a row a window of a series with traffic, in
-- order (place, of n_windows). From /metrics a window lies between two scrapes; from spans it is a 24th of their time.
-- token_p99, first_p99, queue_p95: seconds; n_tokens: how many the first of them rests on (tokens; of spans, requests);
-- hit_ratio: of the prefix cache. base_*: medians of the first third.
CREATE TEMP VIEW serving_window AS
WITH
scraped AS (
    SELECT
        'metrics' AS origin,
        concat_ws('/', l.source, nullif(l.part, '')) AS series,
        l.n,
        min(l.artifact_id) AS artifact_id,
        min(l.row) AS row,
        min(l.line) AS line,
        min(l.from_ns) AS from_ns,
        max(l.ts_ns) AS ts_ns,
        max(l.p99) FILTER (WHERE l.quantity = 'token') AS token_p99,
        max(l.p99) FILTER (WHERE l.quantity = 'first') AS first_p99,
        max(l.p95) FILTER (WHERE l.quantity = 'queue') AS queue_p95,
        max(l.n_observed) AS n_observed,
        max(l.n_observed) FILTER (WHERE l.quantity = 'token') AS n_tokens
    FROM serving_latency AS l
    GROUP BY l.source, l.part, l.n
),
read AS (
    SELECT
        series,
        n,
        avg(value) FILTER (WHERE quantity = 'hit_ratio') AS hit_ratio,
        max(value) FILTER (WHERE quantity = 'kv_usage') AS kv_usage,
        max(value) FILTER (WHERE quantity = 'waiting') AS waiting,
        max(value) FILTER (WHERE quantity = 'running') AS running
    FROM serving_reading
    WHERE n IS NOT NULL
    GROUP BY series, n
),
grown AS (
    SELECT
        concat_ws('/', source, nullif(part, '')) AS series,
        n,
        sum(increase) FILTER (WHERE quantity = 'prompt_tokens') AS prompt_tokens,
        sum(increase) FILTER (WHERE quantity = 'generation_tokens') AS generation_tokens,
        sum(increase) FILTER (WHERE quantity = 'preemptions') AS n_preemptions,
        sum(increase) FILTER (WHERE quantity = 'queries') AS asked_tokens,
        sum(increase) FILTER (WHERE quantity = 'hits') AS found_tokens
    FROM serving_increase
    GROUP BY source, part, n
),
requested AS (
    SELECT
        *,
        least(
            23,
            ((end_ns - min(end_ns) OVER (PARTITION BY service)) * 24)
            // greatest(max(end_ns) OVER (PARTITION BY service) - min(end_ns) OVER (PARTITION BY service), 1)
        ) AS n
    FROM serving_request
    WHERE end_ns IS NOT NULL
),
spanned AS (
    SELECT
        'spans' AS origin,
        'spans of ' || coalesce(service, 'a service') AS series,
        n,
        arg_max(artifact_id, coalesce(token_s, request_s)) AS artifact_id,
        arg_max(row, coalesce(token_s, request_s)) AS row,
        NULL AS line,
        min(ts_ns) AS from_ns,
        max(end_ns) AS ts_ns,
        quantile_cont(token_s, 0.99) AS token_p99,
        quantile_cont(first_s, 0.99) AS first_p99,
        quantile_cont(queue_s, 0.95) AS queue_p95,
        count(*) AS n_observed,
        count(token_s) AS n_tokens,
        sum(cached_tokens) / nullif(sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL), 0) AS hit_ratio,
        sum(prompt_tokens) AS prompt_tokens,
        sum(completion_tokens) AS generation_tokens,
        sum(prefill_s) / nullif(sum(prefill_s) + sum(decode_s), 0) AS prefill_share,
        sum(prompt_tokens) FILTER (WHERE cached_tokens IS NOT NULL) AS asked_tokens,
        sum(cached_tokens) AS found_tokens
    FROM requested
    GROUP BY service, n
    HAVING count(*) >= 5
),
by_time AS (
    -- The state that /metrics and logs tell of the time of a window of spans.
    SELECT
        s.series,
        s.n,
        -- Logs print the ratio over the last thousand requests, scrapes that of their own time.
        coalesce(
            avg(r.value) FILTER (WHERE r.quantity = 'hit_ratio' AND r.n IS NOT NULL),
            avg(r.value) FILTER (WHERE r.quantity = 'hit_ratio')
        ) AS hit_ratio,
        max(r.value) FILTER (WHERE r.quantity = 'kv_usage') AS kv_usage,
        max(r.value) FILTER (WHERE r.quantity = 'waiting') AS waiting,
        max(r.value) FILTER (WHERE r.quantity = 'running') AS running
    FROM spanned AS s
    JOIN serving_reading AS r ON r.ts_ns > s.from_ns AND r.ts_ns <= s.ts_ns
    JOIN artifact AS a ON a.id = r.artifact_id AND a.timeline = 'epoch'
    GROUP BY s.series, s.n
),
joined AS (
    SELECT s.*, r.hit_ratio, r.kv_usage, r.waiting, r.running, g.prompt_tokens, g.generation_tokens, g.n_preemptions, g.asked_tokens, g.found_tokens
    FROM scraped AS s
    LEFT JOIN read AS r ON r.series = s.series AND r.n = s.n
    LEFT JOIN grown AS g ON g.series = s.series AND g.n = s.n
    UNION ALL BY NAME
    SELECT s.* REPLACE (coalesce(s.hit_ratio, t.hit_ratio) AS hit_ratio), t.kv_usage, t.waiting, t.running, NULL::DOUBLE AS n_preemptions
    FROM spanned AS s
    LEFT JOIN by_time AS t ON t.series = s.series AND t.n = s.n
),
placed AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY origin, series ORDER BY n) AS place,
        count(*) OVER (PARTITION BY origin, series) AS n_windows
    FROM joined
    WHERE n_observed > 0
),
baseline AS (
    SELECT
        origin,
        series,
        median(token_p99) AS base_token_p99,
        median(first_p99) AS base_first_p99,
        median(queue_p95) AS base_queue_p95,
        median(hit_ratio) AS base_hit_ratio,
        median(prefill_share) AS base_prefill_share,
        median((asked_tokens - found_tokens) / nullif(asked_tokens - found_tokens + generation_tokens, 0)) AS base_computed_share
    FROM placed
    WHERE place <= greatest(n_windows // 3, 3)
    GROUP BY origin, series
)
SELECT p.*, b.* EXCLUDE (origin, series)
FROM placed AS p
JOIN baseline AS b ON b.origin = p.origin AND b.series = p.series;
