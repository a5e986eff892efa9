-- Amounts that a job logs (times, counts, shares), by the last part of their name: "train/data_time" is data_time.
CREATE TEMP VIEW logged_amount AS
SELECT
    m.artifact_id,
    m.row,
    m.line,
    m.proc_id,
    m.rank,
    m.step,
    m.ts_ns,
    list_last(string_split(replace(lower(m.name), '.', '/'), '/')) AS name,
    m.value
FROM metric AS m
WHERE m.source IN ('metrics', 'log') AND m.value >= 0 AND isfinite(m.value);
