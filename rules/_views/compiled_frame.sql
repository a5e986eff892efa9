-- Functions that were compiled, by the number that the compiler gives them (`0` of the compile id `0/3`): a row a function
-- of a process in one artifact. Other events of a structured trace carry the number alone.
CREATE TEMP VIEW compiled_frame AS
SELECT
    c.artifact_id,
    c.proc_id,
    split_part(c.compile_id, '/', 1) AS frame,
    coalesce(n.text, k.function) AS function_name,
    k.file,
    k.line AS line_of_code
FROM compile_event AS c
LEFT JOIN string AS n ON n.id = c.name_id
LEFT JOIN frame AS k ON k.id = c.stack_id
WHERE c.kind IN ('compile', 'failure') AND c.compile_id IS NOT NULL AND coalesce(n.text, k.function) IS NOT NULL
QUALIFY row_number() OVER (PARTITION BY c.artifact_id, c.proc_id, frame ORDER BY c.kind, c.row) = 1;
