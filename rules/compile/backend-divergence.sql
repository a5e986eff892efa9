/*
title = "Compiled code computes something else than eager"
severity = "critical"
scope = "job"
cannot_prove = """
Which compiled operator is wrong, unless operators were recorded; and that eager is right: where it rounds more often, or
overflows, the compiled result can be the better one."""
message = "{backend} computes something else than eager: {what}{where_else}"
fix = "Narrow it down: backend='aot_eager' against 'inductor' tells tracing from code generation, then TORCHDYNAMO_REPRO_AFTER=aot TORCHDYNAMO_REPRO_LEVEL=4 writes the smallest graph that differs; run the operator uncompiled (torch._dynamo.disable) until it is repaired."
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "kernel-replaced", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_difference]
value = 0.1
unit = "largest absolute difference that a comparison prints without judging it"
why = "values of a few units, summed in another order, part by up to 0.06 in bfloat16 (2^-8 of 16)"

[thresholds.min_relative]
value = 1e-2
unit = "difference / larger of both values"
why = "half a step of bfloat16 is 0.4 %; a loss, a mean over many values, parts by far less between sound backends"

[thresholds.max_lines]
value = 6
unit = "lines between the results of two backends"
why = "a comparison prints one result below the other; farther apart they need not be of one input"

[variant.runs]
needs = ["sample", "fact"]
strength = "strong"
proves = """
The same work was run by eager and by compiled code, and the results on record differ by more than the threshold
allows."""
says = "The runs differ in the backend by their commands; that everything else was the same is as their commands say."

[variant.said]
needs = ["log_event"]
strength = "strong"
proves = """
A comparison of eager with compiled or exported code says that their results differ by more than it allows."""
*/
-- variant: runs
WITH
paired AS (
    SELECT
        x.*,
        y.backend AS other_backend,
        y.value AS other_value,
        y.folder AS other_folder,
        y.artifact_id AS other_artifact_id,
        y.row AS other_row,
        y.line AS other_line,
        isfinite(x.value) <> isfinite(y.value)
        OR (isfinite(x.value) AND abs(x.value - y.value) > $min_relative * greatest(abs(x.value), abs(y.value))) AS parts
    FROM training_run_of_backend AS x
    JOIN training_run_of_backend AS y
        ON y.command = x.command AND y.file = x.file AND y.step = x.step AND y.rank IS NOT DISTINCT FROM x.rank
    WHERE x.backend = 'eager' AND y.backend IN ('inductor', 'compiled', 'aot_eager', 'cudagraphs', 'onnxrt', 'tensorrt', 'openxla', 'tvm', 'ipex')
),
parted AS (
    SELECT * FROM paired WHERE parts
    -- Where tracing alone makes the difference, that is what to tell.
    QUALIFY row_number() OVER (ORDER BY step, other_backend <> 'aot_eager', artifact_id, row, other_artifact_id) = 1
),
traced AS (
    -- Up to the step at which another backend parts, what tracing without generated code gave.
    SELECT
        q.command,
        q.file,
        bool_or(q.parts) AS parts
    FROM paired AS q
    JOIN parted AS p ON p.command = q.command AND p.file = q.file AND p.rank IS NOT DISTINCT FROM q.rank AND q.step <= p.step
    WHERE q.other_backend = 'aot_eager' AND p.other_backend <> 'aot_eager'
    GROUP BY q.command, q.file
),
first_birth AS (
    SELECT
        regexp_replace(a.path, '/[^/]*$', '') AS folder,
        b.step,
        o.text AS op
    FROM birth AS b
    JOIN artifact AS a ON a.id = b.artifact_id
    JOIN string AS o ON o.id = b.op_id
    QUALIFY row_number() OVER (PARTITION BY a.id, b.step ORDER BY b.ordinal) = 1
)
SELECT
    p.artifact_id,
    p.row,
    p.line,
    p.rank,
    p.step,
    p.ts_ns,
    p.other_backend AS backend,
    'at step ' || p.step || ' the loss is ' || p.value || ' by eager and ' || p.other_value || ' by ' || p.other_backend AS what,
    coalesce('; the first operator that is not finite, in one of them only, is ' || b.op, '')
        || CASE
            WHEN p.other_backend = 'aot_eager' THEN '; no code is generated there, so tracing or the decomposition of operators makes the difference'
            WHEN t.parts = false THEN '; aot_eager agrees with eager, so the code that is generated differs'
            ELSE ''
        END AS where_else,
    b.op,
    'high' AS severity,
    [{'artifact_id': p.other_artifact_id, 'row': p.other_row, 'line': p.other_line, 'note': 'the same step by the other backend'}] AS evidence
FROM parted AS p
LEFT JOIN first_birth AS b
    ON (starts_with(b.folder, p.folder || '/') OR starts_with(b.folder, p.other_folder || '/')) AND b.step = p.step
LEFT JOIN traced AS t ON t.command = p.command AND t.file = p.file
ORDER BY b.op
LIMIT 1;
-- variant: said
WITH
clue AS (
    SELECT * FROM backend_comparison
    WHERE CASE preference
        WHEN 1 THEN difference > CASE WHEN has_failed THEN 0 ELSE $min_difference END OR NOT isfinite(difference)
        WHEN 2 THEN has_failed AND n_lines <= $max_lines AND coalesce(relative > $min_relative, true)
        ELSE has_failed
    END
)
SELECT
    c.artifact_id,
    c.row,
    c.line,
    c.proc_id,
    c.rank,
    c.ts_ns,
    CASE WHEN c.preference = 3 THEN 'indication' ELSE 'strong' END AS strength,
    CASE c.backend WHEN 'compiled' THEN 'compiled code' ELSE coalesce(c.backend, 'compiled code') END AS backend,
    c.what,
    CASE WHEN EXISTS (SELECT 1 FROM log AS o WHERE o.class = 'compile.calls-differ') THEN '; two calls on the same input differ too' ELSE '' END
        || CASE WHEN EXISTS (SELECT 1 FROM log AS o WHERE o.class = 'compile.agrees' AND (o.fields ->> 'backend') = 'aot_eager')
            THEN '; aot_eager agrees with eager, so the code that inductor generates differs' ELSE '' END AS where_else,
    (
        SELECT list({'artifact_id': o.artifact_id, 'row': o.row, 'line': o.line, 'note': o.what} ORDER BY o.preference, o.artifact_id, o.row)
        FROM clue AS o
        WHERE (o.artifact_id, o.row) <> (c.artifact_id, c.row)
    ) AS evidence
FROM clue AS c
ORDER BY c.preference, c.difference DESC NULLS LAST, c.artifact_id, c.row
LIMIT 1;
