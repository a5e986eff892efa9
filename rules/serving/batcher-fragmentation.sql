/*
title = "The batch found no run of cache that is long enough, although enough is free"
severity = "medium"
role = "performance"
scope = "job"
proves = """
At the same moment the cache or pool had at least as much free as the batch asked for, and its largest unbroken run was shorter:
the batch had to wait, or its buffers went to slower memory."""
cannot_prove = """
Which requests split the free space: the sizes of single allocations are not on record."""
message = "{what}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/optimization.html"]

[thresholds.min_readings]
value = 2
unit = "readings at which the largest run was too short"
why = "at a single one the batch may have been admitted a moment later"

[thresholds.high_share]
value = 0.1
unit = "such scrapes / scrapes"
why = "from a tenth of the time on, requests wait for a place a tenth of the time"

[thresholds.min_failures]
value = 3
unit = "buffers that the pool refused"
why = "one or two while the server warms up are met by growing"

[variant.record]
needs = ["sample.gauge|log_event"]
strength = "strong"
*/
-- variant: record
WITH
free_space AS (
    -- One scrape: what is free, the largest run of it, and what the batch needs, in one unit.
    SELECT
        source, part, n,
        min(artifact_id) AS artifact_id,
        arg_min(row, CASE WHEN contains(name, 'largest_free') THEN 0 ELSE 1 END) AS row,
        arg_min(line, CASE WHEN contains(name, 'largest_free') THEN 0 ELSE 1 END) AS line,
        max(ts_ns) AS ts_ns,
        regexp_extract(name, '(tokens|blocks|bytes)$') AS unit,
        max(value) FILTER (WHERE contains(name, 'largest_free')) AS largest,
        max(value) FILTER (WHERE contains(name, 'free') AND NOT contains(name, 'largest')) AS free,
        max(value) FILTER (WHERE regexp_matches(name, 'batch_(?:needed|required|requested)')) AS needed
    FROM serving_gauge
    WHERE regexp_matches(name, '(?:largest_free|free|batch_needed|batch_required|batch_requested)_(?:tokens|blocks|bytes)$')
    GROUP BY source, part, n, unit
),
judged AS (SELECT *, count(*) OVER (PARTITION BY source, part, unit) AS n_scrapes FROM free_space),
short AS (
    SELECT
        *,
        count(*) OVER () AS n_short,
        min(largest) OVER () AS least
    FROM judged
    WHERE needed > 0 AND free >= needed AND largest < needed
    QUALIFY row_number() OVER (ORDER BY needed - largest DESC, ts_ns NULLS LAST, artifact_id, row) = 1
),
pool AS (
    SELECT max((fields ->> 'pool_bytes')::BIGINT) AS pool_bytes, min(artifact_id) AS artifact_id, min(line) AS line
    FROM log WHERE class = 'serving.memory-pool-size'
),
refused AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, e.ts_ns,
        (e.fields ->> 'requested_bytes')::BIGINT AS requested_bytes,
        count(*) OVER () AS n_refused,
        max((e.fields ->> 'requested_bytes')::BIGINT) OVER () AS most_bytes
    FROM log AS e
    WHERE e.class = 'serving.memory-pool' AND e.role = 'performance'
    QUALIFY row_number() OVER (ORDER BY (e.fields ->> 'requested_bytes')::BIGINT DESC, e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
)
SELECT
    artifact_id, row, line, 'sample' AS "table", NULL AS proc_id, ts_ns,
    'The batch needs a run of ' || needed::BIGINT || ' ' || unit || ', the largest free one has ' || largest::BIGINT || ' although ' || free::BIGINT || ' are free (' || n_short || ' of ' || n_scrapes || ' scrapes)' AS what,
    'Reserve what a request needs instead of the longest that is allowed, or use a paged cache: then any free block serves. The longest run left was ' || least::BIGINT || ' ' || unit || '.' AS advice,
    CASE WHEN n_short >= $high_share * n_scrapes THEN 'high' ELSE 'medium' END AS severity,
    'strong' AS strength,
    'run' AS key
FROM short
WHERE n_short >= $min_readings
UNION ALL BY NAME
SELECT
    r.artifact_id, r.row, r.line, 'log_event' AS "table", r.proc_id, r.ts_ns,
    r.n_refused || ' buffers of up to ' || round(r.most_bytes / 1048576.0, 1) || ' MiB found no place in the CUDA memory pool'
    || coalesce(' of ' || round(p.pool_bytes / 1048576.0, 1) || ' MiB', '') || ' and went to pinned host memory' AS what,
    'Start tritonserver with --cuda-memory-pool-byte-size=0:' || greatest(coalesce(2 * p.pool_bytes, 0), 4 * r.most_bytes)
    || ' (four times the largest buffer, at least twice the pool), or a smaller max_batch_size.' AS advice,
    'medium' AS severity,
    -- That the pool is in pieces shows only where the buffer is smaller than the pool.
    CASE WHEN r.most_bytes > coalesce(p.pool_bytes, 0) AND p.pool_bytes IS NOT NULL THEN 'strong' ELSE 'indication' END AS strength,
    'pool' AS key
FROM refused AS r
CROSS JOIN pool AS p
WHERE r.n_refused >= $min_failures
ORDER BY ts_ns, artifact_id, row, key;
