-- What keeps many tensors of a process alive by one and the same way, as recorded references tell: of each process and
-- way the tensors that differ only in their place in a container. `holder`: the variable, attribute or object that owns
-- the container; `way`: from the tensors outwards. Parameters and buffers are kept by their modules and are none of them.
CREATE TEMP VIEW tensor_keeper AS
WITH
chain AS (
    SELECT
        r.artifact_id,
        r.proc_id,
        r.tensor,
        min(r.row) AS row,
        max(r.size_bytes) AS size_bytes,
        string_agg(regexp_replace(h.text, '\[-?\d+\] of (\d+)$', ' of \1'), ' ← ' ORDER BY r.place) AS way,
        coalesce(min_by(h.text, r.place) FILTER (WHERE h.text LIKE 'attribute %' OR h.text LIKE 'variable %'), min_by(h.text, r.place)) AS holder,
        bool_or(h.text LIKE 'attribute \_parameters of %' ESCAPE '\' OR h.text LIKE 'attribute \_buffers of %' ESCAPE '\') AS is_model
    FROM reference_link AS r
    JOIN string AS h ON h.id = r.holder_id
    GROUP BY r.artifact_id, r.proc_id, r.tensor
)
SELECT
    artifact_id,
    proc_id,
    way,
    min(holder) AS holder,
    count(*) AS n_tensors,
    sum(size_bytes)::BIGINT AS bytes,
    min(row) AS row
FROM chain
WHERE NOT is_model
GROUP BY artifact_id, proc_id, way
HAVING count(*) > 1
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY sum(size_bytes) DESC, artifact_id, way) = 1;
