/*
title = "A function is compiled again and again"
severity = "medium"
role = "performance"
proves = """
One function was compiled anew at least as often as the threshold says, each time because the guard that is named did
not hold for what it was called with."""
cannot_prove = """
That the calls must vary: whether to mark the dimension dynamic, to pad, or to pass the value as a tensor is the author's choice."""
message = "{who} compiled {function_name}{place} anew {n_recompiles:# time|# times}{cost}; last because {guard}"
fix = "Keep what the guard compares constant, or let it vary: torch.compile(dynamic=True) or torch._dynamo.mark_dynamic for sizes, a tensor instead of a Python number, padding to a few lengths; with DistributedDataParallel try torch._dynamo.config.optimize_ddp=False."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_recompiles]
value = 4
unit = "recompilations of one function by one process"
measured = "n_recompiles"
why = "automatic dynamic shapes settle after one for each dimension that varies: batch, length, and the short last batch make three"

[thresholds.many_recompiles]
value = 7
unit = "recompilations of one function by one process"
why = "with the first compilation that is the default limit of eight, after which the function runs uncompiled"

[thresholds.long_ns]
value = 60e9
unit = "ns of recompilation of one function"
measured = "total_ns"
why = "a minute of every rank's time; a first compilation of a large model takes about as long"

[variant.events]
needs = ["compile_event"]
strength = "proof"
*/
-- variant: events
WITH
counted AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY artifact_id, proc_id, function_name, file, line_of_code) AS n_recompiles,
        count(DISTINCT guard) OVER (PARTITION BY artifact_id, proc_id, function_name, file, line_of_code) AS n_guards,
        sum(dur_ns) OVER (PARTITION BY artifact_id, proc_id, function_name, file, line_of_code) AS total_ns
    FROM recompilation
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id, function_name, file, line_of_code ORDER BY row DESC) = 1
)
SELECT
    artifact_id,
    row,
    'compile_event' AS "table",
    proc_id,
    rank,
    ts_ns,
    function_name,
    n_recompiles,
    total_ns,
    briefly(guard, 200) AS guard,
    coalesce(' (' || file || ':' || line_of_code || ')', '') AS place,
    CASE WHEN total_ns >= 1e9 THEN ', which took ' || round(total_ns / 1e9, 1) || ' s' ELSE '' END AS cost,
    function_name || coalesce(' (' || file || ':' || line_of_code || ')', '') AS where_in_code,
    CASE WHEN n_recompiles >= $many_recompiles OR total_ns >= $long_ns THEN 'high' ELSE 'medium' END AS severity,
    function_name AS key,
    function_name AS fault
FROM counted
WHERE n_recompiles >= $min_recompiles
ORDER BY n_recompiles DESC, ts_ns, artifact_id, row;
