/*
title = "A CUDA graph capture was broken"
severity = "critical"
proves = """
While a stream was being captured, something was done that a capture does not allow; the capture ended in an error."""
cannot_prove = """
With the default capture mode the offending call can come from another thread, and the error can surface at a later call."""
message = "{who}: a CUDA graph capture was broken{at_step} by {offence}{place}"
fix = "{smallest_fix}"
causes = [{ state = "capture-broken", of = "process" }]
references = ["https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs"]

[variant.result]
needs = ["slice.return_code"]
strength = "proof"

[variant.log]
needs = ["log_event"]
strength = "strong"

[variant.trace]
needs = ["slice.device"]
strength = "indication"
says = "The profiler does not keep results of calls: the call named is one that a capture forbids, within a capture that never became a graph."
*/
-- variant: result
WITH
opening AS (
    SELECT
        artifact_id,
        row,
        proc_id,
        thread,
        ts_ns
    FROM runtime_call
    WHERE regexp_matches(name, '^(cuda|cu)StreamBeginCapture') AND return_code = 0
),
refused AS (
    SELECT
        f.*,
        o.row AS capture_row,
        o.thread AS capture_thread
    FROM failed_call AS f
    ASOF LEFT JOIN opening AS o ON o.artifact_id = f.artifact_id AND o.proc_id = f.proc_id AND o.ts_ns <= f.ts_ns
    WHERE f.return_code BETWEEN 900 AND 908
),
first_refused AS (
    SELECT *
    FROM refused
    -- 901 says that something broke the capture before; the call itself may not have been recorded.
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY ts_ns, row) = 1
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    CASE
        WHEN r.return_code = 901 THEN 'a call that was not recorded, before ' || r.call || ' returned 901 (' || r.meaning || ')'
        ELSE r.call || ', which returned ' || r.return_code || ' (' || r.meaning || ')'
    END AS offence,
    CASE r.return_code
        WHEN 902 THEN 'Capture one graph at a time, and wait for no event of another capture.'
        WHEN 903 THEN 'Begin and end the capture on the same stream.'
        WHEN 904 THEN 'Join side streams before the capture ends: torch.cuda.current_stream().wait_stream(side).'
        WHEN 905 THEN 'Warm up on the capture stream first, and wait for outside work before the capture starts.'
        WHEN 906 THEN 'Launch on the current stream in the extension (at::cuda::getCurrentCUDAStream), not on stream 0.'
        WHEN 907 THEN 'Move event queries and waits out of the captured region.'
        WHEN 908 THEN 'Begin and end the capture on the same thread.'
        ELSE CASE
            WHEN r.thread <> r.capture_thread THEN 'Capture with capture_error_mode="thread_local": the call came from another thread.'
            ELSE 'Move ' || r.call || ' out of the captured region, or run it once before the capture.'
        END
    END AS smallest_fix,
    CASE WHEN r.thread <> r.capture_thread THEN ', on another thread than the capture' ELSE '' END
    || coalesce(', in ' || r.place, '') AS place,
    r.return_code AS key,
    CASE
        WHEN r.capture_row IS NOT NULL
            THEN [{'artifact_id': r.artifact_id, 'row': r.capture_row, 'note': 'the capture begins here'}]
    END AS evidence
FROM first_refused AS r
WHERE NOT EXISTS (
    -- The capture came to its end all the same.
    SELECT 1 FROM runtime_call AS e
    WHERE e.artifact_id = r.artifact_id AND e.proc_id = r.proc_id AND e.ts_ns > r.ts_ns AND e.return_code = 0
      AND regexp_matches(e.name, '^(cuda|cu)StreamEndCapture')
      AND NOT EXISTS (
        SELECT 1 FROM opening AS b
        WHERE b.artifact_id = r.artifact_id AND b.proc_id = r.proc_id AND b.ts_ns > r.ts_ns AND b.ts_ns < e.ts_ns
      )
)
ORDER BY r.ts_ns, r.artifact_id, r.row;
-- variant: log
WITH
-- Another error, raised in the captured region, that the invalidated capture was reported after.
raised_inside AS (
    SELECT
        e.artifact_id,
        e.row
    FROM log AS e
    JOIN log AS i
        ON i.artifact_id = e.artifact_id AND i.proc_id = e.proc_id AND i.class = 'capture.invalidated' AND i.line > e.line
    WHERE e.role = 'primary'
      AND e.exception IS NOT NULL
      AND e.class NOT LIKE 'capture.%'
      AND NOT EXISTS (
        SELECT 1 FROM log AS b
        WHERE b.artifact_id = e.artifact_id AND b.proc_id = e.proc_id AND b.line > e.line AND b.line < i.line AND b.exception IS NOT NULL
      )
),
offence AS (
    SELECT
        e.*,
        CASE e.class
            WHEN 'mem.gpu.oom-library' THEN 'the first use of a library, which initialises itself inside the capture'
            WHEN 'capture.unsupported' THEN 'a call that captures forbid (synchronisation, .item(), allocation by a library, copy from pageable memory)'
            WHEN 'capture.watchdog' THEN 'the NCCL watchdog querying an event from another thread'
            WHEN 'capture.unjoined' THEN 'work on a side stream that was not joined back'
            WHEN 'capture.isolation' THEN 'a wait for work outside the capture'
            WHEN 'capture.legacy-stream' THEN 'work on the legacy default stream'
            WHEN 'capture.event-query' THEN 'a query or wait on an event recorded in the capture'
            WHEN 'capture.structure' THEN 'captures that overlap or end in the wrong place'
            WHEN 'capture.rng' THEN 'a random generator that is not registered with the graph'
            WHEN 'capture.host-copy' THEN 'a copy between CPU and CUDA tensors'
            WHEN 'capture.usage' THEN 'a capture on the default stream or of a used graph object'
            WHEN 'capture.alloc-during' THEN 'an allocation or cache flush inside the capture'
            ELSE CASE WHEN e.class LIKE 'capture.%' THEN 'a call that captures forbid' ELSE 'an error raised inside it: ' || left(e.message, 120) END
        END AS what,
        CASE e.class
            WHEN 'capture.watchdog' THEN 'Capture with capture_error_mode="thread_local", or finish all collectives before the capture.'
            WHEN 'capture.unjoined' THEN 'Join side streams before the capture ends: torch.cuda.current_stream().wait_stream(side).'
            WHEN 'capture.isolation' THEN 'Warm up on the capture stream first, and wait for outside work before the capture starts.'
            WHEN 'capture.legacy-stream' THEN 'Launch on the current stream in the extension (at::cuda::getCurrentCUDAStream), not on stream 0.'
            WHEN 'capture.event-query' THEN 'Move event queries and waits out of the captured region.'
            WHEN 'capture.structure' THEN 'Capture one graph at a time, and begin and end it on the same stream and thread.'
            WHEN 'capture.rng' THEN 'Register the generator with graph.register_generator_state, and seed outside the captured region.'
            WHEN 'capture.host-copy' THEN 'Pin the host tensor or keep the value on the device.'
            WHEN 'capture.usage' THEN 'Capture inside torch.cuda.graph(...) on its own stream, with a new CUDAGraph object each time.'
            ELSE 'Run three warm-up iterations on a side stream, then remove synchronising calls (.item(), .cpu(), print, synchronize) and first-time initialisation from the captured region.'
        END AS smallest_fix
    FROM log AS e
    WHERE (e.class LIKE 'capture.%' OR EXISTS (SELECT 1 FROM raised_inside AS r WHERE r.artifact_id = e.artifact_id AND r.row = e.row))
      AND e.role = 'primary'
      AND e.class NOT IN ('capture.skipped', 'capture.dynamic-shapes', 'capture.output-lifetime', 'capture.leak', 'capture.invalidated')
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.line,
    e.what AS offence,
    e.smallest_fix,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    coalesce(', surfacing in ' || u.function || ' (' || u.file || ':' || u.line || ')', '') AS place,
    e.class AS key
FROM offence AS e
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
QUALIFY row_number() OVER (
    PARTITION BY e.proc_id
    -- The generator complains after the capture already broke: it counts only where nothing else does.
    ORDER BY (e.class = 'capture.rng'), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: trace
WITH
call AS (
    SELECT
        artifact_id,
        row,
        proc_id,
        rank,
        step,
        ts_ns,
        thread,
        regexp_replace(name, '_v\d+$', '') AS name
    FROM runtime_call
),
opening AS (
    SELECT
        b.*,
        (
            SELECT min(e.ts_ns) FROM call AS e
            WHERE e.artifact_id = b.artifact_id AND e.thread = b.thread AND e.ts_ns > b.ts_ns AND e.name = 'cudaStreamEndCapture'
        ) AS end_ns
    FROM call AS b
    WHERE b.name = 'cudaStreamBeginCapture'
),
capture AS (
    SELECT
        o.*,
        EXISTS (
            SELECT 1 FROM call AS i
            WHERE i.artifact_id = o.artifact_id AND i.ts_ns >= coalesce(o.end_ns, o.ts_ns) AND i.name LIKE 'cudaGraphInstantiate%'
        ) AS became_graph
    FROM opening AS o
),
forbidden AS (
    SELECT
        c.artifact_id,
        f.row,
        c.proc_id,
        c.rank,
        f.step,
        f.ts_ns,
        c.row AS capture_row,
        f.name AS offence
    FROM capture AS c
    JOIN call AS f
        ON f.artifact_id = c.artifact_id AND f.ts_ns > c.ts_ns AND (c.end_ns IS NULL OR f.ts_ns < c.end_ns)
        AND f.name IN (
            'cudaStreamSynchronize', 'cudaDeviceSynchronize', 'cudaEventSynchronize', 'cudaEventQuery', 'cudaStreamQuery',
            'cudaMemcpy', 'cudaMalloc', 'cudaFree', 'cudaHostAlloc', 'cudaFreeHost'
        )
    WHERE NOT c.became_graph
      -- Inside such a bracket the thread has switched its capture mode to relaxed, where these calls are allowed.
      AND (
        SELECT count(*) FROM call AS x
        WHERE x.artifact_id = c.artifact_id AND x.thread = f.thread AND x.name = 'cudaThreadExchangeStreamCaptureMode'
          AND x.ts_ns > c.ts_ns AND x.ts_ns < f.ts_ns
      ) % 2 = 0
    QUALIFY row_number() OVER (PARTITION BY c.artifact_id, c.row ORDER BY f.ts_ns, f.row) = 1
)
SELECT
    f.artifact_id,
    f.row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.offence,
    'Move ' || f.offence || ' out of the captured region, or run it once before the capture.' AS smallest_fix,
    ', the first such call in the capture' AS place,
    f.offence AS key,
    [{'artifact_id': f.artifact_id, 'row': f.capture_row, 'note': 'the capture begins here'}] AS evidence
FROM forbidden AS f
ORDER BY f.ts_ns, f.artifact_id, f.row;
