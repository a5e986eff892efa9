/*
title = "The KV cache was too small for the requests that ran at once"
severity = "high"
scope = "job"
proves = """
The engine says that its KV cache cannot hold one request; or that it threw running requests out because no block was free;
or it stood still, until its watchdog spoke, with a cache that was held by running requests to at least the threshold and requests
that waited."""
cannot_prove = """
Of an engine that stood still: that the full cache is what it waited for. A collective or a kernel that hangs leaves the cache as
it was."""
message = "{what}{more}"
fix = "{advice}"
requires = [{ state = "device-full", of = "device" }]
references = ["https://docs.vllm.ai/en/latest/configuration/optimization.html", "https://docs.sglang.ai/advanced_features/hyperparameter_tuning.html"]

[thresholds.min_preemptions]
value = 3
unit = "requests thrown out"
why = "one or two are the price of a well-filled cache: the scheduler bets on answers that end early"

[thresholds.per_minute]
value = 1
unit = "requests thrown out a minute"
why = "SGLang's tuning guide calls about one a minute tolerable"

[thresholds.full_ratio]
value = 0.9
unit = "tokens or blocks in use / all of the cache"
why = "below that a request of ordinary length still finds blocks, so the cache is not what others wait for"

[thresholds.lost_ratio]
value = 0.1
unit = "requests thrown out / requests finished"
why = "each is computed again from its first token: a tenth of the work is lost"

[thresholds.rate_ratio]
value = 0.5
unit = "tokens a second after the first request was thrown out / before it, medians, while requests wait"
why = "the rate of an engine under steady load varies by less; where it halves, far more than a tenth of the work is lost"

[thresholds.min_rates]
value = 3
unit = "readings of the rate on each side"
why = "the median of fewer is one reading"

[variant.record]
needs = ["log_event|sample.gauge"]
strength = "strong"
*/
-- variant: record
WITH
too_small AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, e.ts_ns, 'log_event' AS "table",
        'cause' AS role, 'critical' AS severity, 'strong' AS strength, ['rank-failed'] AS causes,
        CASE
            WHEN e.fields ->> 'needed_bytes' IS NOT NULL THEN
                'One request of ' || coalesce((e.fields ->> 'max_length') || ' tokens', 'full length') || ' needs '
                || round((e.fields ->> 'needed_bytes')::BIGINT / 1073741824.0, 2) || ' GiB of KV cache, and '
                || round((e.fields ->> 'available_bytes')::BIGINT / 1073741824.0, 2) || ' GiB are left for it'
            WHEN e.fields ->> 'cache_tokens' IS NOT NULL THEN
                'The KV cache holds ' || (e.fields ->> 'cache_tokens') || ' tokens, one request may have ' || (e.fields ->> 'model_length')
            WHEN e.signature = 'kv-tokens-exhausted' THEN
                'The KV cache had no place left for ' || coalesce((e.fields ->> 'wanted_tokens') || ' tokens', 'the next token of the only request that ran')
                || coalesce(': ' || (e.fields ->> 'free_tokens') || ' were free', '')
            WHEN e.fields ->> 'lacks' = 'swap' THEN 'A request that was thrown out of the KV cache found no place in the swap space of the host'
            WHEN e.fields ->> 'prefill_tokens' IS NOT NULL THEN 'The device has no memory for ' || (e.fields ->> 'prefill_tokens') || ' tokens at once, which the server tries when it starts'
            ELSE 'No memory is left for the KV cache'
        END AS what,
        coalesce('; ' || (e.fields ->> 'free_bytes') || ' GiB of the device are free, gpu_memory_utilization asks for ' || (e.fields ->> 'desired'), '') AS more,
        CASE
            WHEN e.fields ->> 'estimated_length' IS NOT NULL THEN
                'Set max_model_len to ' || (e.fields ->> 'estimated_length') || ' (what the engine says fits), or raise gpu_memory_utilization or tensor_parallel_size.'
            WHEN e.signature = 'kv-tokens-exhausted' THEN
                'Let fewer or shorter requests run at once (--max-running-requests, --context-length), raise --schedule-conservativeness above '
                || coalesce((SELECT number FROM serving_setting WHERE key = 'conservativeness'), 1.0) || ' or --mem-fraction-static, or lower --chunked-prefill-size.'
            WHEN e.fields ->> 'lacks' = 'swap' THEN 'Let fewer requests run at once (max_num_seqs), raise gpu_memory_utilization or swap_space, or set preemption_mode to recompute.'
            WHEN e.fields ->> 'prefill_tokens' IS NOT NULL THEN 'Lower --max-batch-prefill-tokens (and --max-input-length, --max-total-tokens with it), shard over more devices, or free the device of other processes.'
            ELSE 'Lower max_model_len, raise gpu_memory_utilization (SGLang: --mem-fraction-static), spread over more devices, or free the device of other processes.'
        END AS advice,
        1 AS preference
    FROM log AS e
    WHERE e.class = 'serving.kv-capacity' AND e.role = 'primary' AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
    QUALIFY row_number() OVER (ORDER BY e.fields ->> 'needed_bytes' IS NULL, e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
),
filled AS (
    -- Readings of one moment: how many requests filled how much of the cache.
    SELECT
        u.series, u.engine, u.ts_ns, u.artifact_id, u.line, u.row, u.value AS kv_usage,
        max(r.value) FILTER (WHERE r.quantity = 'running') AS running,
        max(r.value) FILTER (WHERE r.quantity = 'waiting') AS waiting
    FROM serving_reading AS u
    LEFT JOIN serving_reading AS r
        ON r.series = u.series AND r.quantity IN ('running', 'waiting')
        AND (r.n IS NOT DISTINCT FROM u.n) AND (r.n IS NOT NULL OR (r.artifact_id = u.artifact_id AND r.line = u.line))
    WHERE u.quantity = 'kv_usage'
    GROUP BY ALL
),
state AS (
    SELECT
        max(kv_usage) AS peak,
        max(waiting) AS waiting,
        arg_max(running, kv_usage) AS running,
        median(running / kv_usage) FILTER (WHERE kv_usage > 0.5) AS whole_cache,
        (max(ts_ns) - min(ts_ns)) / 60e9 AS minutes,
        min(engine) AS engine
    FROM filled
),
hits AS (
    SELECT arg_min(value, ts_ns) AS first_ratio, min(value) AS least FROM serving_reading WHERE quantity = 'hit_ratio' AND value > 0
),
told AS (
    SELECT
        coalesce(greatest(
            coalesce(max((fields ->> 'n_total')::BIGINT), 0),
            sum(coalesce((fields ->> 'n_retracted')::BIGINT, (fields ->> 'n_preemptions')::BIGINT, 1))
        ), 0) AS n,
        count(*) AS n_lines
    FROM log
    WHERE class = 'serving.kv-pressure' AND role = 'performance'
),
counted AS (
    SELECT
        coalesce(sum(increase) FILTER (WHERE quantity = 'preemptions'), 0) AS n,
        sum(increase) FILTER (WHERE quantity = 'finished') AS n_finished
    FROM serving_increase
),
said_or_counted AS (
    SELECT artifact_id, row, line, proc_id, ts_ns, 'log_event' AS "table", 1 AS preference FROM log WHERE class = 'serving.kv-pressure' AND role = 'performance'
    UNION ALL BY NAME
    SELECT artifact_id, row, line, NULL AS proc_id, ts_ns, 'sample' AS "table", 2 AS preference FROM serving_increase WHERE quantity = 'preemptions' AND increase > 0
),
place AS (
    SELECT * FROM said_or_counted
    QUALIFY row_number() OVER (ORDER BY preference, ts_ns NULLS LAST, artifact_id, row) = 1
),
-- What the figures of the sentence are read off: the last count, and the fullest moment.
last_place AS (
    SELECT * FROM said_or_counted
    QUALIFY row_number() OVER (ORDER BY preference, ts_ns DESC NULLS LAST, artifact_id DESC, row DESC) = 1
),
fullest AS (
    SELECT * FROM filled
    QUALIFY row_number() OVER (ORDER BY kv_usage DESC, ts_ns NULLS LAST, artifact_id, row) = 1
),
rates AS (
    SELECT
        median(value) FILTER (WHERE ts_ns < p.first_ns) AS before,
        median(value) FILTER (WHERE ts_ns > p.first_ns) AS after
    FROM serving_reading
    CROSS JOIN (SELECT ts_ns AS first_ns FROM place) AS p
    WHERE quantity = 'token_rate' AND value > 0
    HAVING count(*) FILTER (WHERE ts_ns < p.first_ns) >= $min_rates AND count(*) FILTER (WHERE ts_ns > p.first_ns) >= $min_rates
),
-- Where the demand went down too, a lower rate shows nothing.
slowed AS (
    SELECT r.*
    FROM rates AS r
    WHERE r.after <= $rate_ratio * r.before
      AND (SELECT median(f.waiting) FROM filled AS f CROSS JOIN place AS p WHERE f.ts_ns > p.ts_ns) > 0
),
thrown_out AS (
    SELECT
        z.artifact_id, z.row, z.line, z.proc_id, p.ts_ns, z."table",
        'performance' AS role,
        CASE WHEN greatest(t.n, c.n) >= $lost_ratio * c.n_finished OR w.after IS NOT NULL THEN 'high' ELSE 'medium' END AS severity,
        'strong' AS strength, ['throughput-low'] AS causes,
        'The KV cache was full: ' || greatest(t.n, c.n)::BIGINT || ' times a running request was thrown out and computed again'
        || coalesce(', beside ' || c.n_finished::BIGINT || ' that finished', '') AS what,
        coalesce('; it was used to ' || round(100 * s.peak)::BIGINT || ' % by ' || s.running::BIGINT || ' requests', '')
        || coalesce(', ' || nullif(s.waiting::BIGINT, 0) || ' waited', '')
        || coalesce('; from then on the engine made ' || round(w.after)::BIGINT || ' tokens a second, before ' || round(w.before)::BIGINT, '')
        || CASE WHEN h.least < 0.5 * h.first_ratio THEN '; the hit ratio of its prefixes fell from ' || round(100 * h.first_ratio)::BIGINT || ' to ' || round(100 * h.least)::BIGINT || ' %' ELSE '' END AS more,
        CASE
            WHEN s.engine = 'sglang' THEN
                'Set --max-running-requests ' || coalesce(greatest(floor(0.9 * s.whole_cache), 1)::BIGINT || ' (' || s.running::BIGINT || ' filled the cache to ' || round(100 * s.peak)::BIGINT || ' %)', 'lower')
                || ', --schedule-conservativeness above ' || coalesce((SELECT number FROM serving_setting WHERE key = 'conservativeness'), 1.0) || ', or give the cache more memory (--mem-fraction-static).'
            ELSE
                'Set max_num_seqs to ' || coalesce(greatest(floor(0.9 * s.whole_cache), 1)::BIGINT || ' (' || s.running::BIGINT || ' requests filled the cache to ' || round(100 * s.peak)::BIGINT || ' %'
                || coalesce('; the limit is ' || (SELECT number::BIGINT FROM serving_setting WHERE key = 'max_requests'), '') || ')', 'fewer than ran')
                || ', or give the cache more memory: gpu_memory_utilization'
                || coalesce(' above ' || (SELECT number FROM serving_setting WHERE key = 'memory_share'), '') || ', tensor_parallel_size, kv_cache_dtype fp8.'
        END AS advice,
        3 AS preference,
        list_filter([
            {'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'the first time'},
            {'artifact_id': f.artifact_id, 'row': f.row, 'line': f.line, 'note': 'the fullest moment'}
        ], LAMBDA e: e.artifact_id IS NOT NULL) AS evidence
    FROM place AS p
    CROSS JOIN last_place AS z
    LEFT JOIN fullest AS f ON true
    CROSS JOIN told AS t
    CROSS JOIN counted AS c
    CROSS JOIN state AS s
    CROSS JOIN hits AS h
    LEFT JOIN slowed AS w ON true
    WHERE coalesce(s.peak >= $full_ratio, true)
      AND (
          (greatest(t.n, c.n) >= $min_preemptions AND coalesce(greatest(t.n, c.n) > $per_minute * s.minutes, true))
          -- However few there were: what they cost was measured.
          OR (greatest(t.n, c.n) > 0 AND w.after IS NOT NULL)
      )
),
hung AS (
    SELECT e.*, e.ts_ns AS hung_ns
    FROM log AS e
    WHERE e.class = 'serving.hang' AND e.role = 'symptom'
    QUALIFY row_number() OVER (ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
),
last_state AS (
    SELECT f.*
    FROM filled AS f
    JOIN hung AS h ON h.artifact_id = f.artifact_id AND f.line < h.line
    QUALIFY row_number() OVER (ORDER BY f.line DESC) = 1
),
pool AS (
    SELECT p.artifact_id, p.row, p.line, (p.fields ->> 'n_available')::BIGINT AS n_available, (p.fields ->> 'n_evictable')::BIGINT AS n_evictable, (p.fields ->> 'n_protected')::BIGINT AS n_protected
    FROM log AS p
    JOIN hung AS h ON h.artifact_id = p.artifact_id
    WHERE p.class = 'serving.pool-state'
    QUALIFY row_number() OVER (ORDER BY p.line DESC, p.row) = 1
),
stood_still AS (
    SELECT
        h.artifact_id, h.row, h.line, h.proc_id, h.ts_ns, 'log_event' AS "table",
        'cause' AS role, 'critical' AS severity, 'indication' AS strength, ['rank-stalled'] AS causes,
        'The engine stood still with its KV cache used to ' || round(100 * l.kv_usage)::BIGINT || ' % by ' || coalesce(l.running::BIGINT || ' running requests', 'running requests')
        || ' while ' || l.waiting::BIGINT || ' waited' AS what,
        coalesce('; ' || p.n_available || ' tokens were free and ' || p.n_evictable || ' could be evicted' || coalesce(', ' || p.n_protected || ' were held', ''), '') AS more,
        'Let fewer or shorter requests run at once (' || coalesce('--max-running-requests ' || greatest(l.running::BIGINT - 1, 1) || ', ', '') || 'a smaller context length), raise --mem-fraction-static (vLLM: gpu_memory_utilization), and try without speculative decoding, whose drafts need slots of their own. py-spy dump of the schedulers at the next stall tells what they wait for.' AS advice,
        2 AS preference,
        [{'artifact_id': l.artifact_id, 'row': NULL::BIGINT, 'line': l.line, 'note': 'the last state before it'}, {'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'what the pool held'}] AS evidence
    FROM hung AS h
    JOIN last_state AS l ON true
    LEFT JOIN pool AS p ON true
    WHERE l.kv_usage >= $full_ratio AND l.waiting > 0 AND coalesce(p.n_evictable < (1 - $full_ratio) * (p.n_available + p.n_evictable + coalesce(p.n_protected, 0)), true)
)
SELECT
    *,
    role || preference AS key,
    role || preference AS fault
FROM (SELECT * FROM too_small UNION ALL BY NAME SELECT * FROM stood_still UNION ALL BY NAME SELECT * FROM thrown_out)
ORDER BY preference, artifact_id, row;
