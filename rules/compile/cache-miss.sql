/*
title = "Compiled code is not found again although nothing that matters has changed"
severity = "medium"
role = "performance"
proves = """
A function was compiled anew because a guard on the identity or the class of an object, or on a mode that is switched to and fro, did
not hold; or the cache of compiled code was left out for the reason that is named."""
cannot_prove = """
That the object could have been the same one: a job may have reasons to build a new module, mask or configuration for each call."""
message = "{who} {what}"
fix = "{advice}"
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/torch.compiler_troubleshooting.html"]

[thresholds.min_misses]
value = 2
unit = "recompilations of one function for such a guard"
why = "one is the switch from training to evaluation, or a module that was replaced once; the second shows that it goes on"

[variant.events]
needs = ["compile_event"]
strength = "strong"
*/
-- variant: events
WITH
missed AS (
    SELECT
        r.*,
        CASE
            WHEN contains(r.guard, '___check_type_id') OR contains(r.guard, 'TYPE_MATCH') THEN 'type'
            WHEN contains(r.guard, '___check_obj_id') OR contains(r.guard, 'ID_MATCH') THEN 'identity'
            WHEN contains(r.guard, 'grad_mode') OR contains(r.guard, 'GLOBAL_STATE') OR contains(r.guard, '.training')
                OR contains(r.guard, 'requires_grad') OR contains(r.guard, 'autocast') THEN 'mode'
        END AS kind
    FROM recompilation AS r
),
repeated AS (
    SELECT
        *,
        count(*) OVER (PARTITION BY proc_id, function_name, kind) AS n
    FROM missed
    WHERE kind IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY proc_id, function_name, kind ORDER BY row DESC) = 1
),
bypassed AS (
    SELECT c.artifact_id, c.row, c.proc_id, c.rank, c.ts_ns, briefly(r.text, 200) AS reason
    FROM compile_event AS c
    JOIN string AS r ON r.id = c.reason_id
    WHERE c.kind = 'cache-bypass'
    QUALIFY row_number() OVER (PARTITION BY c.artifact_id, c.proc_id ORDER BY c.row) = 1
)
SELECT
    artifact_id, row, 'compile_event' AS "table", proc_id, rank, ts_ns,
    'compiled ' || function_name || ' anew ' || n || ' times because '
    || CASE kind WHEN 'identity' THEN 'it was given another object each time: ' WHEN 'type' THEN 'it was given an instance of another class each time: ' ELSE 'a mode was switched: ' END || briefly(guard, 160) AS what,
    CASE kind
        WHEN 'type' THEN 'Define the class once, outside of the loop, or pass what its instances hold as tensors.'
        WHEN 'identity' THEN 'Build the object once and pass the same one to every call, or pass what it holds as tensors.'
        ELSE 'Compile one function for each mode (training and evaluation), or switch the mode outside of the compiled function and less often.'
    END AS advice,
    function_name || coalesce(' (' || file || ':' || line_of_code || ')', '') AS where_in_code,
    'medium' AS severity,
    function_name || kind AS key
FROM repeated
WHERE n >= $min_misses
UNION ALL BY NAME
SELECT
    artifact_id, row, 'compile_event' AS "table", proc_id, rank, ts_ns,
    'leaves out the cache of compiled code: ' || reason AS what,
    'Remove the reason that the trace names, so that a restart finds what was compiled before.' AS advice,
    NULL AS where_in_code,
    'info' AS severity,
    reason AS key
FROM bypassed
ORDER BY ts_ns, artifact_id, row, key;
