/*
title = "A compiled function is cut into many graphs, or runs uncompiled"
severity = "medium"
role = "performance"
proves = """
The tracer left the graph at the places that are named and began another one behind them, or, where it says so, left the whole function uncompiled."""
cannot_prove = """
What each break costs at run time: that depends on how often the function runs and on what could have been fused across it."""
message = "{who} breaks compiled graphs {n_breaks:# time|# times}, at {n_places:# place|# places}{cost}; first {reason}"
fix = "Take what the tracer cannot follow out of the compiled function (print, .item(), calls into C), or set torch._dynamo.config.capture_scalar_outputs=True for scalars; torch.compile(fullgraph=True) names each place as an error."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_breaks]
value = 3
unit = "graph breaks of one process, where none leaves a whole function uncompiled"
why = "one print, one .item() for a log line or one optimizer step is usual and cheap"

[thresholds.long_ns]
value = 60e9
unit = "ns of compiling the parts behind breaks"
why = "a minute of every rank's time"

[variant.record]
needs = ["log_event|compile_event"]
strength = "strong"
*/
-- variant: record
WITH
cut AS (
    SELECT
        c.artifact_id, c.row, 'compile_event' AS "table", c.proc_id, c.rank, c.ts_ns, NULL AS line,
        coalesce(k.file || ':' || k.line, n.text, c.compile_id) AS place,
        left(regexp_replace(coalesce(r.text, n.text, 'at a place that is not on record'), '\s+', ' ', 'g'), 160) AS reason,
        c.dur_ns,
        -- What the tracer says where it cannot go on behind the break.
        coalesce(contains(r.text, 'falling back to eager'), false) AS is_whole,
        nullif(regexp_extract(r.text, 'frame skipped: (\w{1,100})', 1), '') AS skipped
    FROM compile_event AS c
    LEFT JOIN string AS n ON n.id = c.name_id
    LEFT JOIN string AS r ON r.id = c.reason_id
    LEFT JOIN frame AS k ON k.id = c.stack_id
    WHERE c.kind = 'graph-break'
       -- What is compiled behind a break carries this name; several versions of it are one break.
       OR (
           c.kind = 'compile'
           AND starts_with(n.text, 'torch_dynamo_resume_in_')
           AND split_part(split_part(c.compile_id, '_', 1), '/', -1) = '0'
           AND NOT EXISTS (SELECT 1 FROM compile_event AS o WHERE o.artifact_id = c.artifact_id AND o.kind = 'graph-break')
       )
    UNION ALL BY NAME
    SELECT
        e.artifact_id, e.row, 'log_event' AS "table", e.proc_id, e.rank, e.ts_ns, e.line,
        coalesce(e.fields ->> 'where', (e.fields ->> 'file') || ':' || (e.fields ->> 'line_of_code'), e.message) AS place,
        left(split_part(e.message, chr(10), 1), 160) AS reason,
        NULL AS dur_ns,
        -- What does not compile runs uncompiled where errors of the compiler are suppressed.
        e.class = 'compile.frame-skipped' AS is_whole,
        e.fields ->> 'function' AS skipped
    FROM log AS e
    WHERE e.class IN ('compile.graph-break', 'compile.frame-skipped') AND e.role <> 'noise'
      -- TORCH_LOGS text fills both tables.
      AND NOT EXISTS (SELECT 1 FROM compile_event AS o WHERE o.artifact_id = e.artifact_id AND o.kind = 'graph-break')
),
counted AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY artifact_id, proc_id) AS n_breaks,
        sum(dur_ns) OVER (PARTITION BY artifact_id, proc_id) AS total_ns,
        count(*) FILTER (WHERE is_whole) OVER (PARTITION BY artifact_id, proc_id) AS n_whole,
        row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY is_whole DESC, row) AS place_in_order
    FROM cut
)
SELECT
    c.* EXCLUDE (place_in_order, is_whole, skipped),
    (SELECT count(DISTINCT o.place) FROM cut AS o WHERE o.artifact_id = c.artifact_id AND o.proc_id IS NOT DISTINCT FROM c.proc_id) AS n_places,
    CASE WHEN c.n_whole > 0 THEN '; ' || c.n_whole || ' of them leave a whole function uncompiled' || coalesce(' (' || c.skipped || ')', '') ELSE '' END
    || CASE WHEN c.total_ns >= 1e9 THEN '; compiling what lies behind them took ' || round(c.total_ns / 1e9, 1) || ' s' ELSE '' END AS cost,
    CASE WHEN c.total_ns >= $long_ns THEN 'high' ELSE 'medium' END AS severity,
    c.place AS key
FROM counted AS c
WHERE c.place_in_order = 1 AND (c.n_breaks >= $min_breaks OR c.n_whole > 0)
QUALIFY row_number() OVER (PARTITION BY c.proc_id ORDER BY c.n_breaks DESC, c.artifact_id) = 1
ORDER BY c.ts_ns, c.artifact_id, c.row;
