/*
title = "An adapter does not reach the model"
severity = "high"
scope = "job"
cannot_prove = """
Which values the model computed with: the library goes on with the base model's and a freshly made adapter."""
message = "{told}"
fix = "Load the adapter with the class and the base model that it was trained with, and compare the module names of both; check the result of load_state_dict for missing and unexpected keys."
causes = [{ state = "weights-incomplete", of = "job" }]
references = ["https://huggingface.co/docs/peft/developer_guides/troubleshooting"]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The library said that keys of the adapter were missing, or that none of its target modules is in the model."""

[variant.files]
needs = ["checkpoint"]
strength = "indication"
proves = """
No module of the stored adapter is in the stored base model, while all of them are once a prefix is added or taken
off."""
says = "That this base model and this adapter were to be used together is taken from their lying in one job's folder."
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
    'An adapter was not loaded as it was stored: ' || left(regexp_extract(e.message, '^[^\n]*'), 240) AS told,
    e.signature AS key
FROM log AS e
WHERE e.signature = 'adapter-keys-missing'
  AND e.role <> 'noise'
  AND (contains(e.message, 'missing adapter keys') OR contains(e.message, 'not found in the base model'))
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: files
WITH
base AS (
    SELECT DISTINCT
        k.unit,
        regexp_replace(k.parameter, '\.weight$', '') AS module
    FROM state_key AS k
    JOIN checkpoint AS c ON c.artifact_id = k.artifact_id
    WHERE c.n_adapter_modules = 0 AND k.parameter LIKE '%.weight'
),
adapted AS (
    SELECT
        m.artifact_id,
        n.text AS module
    FROM adapter_module AS m
    JOIN string AS n ON n.id = m.name_id
),
fit AS (
    SELECT
        a.artifact_id,
        b.unit,
        count(DISTINCT a.module) AS n_near,
        bool_or(a.module = b.module) AS any_same,
        min(a.module) AS module,
        min(b.module) FILTER (WHERE ends_with(b.module, '.' || a.module) OR ends_with(a.module, '.' || b.module)) AS there
    FROM adapted AS a
    JOIN base AS b ON a.module = b.module OR ends_with(b.module, '.' || a.module) OR ends_with(a.module, '.' || b.module)
    GROUP BY a.artifact_id, b.unit
),
counted AS (SELECT artifact_id, count(DISTINCT module) AS n FROM adapted GROUP BY artifact_id)
SELECT
    f.artifact_id,
    0 AS row,
    'adapter_module' AS "table",
    p.path || ': none of the ' || n.n || ' modules of the adapter is in ' || q.path || ', but each is there under another prefix ('
        || f.module || ' against ' || f.there || ')' AS told,
    f.module,
    f.module AS text,
    'the first module of the adapter' AS note,
    [{'artifact_id': f.unit, 'text': f.there, 'note': 'the module of the base model that is meant'}] AS evidence,
    f.module AS key
FROM fit AS f
JOIN counted AS n ON n.artifact_id = f.artifact_id AND n.n = f.n_near
JOIN checkpoint_file AS p ON p.artifact_id = f.artifact_id
JOIN checkpoint_file AS q ON q.artifact_id = f.unit
WHERE NOT f.any_same
  AND NOT EXISTS (SELECT 1 FROM fit AS o WHERE o.artifact_id = f.artifact_id AND o.any_same)
QUALIFY row_number() OVER (PARTITION BY f.artifact_id ORDER BY f.unit) = 1
ORDER BY f.artifact_id;
