/*
title = "Steps wait for input"
severity = "medium"
role = "performance"
cannot_prove = """
Whether reading, decoding, collating or too few workers is the limit; a loader without workers does all of it in __next__."""
message = "{who}: {input_ratio:percent} of {span_ns:duration} in {n_steps:# step went|# steps went} into waiting for input ({op}){device_told}"
fix = "Load ahead: DataLoader(num_workers=…, prefetch_factor=…, persistent_workers=True, pin_memory=True); py-spy dump the workers to see what they do; decode and tokenise once, before training."
causes = [{ state = "throughput-low", of = "job" }]
references = ["https://docs.pytorch.org/docs/stable/data.html#single-and-multi-process-data-loading"]

[thresholds.min_input_ratio]
value = 0.1
unit = "time in the loader / time"
measured = "input_ratio"
why = "PyTorch's TensorBoard plug-in advises from a twentieth on; a tenth of the time is what makes a cost grave (severities in rules/README.md)"

[thresholds.min_steps]
value = 3
unit = "batches after the first"
measured = "n_steps"
why = "the first batch always waits, for workers to start and their queues to fill"

[variant.trace]
needs = ["slice"]
strength = "strong"
proves = """
The thread that runs the steps was inside the data loader's __next__ for at least a tenth of the time that the trace
covers, from one call to the next."""

[variant.metric]
needs = ["sample"]
strength = "strong"
proves = "By the job's own step metrics at least a tenth of the time went into waiting for input."
says = "The job itself measured how long it waited for input."
*/
-- variant: trace
WITH
fetched AS (
    SELECT
        s.artifact_id,
        s.row,
        s.proc_id,
        s.rank,
        s.thread,
        s.ts_ns,
        s.dur_ns,
        n.text AS op,
        lead(s.ts_ns) OVER (PARTITION BY s.artifact_id, s.proc_id, s.thread ORDER BY s.ts_ns, s.row) AS next_ns,
        row_number() OVER (PARTITION BY s.artifact_id, s.proc_id, s.thread ORDER BY s.ts_ns, s.row) AS number
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.kind IN ('cpu_op', 'annotation') AND contains(n.text, 'DataLoaderIter.__next__') AND s.dur_ns > 0
),
turned AS (
    -- A turn lasts from one fetch to the next; that of the first fetch is left out.
    SELECT
        artifact_id,
        proc_id,
        thread,
        min(rank) AS rank,
        min(ts_ns) AS ts_ns,
        sum(dur_ns) AS input_ns,
        sum(next_ns - ts_ns) AS span_ns,
        count(*) AS n_steps,
        arg_max(row, (dur_ns, -row)) AS row,
        arg_max(op, (dur_ns, op)) AS op
    FROM fetched
    WHERE number > 1 AND next_ns IS NOT NULL
    GROUP BY artifact_id, proc_id, thread
)
SELECT
    l.artifact_id,
    l.row,
    'slice' AS "table",
    l.proc_id,
    l.rank,
    l.ts_ns,
    l.input_ns / l.span_ns AS input_ratio,
    l.span_ns::BIGINT AS span_ns,
    l.n_steps,
    l.op,
    coalesce((
        SELECT printf('; device %d was idle for it during %.0f %% of its time', u.device, 100.0 * u.input_ns / u.span_ns)
        FROM device_use AS u
        WHERE u.artifact_id = l.artifact_id AND u.proc_id IS NOT DISTINCT FROM l.proc_id AND u.input_ns > 0
        ORDER BY u.input_ns DESC, u.device
        LIMIT 1
    ), '') AS device_told,
    'input' AS key
FROM turned AS l
WHERE l.n_steps >= $min_steps AND l.input_ns >= $min_input_ratio * l.span_ns
ORDER BY input_ratio DESC, l.artifact_id, l.proc_id, l.thread;
-- variant: metric
SELECT
    *,
    '' AS device_told,
    'input' AS key
FROM waited_input
WHERE n_steps >= $min_steps AND input_ratio >= $min_input_ratio
ORDER BY input_ratio DESC, artifact_id, proc_id;
