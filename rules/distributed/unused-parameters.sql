/*
title = "Parameters took no part in the loss under DDP"
severity = "critical"
proves = """
The reducer of DistributedDataParallel began a new forward pass while it still waited for gradients of the last one: on
this rank some parameters got none."""
cannot_prove = """
Which parameters, unless the message lists them (TORCH_DISTRIBUTED_DEBUG=DETAIL). Whether they are unused by design (a
frozen or skipped branch) or by mistake (an output that was dropped, a backward that was left out)."""
message = "{who}{at_step}: DDP still waits for gradients of {parameters}{detail}"
fix = "Freeze what is not to be trained (requires_grad_(False) before DDP wraps the model), let every output take part in the loss, or pass find_unused_parameters=True; run once with TORCH_DISTRIBUTED_DEBUG=DETAIL to see the names."
causes = [{ state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html"]

[variant.named]
needs = ["log_event"]
strength = "proof"

[variant.unnamed]
needs = ["log_event"]
strength = "strong"
says = "The message does not list the parameters."
*/
-- variant: named
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    coalesce(CAST(e.fields ->> 'stuck_rank' AS INTEGER), e.rank) AS rank,
    e.step,
    e.ts_ns,
    e.line,
    e.where_in_code,
    left(coalesce(e.fields ->> 'parameters', 'the parameters with indices ' || (e.fields ->> 'parameter_indices')), 200) AS parameters,
    e.fields ->> 'parameters' AS module,
    '' AS detail,
    left(coalesce(e.fields ->> 'parameters', e.fields ->> 'parameter_indices'), 80) AS key
FROM reported_failure AS e
WHERE e.signature = 'ddp-unused-parameters'
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'parameters', e.fields ->> 'parameter_indices') IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: unnamed
WITH
setting AS (
    SELECT max(lower(value)) AS value FROM fact WHERE regexp_matches(lower(key), '(^|\.)(ddp_)?find_unused_parameters$')
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
    'some parameters' AS parameters,
    CASE
        WHEN s.value = 'true'
            THEN '; find_unused_parameters is set somewhere, so look for outputs that DDP cannot find (objects it does not look into)'
        ELSE ''
    END AS detail,
    'unused' AS key
FROM reported_failure AS e
CROSS JOIN setting AS s
WHERE e.signature = 'ddp-unused-parameters'
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
