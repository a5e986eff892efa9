/*
title = "A retry ran out of memory while the failed pass was still alive"
severity = "critical"
cannot_prove = """
That the retry would have fitted otherwise, and why the first attempt did not fit."""
message = "{who} ran out of memory again while it handled an out-of-memory error: {allocated_bytes:bytes} were live at the first failure, {again_bytes:bytes} at the retry{in_place}"
fix = "Leave the except block before retrying: set a flag in it, and after it del what the pass made, gc.collect(), torch.cuda.empty_cache(), then try the smaller batch; do not keep the exception (except … as error) or its traceback."
causes = [{ state = "memory-retained", of = "process" }, { state = "device-full", of = "device" }]
references = ["https://docs.pytorch.org/docs/stable/notes/faq.html#my-out-of-memory-exception-handler-can-t-allocate-memory"]

[variant.snapshot]
needs = ["memory_event.oom"]
strength = "strong"
proves = """
A second allocation failed after the first one, and the same allocations were live at both failures, no less at the
second: what the failed pass had made was still there while the retry ran."""
says = "The snapshot tells that the same allocations lived at both failures, not what held them in between."

[variant.chained]
needs = ["log_event"]
strength = "proof"
proves = """
A second allocation failed inside the handling of the first one, and no less memory was live at the second failure
than at the first: the exception, whose traceback holds the frames and so the tensors of the failed pass, was alive
while the retry ran."""

[variant.repeated]
needs = ["log_event"]
strength = "indication"
proves = """
Smaller and smaller requests failed one after the other, and no less memory was live from failure to failure."""
says = "That the retries ran inside the handler is read from the figures alone: memory did not fall between failures with smaller requests."

[thresholds.min_kept_ratio]
value = 0.98
unit = "bytes live at the retry's failure / bytes live at the first failure"
measured = "again_bytes / allocated_bytes"
why = "a pass that was let go gives back its activations, which are more than a fiftieth of what is live in training; parameters alone stay equal to the byte"

[thresholds.min_repeats]
value = 3
unit = "failures with a smaller and smaller request"
why = "two failures may be one request that two callers report; three that shrink are a program that halves its batch"
*/
-- variant: snapshot
WITH
failed AS (
    SELECT
        m.*,
        e.size_bytes AS requested_bytes,
        lag(m.row) OVER w AS first_row,
        lag(m.live_bytes) OVER w AS first_bytes,
        lag(e.size_bytes) OVER w AS first_requested_bytes
    FROM memory_moment AS m
    JOIN memory_event AS e ON e.artifact_id = m.artifact_id AND e.row = m.row
    WHERE m.moment = 'oom'
    WINDOW w AS (PARTITION BY m.artifact_id, m.device ORDER BY m.row)
)
SELECT
    f.artifact_id,
    f.first_row AS row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.device,
    f.place AS where_in_code,
    f.first_bytes AS allocated_bytes,
    f.live_bytes AS again_bytes,
    f.retained_bytes,
    f.requested_bytes,
    f.first_requested_bytes,
    [{'artifact_id': f.artifact_id, 'row': f.row, 'note': 'the retry, with all of the first attempt still live'}] AS evidence,
    coalesce('; both came through ' || f.place, '') AS in_place,
    'snapshot' AS key
FROM failed AS f
WHERE f.retained_bytes >= $min_kept_ratio * f.first_bytes
  AND f.requested_bytes <= f.first_requested_bytes
  -- Where the job went on afterwards, it did let go.
  AND NOT EXISTS (
    SELECT 1 FROM memory_moment AS n
    WHERE n.artifact_id = f.artifact_id AND n.device = f.device AND n.row > f.row AND n.live_bytes < $min_kept_ratio * f.first_bytes
  )
QUALIFY row_number() OVER (PARTITION BY f.artifact_id, f.device ORDER BY f.row) = 1
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- variant: chained
WITH
failed AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.rank,
        e.step,
        e.ts_ns,
        e.line,
        e.where_in_code,
        e.fields ->> 'chain' AS chain,
        CAST(e.fields ->> 'device' AS INTEGER) AS device,
        CAST(e.fields ->> 'allocated_bytes' AS BIGINT) AS allocated_bytes,
        CAST(e.fields ->> 'requested_bytes' AS BIGINT) AS requested_bytes,
        lag(e.row) OVER w AS first_row,
        lag(e.line) OVER w AS first_line,
        lag(CAST(e.fields ->> 'allocated_bytes' AS BIGINT)) OVER w AS first_bytes,
        lag(CAST(e.fields ->> 'requested_bytes' AS BIGINT)) OVER w AS first_requested_bytes
    FROM reported_failure AS e
    WHERE e.class = 'mem.gpu.oom'
    WINDOW w AS (PARTITION BY e.artifact_id, e.proc_id ORDER BY e.row)
)
SELECT
    f.artifact_id,
    f.first_row AS row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    f.first_line AS line,
    f.device,
    f.where_in_code,
    f.first_bytes AS allocated_bytes,
    f.allocated_bytes AS again_bytes,
    [{'artifact_id': f.artifact_id, 'row': f.row, 'line': f.line, 'note': 'the retry, inside the handling of the first failure'}] AS evidence,
    '' AS in_place,
    'chained' AS key
FROM failed AS f
WHERE f.chain = 'during'
  AND f.first_bytes IS NOT NULL
  AND f.allocated_bytes >= $min_kept_ratio * f.first_bytes
  -- A retry of a larger request says nothing of what was kept.
  AND f.requested_bytes <= f.first_requested_bytes
QUALIFY row_number() OVER (PARTITION BY f.proc_id ORDER BY f.artifact_id, f.row) = 1
ORDER BY f.ts_ns, f.artifact_id, f.row;
-- variant: repeated
WITH
failed AS (
    SELECT
        e.artifact_id,
        e.row,
        e.proc_id,
        e.attempt,
        e.rank,
        e.step,
        e.ts_ns,
        e.line,
        CAST(e.fields ->> 'device' AS INTEGER) AS device,
        CAST(e.fields ->> 'allocated_bytes' AS BIGINT) AS allocated_bytes,
        CAST(e.fields ->> 'requested_bytes' AS BIGINT) AS requested_bytes
    FROM log AS e
    -- Retries say that they go on, so failures that were handled count too.
    WHERE e.class = 'mem.gpu.oom' AND e.role <> 'noise' AND (e.fields ->> 'allocated_bytes') IS NOT NULL
),
run AS (
    SELECT
        f.*,
        lag(f.requested_bytes) OVER w AS before_requested,
        lag(f.allocated_bytes) OVER w AS before_allocated
    FROM failed AS f
    WINDOW w AS (PARTITION BY f.artifact_id, f.proc_id ORDER BY f.row)
),
counted AS (
    SELECT
        artifact_id,
        proc_id,
        count(*) AS n_failures,
        bool_and(
            before_requested IS NULL
            OR (requested_bytes < before_requested AND allocated_bytes >= $min_kept_ratio * before_allocated)
        ) AS only_shrinks,
        min_by(row, row) AS first_row,
        min_by(allocated_bytes, row) AS allocated_bytes,
        max_by(allocated_bytes, row) AS again_bytes
    FROM run
    GROUP BY artifact_id, proc_id
)
SELECT
    r.artifact_id,
    r.row,
    r.proc_id,
    r.rank,
    r.step,
    r.ts_ns,
    r.line,
    r.device,
    c.n_failures,
    c.allocated_bytes,
    c.again_bytes,
    '' AS in_place,
    'repeated' AS key
FROM counted AS c
JOIN run AS r ON r.artifact_id = c.artifact_id AND r.proc_id IS NOT DISTINCT FROM c.proc_id AND r.row = c.first_row
WHERE c.only_shrinks
  AND c.n_failures >= $min_repeats
ORDER BY r.ts_ns, r.artifact_id, r.row;
