/*
title = "The compiler gave up on a function after too many recompilations"
severity = "high"
role = "performance"
proves = """
The compiler reached its limit of compiled versions of the function that is named: from then on calls that no version
fits run uncompiled."""
cannot_prove = """
How much slower that is, unless times of the same work before and after are on record; and how many calls a version still fits."""
message = "{who} runs {function_name}{place} uncompiled since the limit of {limit} compiled versions was reached{because}"
fix = "Remove the reason of the recompilations rather than raise the limit: dynamic shapes for sizes that vary, tensors for numbers that vary, one object instead of a new one for each call; torch._dynamo.config.recompile_limit (cache_size_limit before 2.6) only when few versions more suffice."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[variant.said]
needs = ["log_event|compile_event"]
strength = "proof"
*/
-- variant: said
WITH
reached AS (
    SELECT
        e.artifact_id,
        e.row,
        'log_event' AS "table",
        e.proc_id,
        e.rank,
        e.ts_ns,
        e.line,
        e.fields ->> 'function' AS function_name,
        e.fields ->> 'code_line' AS code_line,
        e.fields ->> 'limit' AS limit_value,
        e.fields ->> 'reason' AS reason,
        -- With torch._dynamo.config.error_on_recompile or fullgraph=True the limit is an error.
        e.exception IS NOT NULL AS is_error
    FROM log AS e
    WHERE e.signature = 'recompile-limit' AND e.role <> 'noise'
    UNION ALL BY NAME
    SELECT
        c.artifact_id,
        c.row,
        'compile_event' AS "table",
        c.proc_id,
        c.rank,
        c.ts_ns,
        NULL AS line,
        coalesce(n.text, k.function, f.function_name) AS function_name,
        coalesce(k.file || ':' || k.line, f.file || ':' || f.line_of_code) AS code_line,
        NULL AS limit_value,
        coalesce(g.guard, r.text) AS reason,
        false AS is_error
    FROM compile_event AS c
    LEFT JOIN string AS n ON n.id = c.name_id
    LEFT JOIN string AS r ON r.id = c.reason_id
    LEFT JOIN frame AS k ON k.id = c.stack_id
    LEFT JOIN compiled_frame AS f
        ON f.artifact_id = c.artifact_id AND f.proc_id IS NOT DISTINCT FROM c.proc_id AND f.frame = split_part(c.compile_id, '/', 1)
    LEFT JOIN recompilation AS g
        ON g.artifact_id = c.artifact_id AND g.proc_id IS NOT DISTINCT FROM c.proc_id AND g.compile_id = c.compile_id
    WHERE c.kind = 'limit'
      -- TORCH_LOGS text fills both tables.
      AND NOT EXISTS (SELECT 1 FROM log AS e WHERE e.artifact_id = c.artifact_id AND e.signature = 'recompile-limit')
)
SELECT
    artifact_id,
    row,
    "table",
    proc_id,
    rank,
    ts_ns,
    line,
    coalesce(function_name, 'a function') AS function_name,
    coalesce(limit_value, 'allowed') AS "limit",
    coalesce(' (' || code_line || ')', '') AS place,
    coalesce('; last because ' || left(regexp_replace(split_part(reason, chr(10), 1), '^\d+/\d+: ', ''), 200), '') AS because,
    function_name || coalesce(' (' || code_line || ')', '') AS where_in_code,
    CASE WHEN is_error THEN 'cause' ELSE 'performance' END AS role,
    CASE WHEN is_error THEN 'critical' ELSE 'high' END AS severity,
    CASE WHEN is_error THEN ['rank-failed'] ELSE ['throughput-low'] END AS causes,
    coalesce(function_name, reason) AS key,
    coalesce(function_name, reason) AS fault
FROM reached
QUALIFY row_number() OVER (PARTITION BY proc_id, function_name, code_line ORDER BY is_error DESC, ts_ns NULLS LAST, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
