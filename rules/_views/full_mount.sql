-- The fullest file system that a listing (df) among the logs shows as nearly full. One row, or none.
CREATE TEMP VIEW full_mount AS
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.fields ->> 'mount' AS mount,
    e.fields ->> 'used_percent' AS used_percent
FROM log AS e
WHERE e.class = 'storage.usage'
QUALIFY row_number() OVER (ORDER BY CAST(e.fields ->> 'used_percent' AS INTEGER) DESC, e.artifact_id, e.row) = 1;
