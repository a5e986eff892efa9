/*
title = "The model's description does not lead to a complete model"
severity = "critical"
proves = """
The library could not tell the class of the model from its configuration, or parameters stayed on the meta device: shapes
without data."""
cannot_prove = """
Whether the configuration lacks something or the installed library is older than the model. For meta tensors, which step
left them without data: an offload by a device map, a save of an offloaded model, or a checkpoint that lacks them."""
message = "{who}: {what}: {said}{detail}"
fix = "{remedy}"
causes = [{ state = "weights-incomplete", of = "job" }, { state = "rank-failed", of = "rank" }]
references = [
  "https://huggingface.co/docs/accelerate/concept_guides/big_model_inference",
  "https://docs.pytorch.org/docs/stable/meta.html",
]

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
offloaded AS (
    SELECT
        e.artifact_id,
        e.row,
        e.line,
        a.path
    FROM log AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.signature = 'meta-offload'
    QUALIFY row_number() OVER (ORDER BY e.artifact_id, e.row) = 1
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.said,
    e.where_in_code,
    CASE
        WHEN e.class = 'model.meta-tensor' THEN 'parameters have shapes but no data (meta device)'
        WHEN e.signature = 'model-type-missing' THEN 'the configuration does not name a model type that is known here'
        WHEN e.signature = 'remote-code-refused' THEN 'the model brings its own code, which was not allowed'
        ELSE 'no class fits the configuration'
    END AS what,
    CASE
        WHEN e.class = 'model.meta-tensor' AND o.path IS NOT NULL
            THEN '; an earlier load had offloaded parameters to the meta device (' || o.path || ')'
        ELSE ''
    END AS detail,
    CASE
        WHEN e.class = 'model.meta-tensor' AND o.path IS NOT NULL
            THEN 'Load the model whole before it is merged or saved (device_map="cpu" or one device, low_cpu_mem_usage=False), then save again.'
        WHEN e.class = 'model.meta-tensor' THEN 'Load weights before .to(device) (or module.to_empty(device=…) and then load_state_dict with assign=True); do not call .to() on a model that a device map placed.'
        WHEN e.signature = 'model-type-missing' THEN 'Check that config.json is there and has model_type; if the model is newer than the installed transformers, upgrade it.'
        WHEN e.signature = 'remote-code-refused' THEN 'Read the code of the repository, then pass trust_remote_code=True.'
        ELSE 'Use the Auto class that belongs to the architecture in config.json, and upgrade the library if the model is newer.'
    END AS remedy,
    CASE
        WHEN e.class = 'model.meta-tensor' AND o.path IS NOT NULL
            THEN [{'artifact_id': o.artifact_id, 'row': o.row, 'line': o.line, 'note': 'parameters were left on the meta device'}]
    END AS evidence,
    CASE WHEN e.completed THEN 'medium' END AS severity,
    coalesce(e.fields ->> 'model_type', e.fields ->> 'config', e.signature) AS key
FROM reported_failure AS e
LEFT JOIN offloaded AS o ON e.class = 'model.meta-tensor'
WHERE e.class IN ('model.config', 'model.meta-tensor')
  AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
