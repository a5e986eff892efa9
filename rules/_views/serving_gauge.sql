-- Samples of what serving engines export at /metrics: a row a sample. n: number of the scrape within its source, from 1;
-- source: the file, or the folder where every file holds one scrape; part: the engine or rank that its labels name.
CREATE TEMP VIEW serving_gauge AS
WITH
exported AS (
    SELECT
        m.artifact_id,
        m.row,
        m.line,
        m.proc_id,
        m.ts_ns,
        m.name,
        m.entity,
        m.value,
        a.path,
        concat_ws('/', nullif(regexp_extract(m.entity, '(?:^|,)(?:engine|dp_rank)="([^"]*)"', 1), ''), nullif(regexp_extract(m.entity, '(?:^|,)(?:tp_rank|model)="([^"]*)"', 1), '')) AS part,
        try_cast(replace(regexp_extract(m.entity, '(?:^|,)le="([^"]*)"', 1), '+', '') AS DOUBLE) AS bound,
        count(*) OVER (PARTITION BY m.artifact_id, m.name_id, m.entity_id) > 1 AS has_scrapes
    FROM metric AS m
    JOIN artifact AS a ON a.id = m.artifact_id
    WHERE m.source = 'gauge'
),
placed AS (
    SELECT *, CASE WHEN has_scrapes THEN path ELSE regexp_replace(path, '/?[^/]*$', '') END AS source FROM exported
)
SELECT
    * EXCLUDE (has_scrapes, path),
    CASE
        WHEN ts_ns IS NULL THEN row_number() OVER (PARTITION BY source, name, entity ORDER BY artifact_id, row)
        ELSE dense_rank() OVER (PARTITION BY source ORDER BY ts_ns)
    END AS n
FROM placed;
