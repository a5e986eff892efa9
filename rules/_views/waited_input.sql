-- What a job's own step metrics say of waiting for input: a row a process of an artifact, without its first step, for which
-- workers start. input_ratio: time in the loader / time of the steps.
CREATE TEMP VIEW waited_input AS
WITH
turn AS (
    SELECT
        artifact_id,
        min(row) AS row,
        proc_id,
        line,
        min(rank) AS rank,
        min(ts_ns) AS ts_ns,
        max(value) FILTER (name IN ('data_time', 'dataloader_time', 'data_load_time', 'data_wait_time', 'input_time', 'load_time')) AS input,
        max(value) FILTER (name IN ('step_time', 'iter_time', 'batch_time', 'time_per_step', 'iteration_time')) AS turn,
        max(name) FILTER (name IN ('data_time', 'dataloader_time', 'data_load_time', 'data_wait_time', 'input_time', 'load_time')) AS op,
        row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY min(row)) AS number
    FROM logged_amount
    GROUP BY artifact_id, proc_id, line, step
    HAVING input IS NOT NULL AND turn > 0 AND input <= turn
)
SELECT
    artifact_id,
    arg_max(row, (input, -row)) AS row,
    arg_max(line, (input, -row)) AS line,
    proc_id,
    min(rank) AS rank,
    arg_max(ts_ns, (input, -row)) AS ts_ns,
    sum(input) / sum(turn) AS input_ratio,
    (sum(turn) * CASE WHEN median(turn) > 100 THEN 1e6 ELSE 1e9 END)::BIGINT AS span_ns,
    count(*) AS n_steps,
    max(op) AS op
FROM turn
WHERE number > 1
GROUP BY artifact_id, proc_id;
