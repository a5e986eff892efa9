/*
title = "A CUDA graph capture was broken"
severity = "critical"
cannot_prove = """
With the default capture mode the offending call can come from another thread, and the error can surface at a later call."""
message = "{who}: a CUDA graph capture was broken{at_step} by {offence}{place}"
fix = "{smallest_fix}"
causes = [{ state = "capture-broken", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"]

[variant.result]
needs = ["slice.return_code"]
strength = "proof"
proves = """
While a stream was being captured, a call failed with the recorded result: the capture does not allow it, or something
before it that it does not allow."""

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
While a stream was being captured, something was done that a capture does not allow; the capture ended in the error
that is cited."""

[variant.trace]
needs = ["slice.device"]
strength = "indication"
proves = """
A capture was begun that never became a graph, and within it the call that is named, which a capture forbids."""
says = "The profiler does not keep results of calls: the call named is one that a capture forbids, within a capture that never became a graph."
*/
-- variant: result
SELECT
    o.artifact_id,
    o.row,
    o.proc_id,
    o.rank,
    o.step,
    o.ts_ns,
    CASE
        WHEN o.return_code = 901 THEN 'a call that was not recorded, before ' || o.call || ' returned 901'
        ELSE o.call || ', which returned ' || o.return_code
    END || coalesce(' (' || f.meaning || ')', '') || coalesce(': ' || o.offence, '') AS offence,
    coalesce(
        o.fix,
        CASE
            WHEN o.other_thread THEN 'Capture with capture_error_mode="thread_local": the call came from another thread.'
            ELSE 'Move ' || o.call || ' out of the captured region, or run it once before the capture.'
        END
    ) AS smallest_fix,
    CASE WHEN o.other_thread THEN ', on another thread than the capture' ELSE '' END || coalesce(', in ' || o.place, '') AS place,
    coalesce(o.mechanism, CAST(o.return_code AS VARCHAR)) AS key,
    o.tells AS note,
    CASE
        WHEN o.window_row IS NOT NULL
            THEN [{'artifact_id': o.artifact_id, 'row': o.window_row, 'note': 'the capture begins here'}]
    END AS evidence
FROM capture_offence AS o
LEFT JOIN failed_call AS f ON f.artifact_id = o.artifact_id AND f.row = o.row
WHERE o.told_by = 'result'
QUALIFY row_number() OVER (PARTITION BY o.artifact_id, o.proc_id ORDER BY o.ts_ns, o.row) = 1
ORDER BY o.ts_ns, o.artifact_id, o.row;
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    coalesce(
        o.offence,
        CASE
            WHEN e.class LIKE 'capture.%' THEN 'a call that captures forbid (' || left(split_part(e.message, chr(10), 1), 120) || ')'
            ELSE 'an error raised inside it: ' || left(split_part(e.message, chr(10), 1), 120)
        END
    ) AS offence,
    coalesce(
        o.fix,
        'Run three warm-up iterations on a side stream, then remove synchronising calls (.item(), .cpu(), print, synchronize) and first-time initialisation from the captured region.'
    ) AS smallest_fix,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    CASE WHEN (e.fields ->> 'code') NOT LIKE 'raise %' THEN ', at "' || (e.fields ->> 'code') || '"' ELSE '' END
    || coalesce(' in ' || k.function || ' (' || k.file || ':' || k.line || ')', '')
    || CASE WHEN u.id <> k.id THEN ', called from ' || u.function || ' (' || u.file || ':' || u.line || ')' ELSE '' END AS place,
    coalesce(o.mechanism, e.class) AS key,
    o.tells AS note
FROM capture_offence AS o
JOIN log AS e ON e.artifact_id = o.artifact_id AND e.row = o.row
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE o.told_by = 'log'
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id
    -- The generator complains after the capture already broke: it counts only where nothing else does.
    ORDER BY (e.class = 'capture.rng'), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: trace
SELECT
    o.artifact_id,
    o.row,
    o.proc_id,
    o.rank,
    o.step,
    o.ts_ns,
    coalesce(o.offence || ', by ', '') || o.call AS offence,
    coalesce(o.fix, 'Move ' || o.call || ' out of the captured region, or run it once before the capture.') AS smallest_fix,
    ', the first such call in the capture' || coalesce(', in ' || o.place, '') AS place,
    coalesce(o.mechanism, o.call) AS key,
    [{'artifact_id': o.artifact_id, 'row': o.window_row, 'note': 'the capture begins here'}] AS evidence
FROM capture_offence AS o
WHERE o.told_by = 'call'
ORDER BY o.ts_ns, o.artifact_id, o.row;
