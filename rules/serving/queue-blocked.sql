/*
title = "Requests wait in the queue while the cache finds less of their prompts"
severity = "high"
role = "performance"
scope = "job"
proves = """
Against the service's own first third, the slowest twentieth of its requests waited longer in the queue than the threshold says, or
attention kernels of a trace took longer, while the hit ratio of the prefix cache lay below its own."""
cannot_prove = """
That the misses alone fill the queue: more requests may have come at the same time. The number that ran and waited is given beside it."""
message = "{what}; the prefix hit ratio fell from {base_hit} to {least_hit} %{state}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.vllm.ai/en/latest/configuration/optimization.html"]

[thresholds.max_queue_ms]
value = 100
unit = "ms, P95 of the time in the queue"
why = "above a tenth of a second the queue is felt beside the time to the first token"

[thresholds.long_queue_s]
value = 1
unit = "s, P95 of the time in the queue, from which it is high"
why = "a second before the first token is where users of a chat notice that nothing happens"

[thresholds.max_kernel_ms]
value = 8
unit = "ms, P95 of attention kernels"
why = "a decode step of an interactive service has some 20 ms in all"

[thresholds.min_ratio]
value = 2.0
unit = "P95 / median P95 of the service's first third"
why = "a service that always waits longer has another trouble than a cache that misses"

[thresholds.min_drop]
value = 0.1
unit = "share of its baseline that the hit ratio lost"
why = "single windows wander by a few percent"

[thresholds.min_base]
value = 0.2
unit = "hit ratio of the service's first third"
why = "where hardly anything was found before, a lower ratio costs hardly anything"

[thresholds.min_windows]
value = 2
unit = "windows"
why = "a single one is as likely a pause of the host"

[variant.windows]
needs = ["sample.gauge|span"]
strength = "strong"
*/
-- variant: windows
WITH
fallen AS (
    SELECT *
    FROM serving_window
    WHERE place > greatest(n_windows // 3, 3) AND base_hit_ratio >= $min_base AND hit_ratio < (1 - $min_drop) * base_hit_ratio
),
blocked AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY origin, series) AS n_blocked,
        max(queue_p95) OVER (PARTITION BY origin, series) AS worst_p95,
        min(hit_ratio) OVER (PARTITION BY origin, series) AS least_hit_ratio,
        max(waiting) OVER (PARTITION BY origin, series) AS most_waiting,
        max(running) OVER (PARTITION BY origin, series) AS most_running,
        max(kv_usage) OVER (PARTITION BY origin, series) AS most_usage
    FROM fallen
    WHERE queue_p95 * 1000 > $max_queue_ms AND queue_p95 > $min_ratio * base_queue_p95
),
attention AS (
    SELECT s.artifact_id, s.row, s.ts_ns, s.dur_ns, f.series, f.origin, f.ts_ns IS NOT NULL AS is_late
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    LEFT JOIN fallen AS f ON s.ts_ns >= f.from_ns AND s.ts_ns < f.ts_ns
    WHERE s.kind = 'kernel' AND regexp_matches(lower(n.text), 'attention|flash_fwd|flashattn|fmha|paged_attn|flash_decod|flashinfer.{0,80}(?:decode|prefill)')
),
slow_kernel AS (
    SELECT
        arg_max(artifact_id, dur_ns) FILTER (WHERE is_late) AS artifact_id,
        arg_max(row, dur_ns) FILTER (WHERE is_late) AS row,
        min(ts_ns) FILTER (WHERE is_late) AS ts_ns,
        quantile_cont(dur_ns, 0.95) FILTER (WHERE is_late) / 1e6 AS late_ms,
        quantile_cont(dur_ns, 0.95) FILTER (WHERE NOT is_late) / 1e6 AS base_ms,
        (SELECT min(hit_ratio) FROM fallen) AS least_hit_ratio,
        (SELECT max(base_hit_ratio) FROM fallen) AS base_hit_ratio
    FROM attention
),
found AS (
    SELECT
        b.artifact_id, b.row, CASE b.origin WHEN 'metrics' THEN 'sample' ELSE 'slice' END AS "table", b.line, b.ts_ns, 1 AS preference,
        'P95 of the time in the queue rose from ' || CASE b.origin WHEN 'metrics' THEN 'at most ' ELSE '' END || ceil(1000 * b.base_queue_p95)::BIGINT || ' to ' || round(1000 * b.worst_p95)::BIGINT || ' ms (' || b.n_blocked || ' of ' || b.n_windows || ' windows)' AS what,
        b.worst_p95 > $long_queue_s AS is_long, b.base_hit_ratio, b.least_hit_ratio, b.most_waiting, b.most_running, b.most_usage
    FROM blocked AS b
    WHERE b.n_blocked >= $min_windows
    QUALIFY row_number() OVER (ORDER BY b.origin, b.queue_p95 DESC, b.series, b.place) = 1
    UNION ALL BY NAME
    SELECT
        k.artifact_id, k.row, 'slice' AS "table", NULL AS line, k.ts_ns, 2 AS preference,
        'P95 of attention kernels is ' || round(k.late_ms, 1) || ' ms instead of ' || round(k.base_ms, 1) AS what,
        false AS is_long, k.base_hit_ratio, k.least_hit_ratio, NULL AS most_waiting, NULL AS most_running, NULL AS most_usage
    FROM slow_kernel AS k
    WHERE k.late_ms > $max_kernel_ms AND k.late_ms > $min_ratio * k.base_ms
),
setting AS (
    SELECT
        max(number) FILTER (WHERE key = 'max_requests') AS max_requests,
        max(number) FILTER (WHERE key = 'block_size') AS block_size,
        max(number) FILTER (WHERE key = 'max_batched_tokens') AS max_batched
    FROM serving_setting
)
SELECT
    f.artifact_id, f.row, f."table", f.line, f.ts_ns, f.what,
    round(100 * f.base_hit_ratio)::BIGINT AS base_hit,
    round(100 * f.least_hit_ratio)::BIGINT AS least_hit,
    coalesce('; ' || f.most_running::BIGINT || ' ran' || coalesce(' of at most ' || s.max_requests::BIGINT, ''), '')
    || coalesce(', ' || f.most_waiting::BIGINT || ' waited', '') || coalesce(', the cache was used to ' || round(100 * f.most_usage)::BIGINT || ' %', '') AS state,
    CASE
        WHEN f.most_usage >= 0.9 THEN 'The cache is full: more requests at once would evict more. Keep max_num_seqs'
            || coalesce(' at ' || least(s.max_requests, f.most_running)::BIGINT, '') || ' or below and give the cache more memory.'
        WHEN f.most_running >= s.max_requests THEN 'The batch is full while ' || round(100 * (1 - coalesce(f.most_usage, 0)))::BIGINT || ' % of the cache is free: raise max_num_seqs above '
            || s.max_requests::BIGINT || coalesce(', to ' || floor(least(4, 0.9 / nullif(f.most_usage, 0)) * s.max_requests)::BIGINT || ' at most (90 % of the cache)', '') || '.'
        ELSE 'The batch is not full: raise what one step may compute of prompts (max_num_batched_tokens' || coalesce(', now ' || s.max_batched::BIGINT, '') || ').'
    END
    || CASE WHEN s.block_size > 16 THEN ' Blocks of ' || s.block_size::BIGINT || ' tokens are found only whole: 16 share more of a prefix.' ELSE '' END
    || ' Put what prompts share first, so that their blocks are found again.' AS advice,
    CASE WHEN f.is_long THEN 'high' ELSE 'medium' END AS severity,
    'queue' AS key
FROM found AS f
CROSS JOIN setting AS s
ORDER BY f.preference, f.artifact_id, f.row
LIMIT 1;
