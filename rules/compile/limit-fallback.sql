/*
title = "The compiler gave up on a function after too many recompilations"
severity = "high"
role = "performance"
proves = """
The compiler reached its limit of compiled versions of the function that is named: from then on calls that no version
fits run uncompiled. Of a profiler trace: calls of compiled functions asked for a version that fits, found none, and none was
compiled, so they ran uncompiled."""
cannot_prove = """
How much slower that is, unless times of the same work before and after are on record; and how many calls a version still fits.
A trace does not tell which function it was and that the limit is the reason: a stance that forbids to compile looks the same."""
message = "{who} {told}"
fix = "Remove the reason of the recompilations rather than raise the limit: dynamic shapes for sizes that vary, tensors for numbers that vary, one object instead of a new one for each call; torch._dynamo.config.recompile_limit (cache_size_limit before 2.6) only when few versions more suffice."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_calls]
value = 5
unit = "calls in a trace that ran uncompiled"
measured = "n_uncompiled"
why = "the last short batch of an epoch, or of an evaluation, gives one or two"

[thresholds.min_share]
value = 0.1
unit = "such calls / calls of compiled functions in the trace"
why = "below a tenth of the calls, what they lose is below a tenth as well"

[variant.said]
needs = ["log_event|compile_event"]
strength = "strong"

[variant.trace]
needs = ["slice"]
strength = "strong"
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
    'runs ' || coalesce(function_name, 'a function') || coalesce(' (' || code_line || ')', '') || ' uncompiled since the limit of '
        || coalesce(limit_value, 'allowed') || ' compiled versions was reached'
        || coalesce('; last because ' || left(regexp_replace(split_part(reason, chr(10), 1), '^\d+/\d+: ', ''), 200), '') AS told,
    function_name || coalesce(' (' || code_line || ')', '') AS where_in_code,
    CASE WHEN is_error THEN 'cause' ELSE 'performance' END AS role,
    CASE WHEN is_error THEN 'critical' ELSE 'high' END AS severity,
    CASE WHEN is_error THEN ['rank-failed'] ELSE ['throughput-low'] END AS causes,
    coalesce(function_name, reason) AS key,
    coalesce(function_name, reason) AS fault
FROM reached
QUALIFY row_number() OVER (PARTITION BY proc_id, function_name, code_line ORDER BY is_error DESC, ts_ns NULLS LAST, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: trace
WITH
marked AS (
    SELECT
        s.artifact_id,
        s.row,
        s.proc_id,
        s.rank,
        s.step,
        s.thread,
        s.ts_ns,
        CASE
            WHEN n.text = 'TorchDynamo Cache Lookup' THEN 'asked'
            WHEN starts_with(n.text, 'Torch-Compiled Region') THEN 'found'
            ELSE 'compiled'
        END AS what
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.ts_ns IS NOT NULL
      AND (
          n.text = 'TorchDynamo Cache Lookup' OR starts_with(n.text, 'Torch-Compiled Region')
          OR n.text IN ('entire_frame_compile', '_compile.compile_inner (dynamo_timed)', '_compile.compile_inner', 'compile_inner')
      )
),
followed AS (
    SELECT *, lead(what) OVER (PARTITION BY artifact_id, proc_id, thread ORDER BY ts_ns, row) AS next_what
    FROM marked
),
uncompiled AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY artifact_id, proc_id) AS n_uncompiled
    FROM followed
    -- The trace may end between the question and what came of it.
    WHERE what = 'asked' AND next_what = 'asked'
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY ts_ns, row) = 1
),
counted AS (
    SELECT
        artifact_id,
        proc_id,
        count(*) FILTER (WHERE what = 'asked') AS n_calls,
        count(*) FILTER (WHERE what = 'found') AS n_found
    FROM marked
    GROUP BY artifact_id, proc_id
)
SELECT
    u.artifact_id,
    u.row,
    'slice' AS "table",
    u.proc_id,
    u.rank,
    u.step,
    u.ts_ns,
    u.n_uncompiled,
    'ran ' || u.n_uncompiled || ' of ' || c.n_calls || ' calls of compiled functions uncompiled: no compiled version fitted, and none was compiled for them'
        || coalesce('; the first began with ' || (
            SELECT arg_min(n.text, (s.ts_ns, s.row)) FROM slice AS s JOIN string AS n ON n.id = s.name_id
            WHERE s.artifact_id = u.artifact_id AND s.proc_id IS NOT DISTINCT FROM u.proc_id AND s.thread IS NOT DISTINCT FROM u.thread
              AND s.kind = 'cpu_op' AND starts_with(n.text, 'aten::') AND s.ts_ns > u.ts_ns
        ), '') AS told,
    CASE WHEN 2 * u.n_uncompiled >= c.n_calls THEN 'high' ELSE 'medium' END AS severity,
    'performance' AS role,
    ['throughput-low'] AS causes,
    'uncompiled calls' AS key
FROM uncompiled AS u
JOIN counted AS c ON c.artifact_id = u.artifact_id AND c.proc_id IS NOT DISTINCT FROM u.proc_id
-- Old versions do not mark what they found.
WHERE c.n_found > 0 AND u.n_uncompiled >= $min_calls AND u.n_uncompiled >= $min_share * c.n_calls
ORDER BY u.ts_ns, u.artifact_id, u.row;
