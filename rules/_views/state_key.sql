-- Tensors of weights with the parameter that loading writes for their key: without what wrappers and a single adapter's
-- name add. unit: what is loaded together, a file or the shards that one index names.
CREATE TEMP VIEW state_key AS
WITH
sharded AS (
    SELECT
        i.artifact_id AS index_id,
        f.artifact_id
    FROM checkpoint_file AS i
    JOIN (SELECT DISTINCT artifact_id, file FROM checkpoint_tensor WHERE file IS NOT NULL) AS s ON s.artifact_id = i.artifact_id
    JOIN checkpoint_file AS f ON f.folder = i.folder AND f.file = s.file
    WHERE i.kind = 'index'
)
SELECT
    t.artifact_id,
    t.row,
    t.byte,
    t.name,
    t.shape,
    t.dtype,
    t.checksum,
    t.fault,
    coalesce(s.index_id, t.artifact_id) AS unit,
    replace(
        regexp_replace(
            regexp_replace(t.name, '^((base_model\.model|_orig_mod|module|_fsdp_wrapped_module)\.)+', ''),
            '\.(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer)\.', '.', 'g'
        ),
        '.default.weight', '.weight'
    ) AS parameter
FROM stored_tensor AS t
JOIN checkpoint AS c ON c.artifact_id = t.artifact_id
LEFT JOIN sharded AS s ON s.artifact_id = t.artifact_id
WHERE c.kind IN ('safetensors', 'torch-zip', 'torch-legacy');
