/*
title = "A traced or exported graph holds values of the run that it was traced in"
severity = "medium"
cannot_prove = """
That a later call needs another value: for inputs like those of the trace the graph is right. Only the failed check, or a
call that was refused, shows that it is not. Of a refused call alone, whether the graph was traced or scripted."""
message = "{who}: {what}{more}"
fix = "Script the part with the branch (torch.jit.script), name what varies as dynamic (dynamic_shapes of torch.export, dynamic_axes of ONNX), compute with tensors instead of Python numbers, and check the graph with inputs of another size."
causes = [{ state = "kernel-replaced", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/generated/torch.jit.trace.html"]

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
The tracer says that it turned a value of its run into a constant, or that a second run of the function did not give
what its trace gives."""

[variant.call]
needs = ["log_event"]
strength = "strong"
proves = """
A saved TorchScript graph refuses inputs of another size than one that it holds itself."""
says = "Sizes are those of the messages; where the graph holds its own is not in them."

[variant.graph]
needs = ["compile_event"]
strength = "indication"
proves = "The printed graph holds constants for values of the traced run: a shape, a branch or a number."
says = "The printed graph shows constants; whether they were meant, it does not say."
*/
-- variant: log
WITH
said AS (
    SELECT
        e.*,
        e.signature = 'tracing-check' AS is_check,
        min(e.fields ->> 'place') OVER (PARTITION BY e.proc_id) AS place,
        count(*) OVER (PARTITION BY e.proc_id) AS n
    FROM log AS e
    WHERE e.class = 'compile.trace-specialised' AND e.role <> 'noise'
)
SELECT
    artifact_id, row, line, proc_id, rank, step, ts_ns,
    left(split_part(message, chr(10), 1), 240) AS what,
    CASE WHEN is_check AND place IS NOT NULL THEN '; a value became a constant at ' || place WHEN n > 1 THEN '; ' || n - 1 || ' more such places' ELSE '' END AS more,
    place AS where_in_code,
    -- A warning names a possibility; the check ran the function again and compared.
    CASE WHEN is_check THEN 'high' ELSE 'medium' END AS severity,
    CASE WHEN is_check THEN ['kernel-replaced'] ELSE [] END AS causes,
    signature AS key,
    signature AS fault
FROM said
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY is_check DESC, exception IS NULL, artifact_id, row) = 1
ORDER BY ts_ns, artifact_id, row;
-- variant: call
WITH RECURSIVE
refused AS (
    SELECT
        *,
        -- The two sizes that do not fit, the one that the graph holds unknown which; NULL where the message names none.
        coalesce(fields ->> 'expected_shape', fields ->> 'size', fields ->> 'expanded_size') AS one,
        coalesce(fields ->> 'held_shape', fields ->> 'other_size', fields ->> 'existing_size') AS other
    FROM log
    WHERE class = 'code.shape' AND role = 'primary' AND coalesce(fields ->> 'handled', 'false') <> 'true'
),
walk AS (
    SELECT r.artifact_id, r.row, f.parent_id, f.function, f.file, f.line
    FROM refused AS r
    JOIN frame AS f ON f.id = r.stack_id
    UNION ALL
    SELECT w.artifact_id, w.row, f.parent_id, f.function, f.file, f.line
    FROM walk AS w
    JOIN frame AS f ON f.id = w.parent_id
),
-- Frames of a saved graph: its code lies in the archive under code/.
inside AS (
    SELECT
        artifact_id,
        row,
        max(function) AS function,
        max(file || ':' || line) AS place
    FROM walk
    WHERE starts_with(file, 'code/__torch__')
    GROUP BY artifact_id, row
),
told AS (
    SELECT
        proc_id,
        count(DISTINCT one) AS n_one,
        count(DISTINCT other) AS n_other,
        count(*) AS n
    FROM refused
    WHERE one IS NOT NULL AND other IS NOT NULL
    GROUP BY proc_id
)
SELECT
    r.artifact_id,
    r.row,
    r.line,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    'the saved graph refuses inputs of another size: ' || left(split_part(r.message, chr(10), 1), 200) AS what,
    CASE WHEN least(t.n_one, t.n_other) = 1 AND greatest(t.n_one, t.n_other) > 1
        THEN '; so ' || greatest(t.n_one, t.n_other) || ' times, each for another size of the input and the same one of the graph'
        ELSE '' END AS more,
    i.function || ' (' || i.place || ')' AS where_in_code,
    'high' AS severity,
    ['kernel-replaced', 'rank-failed'] AS causes,
    CASE WHEN least(t.n_one, t.n_other) = 1 AND greatest(t.n_one, t.n_other) > 1 THEN 'strong' ELSE 'indication' END AS strength,
    'refused' AS key
FROM refused AS r
JOIN inside AS i ON i.artifact_id = r.artifact_id AND i.row = r.row
JOIN told AS t ON t.proc_id IS NOT DISTINCT FROM r.proc_id
QUALIFY row_number() OVER (PARTITION BY r.proc_id ORDER BY r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
-- variant: graph
WITH
held AS (
    SELECT
        c.*,
        r.text AS reason,
        count(*) OVER (PARTITION BY c.artifact_id, c.proc_id) AS n
    FROM compile_event AS c
    JOIN string AS r ON r.id = c.reason_id
    WHERE c.kind = 'specialization'
    QUALIFY row_number() OVER (PARTITION BY c.artifact_id, c.proc_id ORDER BY c.row) = 1
)
SELECT
    h.artifact_id,
    h.row,
    'compile_event' AS "table",
    h.proc_id,
    h.rank,
    h.step,
    h.ts_ns,
    briefly(h.reason, 240) AS what,
    CASE WHEN h.n > 1 THEN '; ' || h.n - 1 || ' more such places' ELSE '' END AS more,
    k.function || coalesce(' (' || k.file || ':' || k.line || ')', '') AS where_in_code,
    'medium' AS severity,
    [] AS causes,
    h.reason AS key
FROM held AS h
LEFT JOIN frame AS k ON k.id = h.stack_id
ORDER BY h.ts_ns, h.artifact_id, h.row;
