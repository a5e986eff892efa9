/*
title = "An operand was on another device than the others"
severity = "critical"
proves = """
An operator was called with tensors on different devices and refused them."""
cannot_prove = """
Which of the two is in the wrong place: the input that was not moved, or the module that was not, or that a device map
put elsewhere."""
message = "{who}{at_step}: {op} got operands on {devices}{detail}"
fix = "{remedy}"
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "weights-incomplete", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#best-practices"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
refused AS (
    SELECT
        e.*,
        coalesce(e.fields ->> 'device_name', e.fields ->> 'expected_device_name', e.fields ->> 'got_device_name', e.fields ->> 'expected', e.fields ->> 'weight_type') AS one,
        coalesce(e.fields ->> 'other_device_name', e.fields ->> 'others_device_name', e.fields ->> 'got_device_name', e.fields ->> 'got', e.fields ->> 'input_type') AS other
    FROM reported_failure AS e
    WHERE e.role = 'primary'
      AND (
          (e.class = 'code.device' AND NOT regexp_matches(e.message, '(?i)expected object of scalar ?type'))
          -- The same refusal, as operators with typed inputs word it.
          OR (
              (e.fields ->> 'input_type') IS NOT NULL
              AND ((e.fields ->> 'input_type') LIKE '%cuda%') <> ((e.fields ->> 'weight_type') LIKE '%cuda%')
          )
      )
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.where_in_code,
    coalesce(r.fields ->> 'method', 'an operator') AS op,
    coalesce(r.one || ' and ' || r.other, 'different devices') AS devices,
    coalesce('; the argument is ' || (r.fields ->> 'argument'), '') || coalesce('; called from ' || r.where_in_code, '') AS detail,
    CASE
        WHEN r.one LIKE 'cuda:%' AND r.other LIKE 'cuda:%'
            THEN 'Check the device map: keep blocks that exchange tensors on one device (no_split_module_classes), and move inputs to the device of the first layer.'
        WHEN (r.fields ->> 'argument') IN ('index', 'indices', 'target', 'input', 'self')
            THEN 'Move the batch to the device of the model before the call: batch = {k: v.to(model.device) for k, v in batch.items()}.'
        ELSE 'Move both to one device: inputs with .to(device), tensors of modules with register_buffer so that model.to(device) takes them along.'
    END AS remedy,
    coalesce(r.fields ->> 'method', r.signature) AS key
FROM refused AS r
QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.attempt ORDER BY r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
