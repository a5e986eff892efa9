-- Over how many micro-batches each process says that it accumulates gradients: its metrics, else its settings.
CREATE TEMP VIEW accumulation_told AS
SELECT
    p.id AS proc_id,
    CAST(coalesce(m.n_micro, s.n_micro) AS INTEGER) AS n_micro
FROM proc AS p
LEFT JOIN (
    SELECT proc_id, min(value) AS n_micro FROM metric
    WHERE name = 'accumulation_steps' GROUP BY proc_id HAVING min(value) BETWEEN 1 AND 1e6
) AS m ON m.proc_id = p.id
LEFT JOIN (
    -- Of the process, or of the job as a whole; settings that differ say nothing.
    SELECT proc_id, min(number) AS n_micro FROM fact
    WHERE lower(key) SIMILAR TO '(.*\.)?gradient[_-]accumulation[_-]steps' AND number BETWEEN 1 AND 1e6
    GROUP BY proc_id HAVING min(number) = max(number)
) AS s ON s.proc_id = p.id OR s.proc_id IS NULL
WHERE coalesce(m.n_micro, s.n_micro) > 1
QUALIFY row_number() OVER (PARTITION BY p.id ORDER BY s.proc_id NULLS LAST) = 1;
