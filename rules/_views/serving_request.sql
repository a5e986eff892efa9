-- Requests of serving engines as their tracing spans tell them: a row a request. Times in seconds, NULL where the engine
-- does not say: queue_s before the first work, first_s to the first token, prefill_s, decode_s, token_s per further token.
CREATE TEMP VIEW serving_request AS
WITH
told AS (
    SELECT
        s.artifact_id,
        s.row,
        s.ts_ns,
        s.ts_ns + s.dur_ns AS end_ns,
        s.service,
        s.request,
        s.status,
        try_cast(s.attributes ->> '$."gen_ai.latency.time_in_queue"' AS DOUBLE) AS queue_s,
        try_cast(s.attributes ->> '$."gen_ai.latency.time_to_first_token"' AS DOUBLE) AS first_s,
        try_cast(s.attributes ->> '$."gen_ai.latency.time_in_model_prefill"' AS DOUBLE) AS prefill_s,
        try_cast(s.attributes ->> '$."gen_ai.latency.time_in_model_decode"' AS DOUBLE) AS decode_s,
        try_cast(s.attributes ->> '$."gen_ai.latency.e2e"' AS DOUBLE) AS request_s,
        try_cast(coalesce(s.attributes ->> '$."gen_ai.usage.prompt_tokens"', s.attributes ->> '$."gen_ai.usage.input_tokens"') AS BIGINT) AS prompt_tokens,
        try_cast(coalesce(s.attributes ->> '$."gen_ai.usage.completion_tokens"', s.attributes ->> '$."gen_ai.usage.output_tokens"') AS BIGINT) AS completion_tokens,
        try_cast(
            coalesce(
                s.attributes ->> '$."gen_ai.usage.cached_tokens"',
                s.attributes ->> '$."gen_ai.usage.cache_read.input_tokens"',
                s.attributes ->> '$."gen_ai.usage.cache_read_input_tokens"'
            ) AS BIGINT
        ) AS cached_tokens
    FROM span AS s
)
SELECT
    *,
    coalesce(decode_s, request_s - first_s) / nullif(completion_tokens - 1, 0) AS token_s
FROM told
WHERE coalesce(queue_s, first_s, request_s, decode_s) IS NOT NULL;
