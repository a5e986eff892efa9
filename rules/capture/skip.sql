/*
title = "A compiled region runs without CUDA graphs"
severity = "medium"
role = "performance"
proves = """
The compiler says that it gave up CUDA graphs for a region, or that it cannot take the fast path of replaying one."""
cannot_prove = """
What that costs: only a comparison of step times with and without tells."""
message = "{who} runs {n_regions} compiled without CUDA graphs: {reason}"
fix = "Remove the reason that the message gives: no mutated inputs, no CPU tensors, static shapes; run inference under torch.no_grad() or call torch.compiler.cudagraph_mark_step_begin() before each call."
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_cudagraph_trees.html"]

[variant.log]
needs = ["log_event|compile_event"]
strength = "strong"
*/
-- variant: log
WITH
said AS (
    SELECT
        e.artifact_id,
        e.row,
        'log_event' AS "table",
        e.proc_id,
        e.rank,
        e.ts_ns,
        e.line,
        left(coalesce(e.fields ->> 'reason', split_part(e.message, chr(10), 1)), 200) AS reason,
        -- Every call of every region that the message is about waits for a backward that never comes.
        e.class = 'capture.pending-backward' AS is_of_all
    FROM log AS e
    WHERE e.class IN ('capture.skipped', 'capture.pending-backward') AND e.role <> 'noise'
    UNION ALL BY NAME
    SELECT
        c.artifact_id,
        c.row,
        'compile_event' AS "table",
        c.proc_id,
        c.rank,
        c.ts_ns,
        NULL AS line,
        briefly(r.text, 200) AS reason,
        false AS is_of_all
    FROM compile_event AS c
    JOIN string AS r ON r.id = c.reason_id
    WHERE c.kind = 'skip'
      -- TORCH_LOGS text fills both tables.
      AND NOT EXISTS (SELECT 1 FROM log AS e WHERE e.artifact_id = c.artifact_id AND e.class = 'capture.skipped')
)
SELECT
    s.artifact_id,
    s.row,
    s."table",
    s.proc_id,
    s.rank,
    s.ts_ns,
    s.line,
    s.reason,
    CASE WHEN s.is_of_all THEN 'what it has' WHEN s.n = 1 THEN 'a region that is' ELSE s.n || ' regions that are' END AS n_regions,
    CASE WHEN s.is_of_all THEN 'high' ELSE 'medium' END AS severity,
    s.reason AS key
FROM (
    SELECT
        *,
        count(*) OVER (PARTITION BY proc_id, reason) AS n
    FROM said
    QUALIFY row_number() OVER (PARTITION BY proc_id, reason ORDER BY ts_ns NULLS LAST, artifact_id, row) = 1
) AS s
ORDER BY s.ts_ns, s.artifact_id, s.row;
