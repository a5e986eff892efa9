/*
title = "The compiler failed"
severity = "critical"
cannot_prove = """
Whether the model or the compiler is at fault: an operator without a rule, a size that depends on data and a bug all end so."""
message = "{who}: {said}{within}"
fix = "Find the first backend that fails: backend='eager' (tracing), 'aot_eager' (autograd), 'inductor' (code generation); leave the named function out with torch._dynamo.disable. TORCHDYNAMO_REPRO_AFTER=dynamo or aot writes a smaller program that fails."
causes = [{ state = "rank-failed", of = "rank" }]
requires = [{ state = "config-contradictory", of = "job" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.max_lines]
value = 400
unit = "lines from the word that a function is left uncompiled to the error for which it is"
why = "tracebacks of the compiler have some hundred lines"

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
torch.compile, its backend or Triton raised the error that is named, and nothing on record shows that the job went on."""

[variant.trace]
needs = ["compile_event"]
strength = "indication"
proves = "The compiler's own trace records that this compilation failed."
says = "The trace says that a compilation failed, not that the job ended for it: a function that does not compile may run uncompiled."
*/
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.said,
    -- The wrapper's last line announces the error that it holds, which stands on the next one.
    coalesce('; ' || coalesce(briefly(e.fields ->> 'inner', 200), CASE WHEN i.exception IS NOT NULL THEN briefly(error_text(i.exception, split_part(i.message, chr(10), 1)), 200) END), '') AS within,
    e.where_in_code,
    CASE WHEN e.completed THEN 'medium' ELSE 'critical' END AS severity,
    e.signature AS key,
    e.signature AS fault
FROM reported_failure AS e
LEFT JOIN log AS i
    ON i.artifact_id = e.artifact_id AND i.proc_id IS NOT DISTINCT FROM e.proc_id AND i.line = e.line + 1 AND i.exception IS NOT NULL
WHERE e.class IN ('compile.failure', 'compile.kernel-config', 'compile.dynamic-shape')
  AND e.role = 'primary'
  AND NOT e.moved_on
  -- A limit that is an error where the whole function must be compiled: compile-limit-fallback.
  AND NOT EXISTS (
      SELECT 1 FROM log AS l WHERE l.artifact_id = e.artifact_id AND l.line = e.line AND l.signature = 'recompile-limit'
  )
  -- Where errors of the compiler are suppressed it says first that it leaves the function alone, and why below that.
  AND NOT EXISTS (
      SELECT 1 FROM log AS k
      WHERE k.artifact_id = e.artifact_id AND k.class = 'compile.frame-skipped' AND k.line BETWEEN e.line - $max_lines AND e.line
  )
  -- The compiler wraps what it met: then a missing tool, or memory that ran out, is what failed.
  AND NOT EXISTS (
      SELECT 1 FROM log AS o
      WHERE o.artifact_id = e.artifact_id
        AND o.proc_id IS NOT DISTINCT FROM e.proc_id
        AND o.role = 'primary'
        AND (o.class LIKE 'env.%' OR o.class LIKE 'mem.%')
  )
QUALIFY row_number() OVER (PARTITION BY e.proc_id, e.attempt ORDER BY e.exception IS NULL, e.line, e.artifact_id, e.row, i.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: trace
SELECT
    c.artifact_id,
    c.row,
    'compile_event' AS "table",
    c.proc_id,
    c.rank,
    c.step,
    c.ts_ns,
    coalesce(n.text, k.function, 'a function') || ' did not compile: ' || left(coalesce(r.text, 'no reason on record'), 240) AS said,
    '' AS within,
    k.function || coalesce(' (' || k.file || ':' || k.line || ')', '') AS where_in_code,
    'medium' AS severity,
    coalesce(n.text, r.text) AS key,
    coalesce(n.text, r.text) AS fault
FROM compile_event AS c
LEFT JOIN string AS n ON n.id = c.name_id
LEFT JOIN string AS r ON r.id = c.reason_id
LEFT JOIN frame AS k ON k.id = c.stack_id
WHERE c.kind = 'failure'
  -- Then the function runs uncompiled, which is a graph break's cost.
  AND NOT EXISTS (
      SELECT 1
      FROM compile_event AS b
      JOIN string AS w ON w.id = b.reason_id
      WHERE b.artifact_id = c.artifact_id AND b.kind = 'graph-break' AND b.compile_id = c.compile_id AND contains(w.text, 'falling back to eager')
  )
QUALIFY row_number() OVER (PARTITION BY c.proc_id, c.name_id, c.reason_id ORDER BY c.artifact_id, c.row) = 1
ORDER BY c.ts_ns, c.artifact_id, c.row;
