-- What logs say of one computation by eager and by another backend, where the two are not equal.
-- A row is one saying. preference: 1 a difference in numbers, 2 two results, 3 words, 4 an accuracy test; how: which of them.
-- has_failed: a comparison in the same artifact failed. relative: difference of two numbers / larger of both, NULL unknown.
CREATE TEMP VIEW backend_comparison AS
WITH
compared AS (
    SELECT
        e.*,
        e.fields ->> 'backend' AS backend,
        concat_ws(' ', e.fields ->> 'user_code', e.fields ->> 'code', e.message) AS said,
        EXISTS (
            SELECT 1 FROM log AS c
            WHERE c.artifact_id = e.artifact_id AND c.role <> 'noise' AND c.class IN ('exception.comparison', 'compile.accuracy')
        ) AS has_failed
    FROM log AS e
    WHERE e.role <> 'noise' AND (e.class LIKE 'compile.%' OR e.class = 'exception.comparison')
)
SELECT
    artifact_id, row, line, proc_id, rank, ts_ns, has_failed,
    1 AS preference,
    coalesce(nullif(lower(backend), 'eager'), fields ->> 'other') AS backend,
    'the largest difference is ' || (fields ->> 'difference') AS what,
    try_cast(fields ->> 'difference' AS DOUBLE) AS difference,
    NULL::DOUBLE AS relative,
    0 AS n_lines
FROM compared
WHERE class = 'compile.differs' AND fields ->> 'difference' IS NOT NULL
UNION ALL BY NAME
SELECT
    y.artifact_id, y.row, y.line, y.proc_id, y.rank, y.ts_ns,
    y.has_failed OR starts_with(coalesce(y.fields ->> 'remark', ''), 'expected') AS has_failed,
    2 AS preference,
    y.backend,
    left(y.fields ->> 'outcome', 80) || ' instead of ' || left(x.fields ->> 'outcome', 80) AS what,
    abs(try_cast(x.fields ->> 'outcome' AS DOUBLE) - try_cast(y.fields ->> 'outcome' AS DOUBLE)) AS difference,
    abs(try_cast(x.fields ->> 'outcome' AS DOUBLE) - try_cast(y.fields ->> 'outcome' AS DOUBLE))
    / nullif(greatest(abs(try_cast(x.fields ->> 'outcome' AS DOUBLE)), abs(try_cast(y.fields ->> 'outcome' AS DOUBLE))), 0) AS relative,
    abs(y.line - x.line) AS n_lines
FROM compared AS x
JOIN compared AS y ON y.artifact_id = x.artifact_id AND y.line <> x.line
WHERE x.class = 'compile.outcome-of-backend' AND y.class = 'compile.outcome-of-backend'
  AND lower(x.backend) = 'eager' AND lower(y.backend) <> 'eager'
  AND (x.fields ->> 'outcome') <> (y.fields ->> 'outcome')
UNION ALL BY NAME
SELECT
    artifact_id, row, line, proc_id, rank, ts_ns,
    has_failed OR class <> 'compile.compared' AS has_failed,
    3 AS preference,
    coalesce(backend, fields ->> 'second', 'compiled code') AS backend,
    CASE WHEN class = 'compile.compared' THEN 'the comparison with eager failed' ELSE left(concat_ws(': ', fields ->> 'user_code', split_part(message, chr(10), 1), 'the largest difference is ' || (fields ->> 'greatest_difference')), 200) END AS what,
    NULL AS difference,
    NULL AS relative,
    0 AS n_lines
FROM compared
WHERE class = 'compile.compared'
   OR (class = 'compile.differs' AND fields ->> 'difference' IS NULL)
   OR (class IN ('exception.comparison', 'compile.accuracy') AND (contains(lower(said), 'compiled') OR contains(lower(said), 'inductor')))
UNION ALL BY NAME
SELECT
    artifact_id, row, line, proc_id, rank, ts_ns, has_failed,
    4 AS preference,
    'compiled code' AS backend,
    coalesce(
        'its error against float64 is ' || (fields ->> 'rmse') || ' where eager''s is ' || (fields ->> 'reference_rmse'),
        left(split_part(message, chr(10), 1), 160)
    ) AS what,
    (fields ->> 'rmse')::DOUBLE AS difference,
    NULL AS relative,
    0 AS n_lines
FROM compared
-- The benchmarks of PyTorch print the errors of tensors that pass too.
WHERE signature = 'accuracy-failed' AND coalesce((fields ->> 'rmse')::DOUBLE > 2 * (fields ->> 'reference_rmse')::DOUBLE, true);
