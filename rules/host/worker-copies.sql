/*
title = "Memory of the data loader's workers grows as long as they run"
severity = "high"
scope = "job"
proves = """
Samples of the host show the own memory (USS, RSS) of several worker processes growing side by side through all quarters
of the record, while the main process, where it is sampled, keeps its size."""
cannot_prove = """
What grows. Forked workers share the parent's Python objects until they touch them, and reading one changes its reference
count: so each worker comes to hold a copy of a large list or frame. A cache or a leak in the data set looks the same."""
message = "{n_workers:# worker grew|# workers grew} from {first_bytes:bytes} to {last_bytes:bytes} in all, by the means of the first and the last quarter of the record{detail}"
fix = "Hold the samples outside of Python objects (NumPy arrays, torch tensors, Arrow, a memory-mapped file) instead of lists, dicts or object columns, or open them in each worker; look for caches in the data set; persistent_workers=False frees the copies after each epoch."
causes = [{ state = "host-full", of = "host" }]
references = ["https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading", "https://github.com/pytorch/pytorch/issues/13246"]

[thresholds.min_growth]
value = 2
unit = "memory of a worker in the last quarter of the record / in the first"
measured = "last_bytes / first_bytes"
why = "prefetched batches and imports settle within the first steps and seldom double what a worker holds"

[thresholds.min_lasting]
value = 0.5
unit = "growth between the last two quarters / growth between the first two"
why = "what settles grows ever less; copies of a data set grow with each sample that is read"

[thresholds.max_main_growth]
value = 1.2
unit = "memory of the main process in the last quarter / in the first"
why = "a main process that grows as well points to what all of them keep, not to the workers"

[variant.samples]
needs = ["sample"]
strength = "indication"
says = "Only sizes are recorded, not what they consist of."
*/
-- variant: samples
WITH
sampled AS (
    SELECT
        m.artifact_id,
        m.name,
        m.row,
        m.line,
        m.value,
        ntile(4) OVER (PARTITION BY m.artifact_id, m.name ORDER BY m.row) AS quarter,
        count(*) OVER (PARTITION BY m.artifact_id, m.name) AS n,
        regexp_matches(lower(m.name), '^(?:main|parent|trainer|master)\w*_(?:rss|uss|pss)$') AS is_main
    FROM metric AS m
    WHERE m.source = 'host'
      AND regexp_matches(lower(m.name), '^(?:(?:\w+_)?worker_?\d+|main|parent|trainer|master)\w*_(?:rss|uss|pss)$')
),
process AS (
    SELECT
        artifact_id,
        name,
        is_main,
        min(row) AS row,
        min(line) AS line,
        max(row) AS last_row,
        max(line) AS last_line,
        avg(value) FILTER (WHERE quarter = 1) AS q1,
        avg(value) FILTER (WHERE quarter = 2) AS q2,
        avg(value) FILTER (WHERE quarter = 3) AS q3,
        avg(value) FILTER (WHERE quarter = 4) AS q4
    FROM sampled
    WHERE n >= 8
    GROUP BY artifact_id, name, is_main
)
SELECT
    w.artifact_id,
    min(w.row) AS row,
    min(w.line) AS line,
    count(*) AS n_workers,
    CAST(sum(w.q1) AS BIGINT) AS first_bytes,
    CAST(sum(w.q4) AS BIGINT) AS last_bytes,
    CASE WHEN max(m.q1) IS NOT NULL THEN '; the main process kept its size' ELSE '' END AS detail,
    [
        {'artifact_id': w.artifact_id, 'row': min(w.row), 'line': min(w.line), 'note': 'the first sample'},
        {'artifact_id': w.artifact_id, 'row': max(w.last_row), 'line': max(w.last_line), 'note': 'the last sample'}
    ] AS evidence,
    'worker-copies' AS key
FROM process AS w
LEFT JOIN process AS m ON m.artifact_id = w.artifact_id AND m.is_main
WHERE NOT w.is_main
  AND w.q1 < w.q2 AND w.q2 < w.q3 AND w.q3 < w.q4
  AND w.q4 >= $min_growth * w.q1
  AND w.q4 - w.q3 >= $min_lasting * (w.q2 - w.q1)
  AND coalesce(m.q4 <= $max_main_growth * m.q1, TRUE)
GROUP BY w.artifact_id
HAVING count(*) >= 2
ORDER BY w.artifact_id;
