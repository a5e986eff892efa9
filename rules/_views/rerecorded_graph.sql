-- Functions whose CUDA graph the compiler recorded again until it reached its limit and gave the graph up: a row a function
-- of a process. has_moved: because static inputs came at new addresses; because: the compiler's reason, after a colon.
CREATE TEMP VIEW rerecorded_graph AS
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.ts_ns,
    e.line,
    e.fields ->> 'function_id' AS function_id,
    e.fields ->> 'limit' AS n_limit,
    coalesce(': ' || left(e.fields ->> 'reason', 200), '') AS because,
    e.class = 'capture.address-change' AS has_moved,
    e.class AS key
FROM log AS e
WHERE e.class IN ('capture.rerecord', 'capture.address-change') AND e.role <> 'noise'
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id, e.class, e.fields ->> 'function_id' ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1;
