/*
title = "Two kernels touched the same memory without waiting for each other"
severity = "critical"
proves = """
PyTorch's stream sanitizer (TORCH_CUDA_SANITIZER=1) saw a kernel on one stream touch a tensor that a kernel on another stream
had touched, at least one of them writing, with no event or synchronisation between; or compute-sanitizer's racecheck saw
threads of one kernel do so in shared memory."""
cannot_prove = """
That values were wrong in this run: order without a wait may come out right for a long time. Kernels outside of PyTorch's
operators are not seen by the stream sanitizer."""
message = "{who}: {what}"
fix = "{remedy}"
causes = [{ state = "value-nonfinite", of = "rank" }]
references = [
    "https://docs.pytorch.org/docs/stable/cuda._sanitizer.html",
    "https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html#racecheck-tool",
]

[variant.sanitizer]
needs = ["log_event"]
strength = "proof"
*/
-- variant: sanitizer
WITH
race AS (
    SELECT
        *,
        lead(line) OVER (PARTITION BY artifact_id ORDER BY line) AS next_line,
        count(*) OVER (PARTITION BY proc_id, signature, fields ->> 'where') AS n
    FROM log
    WHERE class = 'cuda.race' AND role <> 'noise' AND coalesce(fields ->> 'kind', '') <> 'Warning'
),
access AS (
    SELECT
        r.artifact_id,
        r.row,
        a.fields ->> 'which' AS which,
        a.fields ->> 'stream' AS stream,
        a.line,
        k.fields ->> 'operator' AS operator
    FROM race AS r
    JOIN log AS a
        ON a.artifact_id = r.artifact_id AND a.signature = 'csan-access' AND a.line > r.line AND a.line < coalesce(r.next_line, a.line + 1)
    LEFT JOIN log AS k ON k.artifact_id = a.artifact_id AND k.signature = 'csan-kernel' AND k.line = a.line + 1
    WHERE r.signature = 'csan-race'
    QUALIFY row_number() OVER (PARTITION BY r.artifact_id, r.row, which ORDER BY a.line) = 1
)
SELECT
    r.artifact_id,
    r.row,
    r.line,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    CASE
        WHEN r.signature = 'csan-race'
        THEN coalesce(c.operator, 'a kernel') || ' on stream ' || coalesce(c.stream, '?') || ' and ' || coalesce(p.operator, 'a kernel')
            || ' before it on stream ' || coalesce(p.stream, '?') || ' used one tensor, and nothing made the second wait for the first'
        ELSE 'threads of kernel ' || (r.fields ->> 'where') || coalesce(' (' || (r.fields ->> 'file') || ')', '')
            || ' use the same shared memory without a barrier between'
    END AS what,
    CASE
        WHEN r.signature = 'csan-race'
        THEN 'Let the second stream wait: side.wait_stream(torch.cuda.current_stream()) before its work, and the other way before the result is used; call tensor.record_stream(side) where it is freed earlier.'
        ELSE 'Put __syncthreads() (or __syncwarp()) between the two accesses.'
    END AS remedy,
    coalesce(c.operator, r.fields ->> 'where') AS op,
    CASE WHEN r.signature = 'csan-race' THEN [{'artifact_id': r.artifact_id, 'line': p.line, 'note': 'access before'}] ELSE [] END AS evidence,
    coalesce(c.operator, r.fields ->> 'where', 'race') AS key
FROM race AS r
LEFT JOIN access AS c ON c.artifact_id = r.artifact_id AND c.row = r.row AND c.which = 'Access'
LEFT JOIN access AS p ON p.artifact_id = r.artifact_id AND p.row = r.row AND p.which = 'Previous access'
QUALIFY row_number() OVER (PARTITION BY r.proc_id, r.signature, op ORDER BY r.ts_ns NULLS LAST, r.artifact_id, r.row) = 1
ORDER BY r.ts_ns, r.artifact_id, r.row;
