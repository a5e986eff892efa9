/*
title = "Ranks compile differently"
severity = "medium"
role = "performance"
scope = "job"
proves = """
Of ranks whose compilations are on record, some compiled the named function more often than others: their inputs, or the
guards on them, differ."""
cannot_prove = """
That a collective waited for it; where only some ranks compile, the others wait in the next collective for as long as that takes."""
message = "{function_name} was compiled {n_most:# time|# times} by rank {rank} and {n_least:# time|# times} by rank {other_rank}{cost}"
fix = "Give every rank the same shapes (pad to common lengths, drop the last partial batch) or mark the dimension dynamic; raise the timeout of collectives above the longest compilation while that is not so."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_difference]
value = 2
unit = "compilations of one function by one rank more than by another"
why = "one may be the short last batch, which not every rank gets"

[thresholds.long_ns]
value = 60e9
unit = "ns that one rank compiles longer than another"
why = "a tenth of the usual timeout of collectives, ten minutes"

[variant.events]
needs = ["compile_event"]
strength = "strong"
*/
-- variant: events
WITH
member AS (
    -- Ranks whose compilations are told by the same kind of artifact: what one log was asked for, the other need not have been.
    SELECT DISTINCT p.attempt, c.rank, a.format
    FROM compile_event AS c
    JOIN artifact AS a ON a.id = c.artifact_id
    JOIN proc AS p ON p.id = c.proc_id
    WHERE c.rank IS NOT NULL
),
made AS (
    SELECT
        p.attempt,
        c.rank,
        a.format,
        coalesce(n.text, k.function) AS function_name,
        -- TORCH_LOGS names recompilations, TORCH_TRACE every compilation and, for some, its reason.
        greatest(count(*) FILTER (WHERE c.kind = 'compile'), count(*) FILTER (WHERE c.kind = 'recompile')) AS n,
        sum(c.dur_ns) AS dur_ns,
        min(c.artifact_id) AS artifact_id,
        min(c.row) AS row
    FROM compile_event AS c
    JOIN artifact AS a ON a.id = c.artifact_id
    JOIN proc AS p ON p.id = c.proc_id
    LEFT JOIN string AS n ON n.id = c.name_id
    LEFT JOIN frame AS k ON k.id = c.stack_id
    WHERE c.rank IS NOT NULL AND c.kind IN ('compile', 'recompile')
    GROUP BY ALL
),
known AS (
    SELECT m.attempt, m.rank, m.format, f.function_name, coalesce(d.n, 0) AS n, coalesce(d.dur_ns, 0) AS dur_ns, d.artifact_id, d.row
    FROM member AS m
    JOIN (SELECT DISTINCT attempt, format, function_name FROM made WHERE function_name IS NOT NULL) AS f
        ON f.attempt = m.attempt AND f.format IS NOT DISTINCT FROM m.format
    LEFT JOIN made AS d ON d.attempt = m.attempt AND d.rank = m.rank AND d.format IS NOT DISTINCT FROM m.format AND d.function_name = f.function_name
)
SELECT
    most.artifact_id,
    most.row,
    'compile_event' AS "table",
    most.rank,
    most.function_name,
    most.n AS n_most,
    least.n AS n_least,
    least.rank AS other_rank,
    CASE WHEN most.dur_ns - least.dur_ns >= 1e9 THEN ', ' || round((most.dur_ns - least.dur_ns) / 1e9, 1) || ' s longer' ELSE '' END AS cost,
    CASE WHEN most.dur_ns - least.dur_ns >= $long_ns THEN 'high' ELSE 'medium' END AS severity,
    most.function_name AS key
FROM known AS most
JOIN known AS least ON least.attempt = most.attempt AND least.format IS NOT DISTINCT FROM most.format AND least.function_name = most.function_name AND least.rank <> most.rank
WHERE most.n - least.n >= $min_difference
QUALIFY row_number() OVER (PARTITION BY most.attempt, most.function_name ORDER BY most.n - least.n DESC, most.rank, least.rank) = 1
ORDER BY n_most DESC, most.artifact_id, most.row;
