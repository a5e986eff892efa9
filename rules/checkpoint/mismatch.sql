/*
title = "The checkpoint does not fit the model"
severity = "critical"
proves = """
Loading the state dict was refused because keys are missing, unexpected, or have another shape than the model's."""
cannot_prove = """
Which of the two is the wrong one: a changed model and a wrong checkpoint give the same message."""
message = "{who} could not load a checkpoint into {model}: {n_missing} missing, {n_unexpected} unexpected keys, {n_mismatched} of another shape"
fix = "Compare the model's configuration with that of the run that wrote the checkpoint; strip prefixes such as module. or _orig_mod. from the keys where wrappers added them."
causes = [{ state = "weights-incomplete", of = "job" }, { state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict"]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    coalesce(regexp_extract(e.message, 'state_dict for (\w+)', 1), 'the model') AS model,
    CASE WHEN e.message LIKE '%Missing key%' THEN 'some' ELSE 'no' END AS n_missing,
    CASE WHEN e.message LIKE '%Unexpected key%' THEN 'some' ELSE 'no' END AS n_unexpected,
    len(regexp_extract_all(e.message, 'size mismatch for')) AS n_mismatched,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    regexp_extract(e.message, 'state_dict for (\w+)', 1) AS key
FROM log AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class = 'ckpt.mismatch'
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
