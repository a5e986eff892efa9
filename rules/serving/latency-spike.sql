/*
title = "Tokens came late while fewer of the prompts' prefixes were found in the cache"
severity = "high"
role = "performance"
scope = "job"
proves = """
Against the service's own first third, the slowest hundredth of its tokens took longer than the threshold says, over several
windows, and in these windows the hit ratio of the prefix cache lay below its own."""
cannot_prove = """
That nothing else slowed it: the windows name what changed with them (prompts to compute, requests that waited, a full cache, kernels),
not what would have happened without."""
message = "Token P99 rose from {base_ms} to {worst_ms} ms ({n_slow} of {n_windows:# window|# windows}) while the prefix hit ratio fell from {base_hit} to {least_hit} %: {because}{mix}{kernels}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.vllm.ai/en/latest/features/automatic_prefix_caching.html"]

[thresholds.min_ratio]
value = 2.0
unit = "P99 time per output token / median P99 of the service's first third"
measured = "worst_ms / base_ms"
why = "P99 of one service wanders by some ten percent between windows; twice is felt by every user"

[thresholds.min_drop]
value = 0.2
unit = "share of its baseline that the hit ratio lost"
why = "the ratio of single windows wanders by a few percent with the prompts that happen to come"

[thresholds.min_base]
value = 0.2
unit = "hit ratio of the service's first third"
why = "where hardly anything was found before, a lower ratio costs hardly anything"

[thresholds.min_windows]
value = 2
unit = "windows that are slow and miss more"
measured = "n_slow"
why = "a single one is as likely a pause of the host"

[thresholds.min_per_window]
value = 20
unit = "tokens or requests in a window from /metrics"
why = "the P99 of fewer is their slowest one"

[variant.windows]
needs = ["sample.gauge|span"]
strength = "strong"
*/
-- variant: windows
WITH
slow AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY origin, series) AS n_slow,
        min(from_ns) OVER (PARTITION BY origin, series) AS slow_from_ns,
        max(ts_ns) OVER (PARTITION BY origin, series) AS slow_to_ns,
        max(token_p99) OVER (PARTITION BY origin, series) AS worst_p99,
        min(hit_ratio) OVER (PARTITION BY origin, series) AS least_hit_ratio,
        max(first_p99) OVER (PARTITION BY origin, series) AS worst_first_p99,
        arg_min(kv_usage, place) OVER (PARTITION BY origin, series) AS usage_then,
        avg(prefill_share) OVER (PARTITION BY origin, series) AS mean_prefill_share,
        avg((asked_tokens - found_tokens) / nullif(asked_tokens - found_tokens + generation_tokens, 0)) OVER (PARTITION BY origin, series) AS computed_share
    FROM serving_window
    WHERE place > greatest(n_windows // 3, 3)
      AND n_tokens >= CASE origin WHEN 'metrics' THEN $min_per_window ELSE 5 END
      AND token_p99 > $min_ratio * base_token_p99
      AND base_hit_ratio >= $min_base
      AND hit_ratio < (1 - $min_drop) * base_hit_ratio
),
chosen AS (
    SELECT *
    FROM slow
    WHERE n_slow >= $min_windows
    QUALIFY row_number() OVER (ORDER BY origin, token_p99 DESC, series, place) = 1
),
spent AS (
    -- Device work before and within the slow windows; where there is none on record, operators of the host.
    SELECT
        n.text AS name,
        sum(s.dur_ns) FILTER (WHERE s.ts_ns >= c.slow_from_ns AND s.ts_ns < c.slow_to_ns) / nullif(sum(sum(s.dur_ns) FILTER (WHERE s.ts_ns >= c.slow_from_ns AND s.ts_ns < c.slow_to_ns)) OVER (), 0) AS share_now,
        sum(s.dur_ns) FILTER (WHERE s.ts_ns < c.slow_from_ns) / nullif(sum(sum(s.dur_ns) FILTER (WHERE s.ts_ns < c.slow_from_ns)) OVER (), 0) AS share_before,
        avg(s.dur_ns) FILTER (WHERE s.ts_ns >= c.slow_from_ns AND s.ts_ns < c.slow_to_ns) AS mean_now,
        avg(s.dur_ns) FILTER (WHERE s.ts_ns < c.slow_from_ns) AS mean_before
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    CROSS JOIN chosen AS c
    WHERE s.kind = 'kernel' OR (s.kind = 'cpu_op' AND NOT EXISTS (SELECT 1 FROM slice AS k WHERE k.kind = 'kernel') AND NOT EXISTS (SELECT 1 FROM slice AS i WHERE i.artifact_id = s.artifact_id AND i.parent_row = s.row))
    GROUP BY n.text
),
kernel_told AS (
    SELECT
        '; in these windows ' || left(name, 80) || ' takes ' || round(100 * share_now)::BIGINT || ' % of the recorded work'
        || coalesce(' (' || round(100 * share_before)::BIGINT || ' % before)', '') || ', ' || round(mean_now / 1e3, 1) || ' µs a call' || coalesce(' instead of ' || round(mean_before / 1e3, 1), '') AS told
    FROM spent
    WHERE share_now IS NOT NULL
    ORDER BY share_now DESC, name
    LIMIT 1
)
SELECT
    c.artifact_id,
    c.row,
    CASE c.origin WHEN 'metrics' THEN 'sample' ELSE 'slice' END AS "table",
    c.line,
    c.ts_ns,
    round(1000 * c.base_token_p99, 1) AS base_ms,
    round(1000 * c.worst_p99, 1) AS worst_ms,
    c.n_slow,
    c.n_windows,
    round(100 * c.base_hit_ratio)::BIGINT AS base_hit,
    round(100 * c.least_hit_ratio)::BIGINT AS least_hit,
    -- What is found of a prompt is found from its first block on, so nothing at all means that the first one is missing.
    CASE
        WHEN c.usage_then >= 0.9 THEN 'running requests held ' || round(100 * c.usage_then)::BIGINT || ' % of the cache when it began, which leaves little for prefixes that are to come again'
        WHEN c.least_hit_ratio < 0.01 THEN 'not one block is found any more, so prompts differ from their first block on, or the cache was emptied or switched off'
        ELSE 'prompts begin less alike, or more different ones come than the cache keeps'
    END
    || coalesce(CASE WHEN c.usage_then < 0.9 THEN '; running requests held ' || round(100 * c.usage_then)::BIGINT || ' % of it when it began' END, '') AS because,
    CASE
        WHEN c.computed_share IS NOT NULL AND c.base_computed_share IS NOT NULL THEN
            '; prompts to compute are ' || round(100 * c.computed_share)::BIGINT || ' % of all tokens instead of ' || round(100 * c.base_computed_share)::BIGINT || ' %'
        WHEN c.mean_prefill_share IS NOT NULL AND c.base_prefill_share IS NOT NULL THEN
            '; prompts take ' || round(100 * c.mean_prefill_share)::BIGINT || ' % of the time of requests instead of ' || round(100 * c.base_prefill_share)::BIGINT || ' %'
        ELSE ''
    END
    || CASE
        WHEN c.worst_first_p99 > $min_ratio * c.base_first_p99 THEN
            '; to the first token P99 went from ' || round(1000 * c.base_first_p99)::BIGINT || ' to ' || round(1000 * c.worst_first_p99)::BIGINT || ' ms'
        ELSE ''
    END AS mix,
    coalesce((SELECT told FROM kernel_told), '') AS kernels,
    CASE
        WHEN c.usage_then >= 0.9 THEN
            'Keep prefixes: more cache (gpu_memory_utilization, --mem-fraction-static' || coalesce('; it holds ' || (SELECT number::BIGINT FROM serving_setting WHERE key = 'cache_tokens') || ' tokens', '') || '), fewer requests at once, or an offloaded cache.'
        ELSE 'Put what all prompts share first and what differs (times, ids, retrieved texts) last; send requests of one conversation to the same replica.'
    END
    || ' Bound what one step computes of prompts: max_num_batched_tokens (SGLang: --chunked-prefill-size)'
    || coalesce(', now ' || (SELECT number::BIGINT FROM serving_setting WHERE key = 'max_batched_tokens'), '') || '.' AS advice,
    'token' AS key
FROM chosen AS c
ORDER BY c.artifact_id, c.row;
