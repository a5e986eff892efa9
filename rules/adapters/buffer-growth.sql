/*
title = "Modules get buffers anew, and keep the old ones"
severity = "high"
scope = "job"
cannot_prove = """
That the growth is not meant (a memory that a model fills up to a bound), and that memory ran out by it."""
message = "{who} keeps what was registered before: {n_first:# buffer|# buffers} {family} at step {first_step}, {n_last} at step {step}{grown}"
fix = "Register the buffer once and copy into it (buffer.copy_(value)), or take the old one out (delattr) before its successor is registered; persistent=False keeps what can be computed anew out of the checkpoints."
causes = [{ state = "memory-retained", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer"]

[thresholds.min_samples]
value = 4
unit = "samples, or saved states"
why = "buffers that are made when they are first used appear in the first one or two steps"

[thresholds.min_grave_growth]
value = 0.1
unit = "bytes that came / bytes of parameters and buffers in the first sample"
why = "a tenth of the memory is what makes a cost grave (severities in rules/README.md)"

[variant.recorder]
needs = ["tensor"]
strength = "strong"
proves = """
Buffers of the running model whose names differ by a number alone get more from sample to sample, up to the last, and
none of them goes: each time code registers one under a new name, and the module keeps all before it."""

[variant.files]
needs = ["checkpoint"]
strength = "strong"
proves = """
States that were saved one after the other hold more and more tensors whose names differ by a number alone, and none
of them goes: the later ones cannot be loaded into a new model."""
says = "What lies in memory is told from what was saved."
*/
-- variant: recorder
WITH
held AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        t.step,
        t.role,
        n.text AS name,
        regexp_replace(n.text, '[0-9]+', '#', 'g') AS family,
        max(t.row) AS row,
        max(t.ts_ns) AS ts_ns,
        max(list_product(TRY_CAST(s.text AS BIGINT[])) * CASE
            WHEN t.dtype LIKE '%64' THEN 8 WHEN t.dtype LIKE '%16' THEN 2 WHEN t.dtype LIKE '%8%' THEN 1 ELSE 4
        END) AS bytes
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    LEFT JOIN string AS s ON s.id = t.shape_id
    WHERE t.role IN ('buffer', 'parameter') AND t.step IS NOT NULL
    GROUP BY t.artifact_id, t.proc_id, t.rank, t.step, t.role, n.text
),
counted AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        family,
        step,
        count(*) AS n,
        sum(bytes) AS bytes,
        max(row) AS row,
        max(ts_ns) AS ts_ns,
        arg_max(name, row) AS name
    FROM held
    WHERE role = 'buffer'
    GROUP BY artifact_id, proc_id, rank, family, step
),
risen AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        family,
        min(step) AS first_step,
        max(step) AS step,
        min(n) AS n_first,
        max(n) AS n_last,
        max(bytes) - min(bytes) AS grown_bytes,
        max(row) AS row,
        max(ts_ns) AS ts_ns,
        arg_max(name, row) AS name
    FROM (
        SELECT
            *,
            n > lag(n) OVER (PARTITION BY artifact_id, proc_id, family ORDER BY step) AS rose
        FROM counted
    )
    GROUP BY artifact_id, proc_id, rank, family
    HAVING count(*) >= $min_samples AND bool_and(coalesce(rose, true))
),
whole AS (
    SELECT
        artifact_id,
        proc_id,
        sum(bytes) AS bytes
    FROM held
    WHERE step = (SELECT min(h.step) FROM held AS h WHERE h.artifact_id = held.artifact_id AND h.proc_id IS NOT DISTINCT FROM held.proc_id)
    GROUP BY artifact_id, proc_id
)
SELECT
    r.artifact_id,
    r.row,
    'tensor' AS "table",
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.first_step,
    r.family,
    r.n_first,
    r.n_last,
    r.grown_bytes::BIGINT AS grown_bytes,
    coalesce(', ' || format_bytes(r.grown_bytes::BIGINT) || ' more', '') AS grown,
    r.name AS module,
    CASE WHEN coalesce(r.grown_bytes, 0) < $min_grave_growth * w.bytes THEN 'medium' END AS severity,
    r.family AS key
FROM risen AS r
JOIN whole AS w ON w.artifact_id = r.artifact_id AND w.proc_id IS NOT DISTINCT FROM r.proc_id
QUALIFY row_number() OVER (PARTITION BY r.artifact_id, r.proc_id ORDER BY r.grown_bytes DESC NULLS LAST, r.family) = 1
ORDER BY r.artifact_id, r.row;
-- variant: files
WITH
stored AS (
    SELECT
        f.artifact_id,
        f.run,
        f.file,
        f.saved_step AS step,
        regexp_replace(t.name, '[0-9]+', '#', 'g') AS family,
        count(*) AS n,
        sum(t.size_bytes) AS bytes,
        max(t.row) AS row,
        arg_max(t.name, t.row) AS name
    FROM checkpoint_file AS f
    JOIN stored_tensor AS t ON t.artifact_id = f.artifact_id
    WHERE f.saved_step IS NOT NULL AND f.damage IS NULL AND NOT f.is_unfinished AND f.kind IN ('safetensors', 'torch-zip', 'torch-legacy')
      AND NOT regexp_matches(f.file, '(?i)optim|sched|scaler|rng|random')
    GROUP BY f.artifact_id, f.run, f.file, f.saved_step, regexp_replace(t.name, '[0-9]+', '#', 'g')
),
placed AS (
    SELECT
        *,
        concat_ws('/', run, regexp_replace(file, '[0-9]+', '#', 'g')) AS series
    FROM stored
    -- Copies of one state, in several folders, count once.
    QUALIFY row_number() OVER (PARTITION BY run, regexp_replace(file, '[0-9]+', '#', 'g'), step, family ORDER BY artifact_id) = 1
),
risen AS (
    SELECT
        series,
        family,
        min(step) AS first_step,
        max(step) AS step,
        min(n) AS n_first,
        max(n) AS n_last,
        max(bytes) - min(bytes) AS grown_bytes,
        arg_max(artifact_id, step) AS artifact_id,
        arg_max(row, step) AS row,
        arg_max(name, step) AS name,
        arg_min(artifact_id, step) AS first_id
    FROM (
        SELECT
            *,
            n > lag(n) OVER (PARTITION BY series, family ORDER BY step) AS rose
        FROM placed
    )
    GROUP BY series, family
    HAVING count(*) >= $min_samples AND bool_and(coalesce(rose, true))
)
SELECT
    r.artifact_id,
    r.row,
    'checkpoint_tensor' AS "table",
    t.byte,
    r.step,
    r.first_step,
    r.family,
    r.n_first,
    r.n_last,
    r.grown_bytes::BIGINT AS grown_bytes,
    ', ' || format_bytes(r.grown_bytes::BIGINT) || ' more in each saved state' AS grown,
    r.name AS module,
    [{'artifact_id': r.first_id, 'note': 'the first of these states'}] AS evidence,
    CASE
        WHEN r.grown_bytes < $min_grave_growth * (SELECT c.size_bytes FROM checkpoint AS c WHERE c.artifact_id = r.first_id) THEN 'medium'
    END AS severity,
    [] AS causes,
    r.family AS key
FROM risen AS r
JOIN checkpoint_tensor AS t ON t.artifact_id = r.artifact_id AND t.row = r.row
QUALIFY row_number() OVER (PARTITION BY r.series ORDER BY r.grown_bytes DESC, r.family) = 1
ORDER BY r.artifact_id, r.row;
