/*
title = "The checkpoint does not fit the model"
severity = "critical"
scope = "job"
proves = """
Loading the state dict was refused because keys are missing, unexpected, or have another shape than the model's. Of files alone: an index
names tensors that the whole shard beside it does not hold, or an adapter's factors have another size than its own
configuration or the weight of the base model that they adapt."""
cannot_prove = """
Which of the two is the wrong one: a changed model and a wrong checkpoint give the same message."""
message = "{told}"
fix = "Compare the model's configuration with that of the run that wrote the checkpoint; strip prefixes such as module. or _orig_mod. from the keys where wrappers added them."
causes = [{ state = "weights-incomplete", of = "job" }, { state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.load_state_dict"]

[variant.log]
needs = ["log_event"]
strength = "strong"

[variant.files]
needs = ["checkpoint"]
strength = "strong"
says = "Files that lie in one job's folder are compared; that the job loaded them together is not shown."
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
    CASE WHEN e.rank IS NULL THEN 'The process' ELSE 'Rank ' || e.rank END
        || CASE WHEN NOT e.is_listed THEN ' could not load a saved state: ' || briefly(split_part(e.message, chr(10), 1), 240)
            || coalesce('; ' || (
                SELECT arg_min(o.fields ->> 'parameter' || ' is (' || trim(o.fields ->> 'shape', '[]') || ') in the file and (' || trim(o.fields ->> 'other_shape', '[]') || ') in the model', o.row)
                FROM log AS o
                WHERE o.artifact_id = e.artifact_id AND o.signature = 'load-report-row' AND o.fields ->> 'shape' IS NOT NULL AND o.line < e.line
            ), '')
        ELSE ' could not load a checkpoint into ' || coalesce(regexp_extract(e.message, 'state_dict for (\w+)', 1), 'the model')
        || CASE WHEN e.message LIKE '%Missing key%' THEN ': some missing, ' ELSE ': no missing, ' END
        || CASE WHEN e.message LIKE '%Unexpected key%' THEN 'some unexpected keys, ' ELSE 'no unexpected keys, ' END
        || len(regexp_extract_all(e.message, 'size mismatch for')) || ' of another shape'
        || coalesce('; first missing is ' || nullif(regexp_extract(e.message, 'Missing key[^:]*: "([^"]{1,200})"', 1), ''), '')
        || coalesce('; first unexpected is ' || nullif(regexp_extract(e.message, 'Unexpected key[^:]*: "([^"]{1,200})"', 1), ''), '')
        || CASE WHEN e.other.name = '' THEN ''
            ELSE '; ' || e.other.name || ' is (' || e.other.stored || ') in the file and (' || e.other.wanted || ') in the model' END
        END AS told,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    CASE WHEN e.is_listed THEN regexp_extract(e.message, 'state_dict for (\w+)', 1) ELSE e.signature END AS key
FROM (
    SELECT
        *,
        signature IN ('state-dict-mismatch', 'parameter-size-mismatch', 'missing-keys') AS is_listed,
        regexp_extract(
            message,
            'size mismatch for (\S{1,200}): copying a param with shape \D*([\d, ]*)\D+ from checkpoint, the shape in current model is \D*([\d, ]*)',
            ['name', 'stored', 'wanted']
        ) AS other
    FROM log
) AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE e.class = 'ckpt.mismatch'
  AND e.role = 'primary'
  AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: files
WITH
absent AS (
    SELECT
        i.artifact_id,
        t.file,
        min(f.artifact_id) AS other_id,
        count(*) AS n,
        min(t.name) AS name
    FROM checkpoint_file AS i
    JOIN stored_tensor AS t ON t.artifact_id = i.artifact_id
    JOIN checkpoint_file AS f ON f.folder = i.folder AND f.file = t.file AND f.damage IS NULL
    WHERE i.kind = 'index'
      AND NOT EXISTS (SELECT 1 FROM stored_tensor AS s WHERE s.artifact_id = f.artifact_id AND s.name = t.name)
    GROUP BY i.artifact_id, t.file
),
other_rank AS (
    SELECT
        f.artifact_id,
        min(c.artifact_id) AS other_id,
        min(n.text) AS name,
        count(*) AS n,
        min(m.lora_rank) AS stored,
        min(CAST(c.settings ->> 'r' AS BIGINT)) AS said
    FROM adapter_module AS m
    JOIN string AS n ON n.id = m.name_id
    JOIN checkpoint_file AS f ON f.artifact_id = m.artifact_id
    JOIN checkpoint_file AS c ON c.folder = f.folder AND c.kind = 'adapter-config'
    WHERE m.lora_rank <> TRY_CAST(c.settings ->> 'r' AS BIGINT)
      AND coalesce(c.settings ->> 'rank_pattern', '{}') = '{}'
    GROUP BY f.artifact_id
),
other_size AS (
    SELECT
        m.artifact_id,
        min(k.artifact_id) AS other_id,
        min(n.text) AS name,
        count(DISTINCT n.text) AS n,
        min(m.n_outputs || ' x ' || m.n_inputs) AS adapted,
        min(k.shape) AS shape
    FROM adapter_module AS m
    JOIN string AS n ON n.id = m.name_id
    JOIN state_key AS k ON k.parameter = n.text || '.weight'
    JOIN checkpoint AS b ON b.artifact_id = k.artifact_id AND b.n_adapter_modules = 0
    WHERE k.dtype IN ('float32', 'float16', 'bfloat16', 'float64')
      AND json_array_length(k.shape) = 2
      -- Layers of some models store inputs first.
      AND k.shape NOT IN (
          '[' || m.n_outputs || ',' || m.n_inputs || ']',
          '[' || m.n_inputs || ',' || m.n_outputs || ']'
      )
    GROUP BY m.artifact_id
),
found AS (
    SELECT artifact_id, other_id, name,
        n || ' tensors that the index places in ' || file || ' are not there, first ' || name AS what
    FROM absent
    UNION ALL
    SELECT artifact_id, other_id, name,
        n || ' modules of the adapter have the rank ' || stored || ', its configuration says ' || said || ', first ' || name AS what
    FROM other_rank
    UNION ALL
    SELECT artifact_id, other_id, name,
        n || ' modules of the adapter do not fit the base model, first ' || name || ': ' || adapted || ' on a weight of ' || shape AS what
    FROM other_size
)
SELECT
    d.artifact_id,
    0 AS row,
    'checkpoint' AS "table",
    NULL::INTEGER AS proc_id,
    f.path || ': ' || d.what AS told,
    d.name AS module,
    'high' AS severity,
    [{'artifact_id': d.other_id, 'note': 'compared with'}] AS evidence,
    d.name AS key
FROM found AS d
JOIN checkpoint_file AS f ON f.artifact_id = d.artifact_id
QUALIFY row_number() OVER (PARTITION BY d.artifact_id ORDER BY d.what) = 1
ORDER BY d.artifact_id;
