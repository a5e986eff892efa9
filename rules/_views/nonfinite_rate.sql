-- The first learning rate of each process that was not finite.
CREATE TEMP VIEW nonfinite_rate AS
SELECT
    proc_id,
    min_by(value, (step, row)) AS rate,
    min(step) AS rate_step
FROM metric
WHERE name = 'learning_rate' AND NOT isfinite(value) AND step IS NOT NULL
GROUP BY proc_id;
