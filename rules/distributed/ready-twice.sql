/*
title = "A parameter's gradient was ready twice in one backward under DDP"
severity = "critical"
proves = """
The reducer of DistributedDataParallel was told twice in one iteration that the gradient of the same parameter is ready."""
cannot_prove = """
Which of the two usual reasons it was: the parameter belongs to several reentrant backward passes (activation
checkpointing with use_reentrant=True), or it was used outside the wrapped forward."""
message = "{who}{at_step}: the gradient of {parameter} was ready twice in one backward{detail}"
fix = "Use non-reentrant checkpointing (use_reentrant=False), call the wrapped module only once before each backward, or wrap with static_graph=True when the graph is the same each step; drop find_unused_parameters=True beside checkpointing."
causes = [{ state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/checkpoint.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
setting AS (
    SELECT
        bool_or(regexp_matches(lower(key), '(gradient|activation)_checkpointing$') AND lower(value) IN ('true', '1')) AS checkpoints,
        bool_or(regexp_matches(lower(key), 'use_reentrant$') AND lower(value) IN ('false', '0')) AS is_not_reentrant,
        bool_or(regexp_matches(lower(key), 'find_unused_parameters$') AND lower(value) IN ('true', '1')) AS finds_unused
    FROM fact
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.where_in_code,
    coalesce(e.fields ->> 'parameter', 'parameter ' || (e.fields ->> 'parameter_index'), 'a parameter') AS parameter,
    e.fields ->> 'parameter' AS module,
    CASE
        WHEN s.checkpoints AND NOT coalesce(s.is_not_reentrant, FALSE) AND s.finds_unused
            THEN '; the settings have activation checkpointing together with find_unused_parameters'
        WHEN s.checkpoints AND NOT coalesce(s.is_not_reentrant, FALSE) THEN '; the settings have activation checkpointing'
        ELSE ''
    END AS detail,
    coalesce(e.fields ->> 'parameter', 'ready-twice') AS key
FROM reported_failure AS e
CROSS JOIN setting AS s
WHERE e.signature = 'ddp-ready-twice'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
