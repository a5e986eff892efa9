-- Compilations of a function that was compiled before, with the guard that failed, as TORCH_LOGS or TORCH_TRACE tell them.
-- A row is one recompilation. Where the trace keeps no reasons, every compilation of a frame but its first is one.
-- dur_ns: how long that compilation took; NULL unknown. What a log and a trace of one process both tell is one row.
CREATE TEMP VIEW recompilation AS
WITH
timed AS (
    SELECT
        artifact_id,
        proc_id,
        split_part(compile_id, '_', 1) AS compile_id,
        sum(dur_ns) AS dur_ns
    FROM compile_event
    WHERE kind IN ('compile', 'compile-backward', 'limit', 'failure') AND compile_id IS NOT NULL
    GROUP BY ALL
)
SELECT
    c.artifact_id,
    c.row,
    c.proc_id,
    c.rank,
    c.ts_ns,
    c.compile_id,
    coalesce(n.text, k.function, f.function_name, 'frame ' || split_part(c.compile_id, '/', 1)) AS function_name,
    coalesce(k.file, f.file) AS file,
    coalesce(k.line, f.line_of_code) AS line_of_code,
    coalesce(nullif(ltrim(regexp_replace(split_part(r.text, chr(10), 1), '^\d+/\d+: ', '')), ''), 'the guard is not on record') AS guard,
    t.dur_ns
FROM compile_event AS c
LEFT JOIN string AS n ON n.id = c.name_id
LEFT JOIN string AS r ON r.id = c.reason_id
LEFT JOIN frame AS k ON k.id = c.stack_id
LEFT JOIN compiled_frame AS f
    ON f.artifact_id = c.artifact_id AND f.proc_id IS NOT DISTINCT FROM c.proc_id AND f.frame = split_part(c.compile_id, '/', 1)
LEFT JOIN timed AS t
    ON t.artifact_id = c.artifact_id
    AND t.proc_id IS NOT DISTINCT FROM c.proc_id
    AND t.compile_id = split_part(c.compile_id, '_', 1)
WHERE c.kind = 'recompile'
   OR (
       c.kind = 'compile'
       AND c.compile_id IS NOT NULL
       AND split_part(split_part(c.compile_id, '_', 1), '/', -1) <> '0'
       AND NOT EXISTS (SELECT 1 FROM compile_event AS o WHERE o.artifact_id = c.artifact_id AND o.kind = 'recompile')
   )
-- A process that leaves both a structured trace and a log tells of each twice; the trace knows how long it took.
QUALIFY dense_rank() OVER (PARTITION BY c.proc_id, coalesce(c.compile_id, c.artifact_id || ' ' || c.row) ORDER BY t.dur_ns IS NULL, c.artifact_id) = 1;
