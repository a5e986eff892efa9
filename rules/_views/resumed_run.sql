-- Runs that go on where an earlier attempt of the same rank left off: a row is one metric of one process, with its first
-- values, those of the attempt before, and those that this attempt had last before the same step. Metrics before logs.
-- Runs in folders of their own do not go on with each other; run: that folder.
CREATE TEMP VIEW resumed_run AS
WITH
told AS (
    SELECT
        m.artifact_id,
        m.row,
        m.line,
        m.ts_ns,
        m.proc_id,
        p.attempt,
        m.rank,
        m.name,
        m.step,
        m.value,
        a.run AS folder
    FROM metric AS m
    JOIN proc AS p ON p.id = m.proc_id
    JOIN artifact AS a ON a.id = m.artifact_id
    WHERE m.name IN ('loss', 'learning_rate', 'loss_scale', 'epoch') AND m.step IS NOT NULL AND m.source IN ('metrics', 'log')
    QUALIFY dense_rank() OVER (
        PARTITION BY m.proc_id, m.name ORDER BY CASE m.source WHEN 'metrics' THEN 0 ELSE 1 END, m.artifact_id
    ) = 1
),
run AS (
    SELECT
        proc_id,
        attempt,
        rank,
        name,
        min(step) AS first_step,
        max(step) AS last_step,
        min_by(value, row) AS first_value,
        list(value ORDER BY row)[1:10] AS first_values,
        min_by(artifact_id, row) AS artifact_id,
        min(row) AS row,
        min_by(line, row) AS line,
        min(ts_ns) AS ts_ns,
        min(folder) AS folder
    FROM told
    GROUP BY proc_id, attempt, rank, name
),
follows AS (
    SELECT
        b.*,
        a.proc_id AS earlier_proc_id,
        a.attempt AS earlier_attempt,
        a.first_step AS earlier_first_step,
        a.last_step AS earlier_last_step,
        a.first_value AS earlier_first_value,
        a.first_values AS earlier_first_values
    FROM run AS b
    JOIN run AS a ON a.name = b.name AND a.rank IS NOT DISTINCT FROM b.rank AND a.attempt < b.attempt AND a.folder IS NOT DISTINCT FROM b.folder
    QUALIFY row_number() OVER (PARTITION BY b.proc_id, b.name ORDER BY a.attempt DESC, a.proc_id) = 1
),
before AS (
    SELECT
        f.proc_id,
        f.name,
        max_by(t.value, t.step) AS value_before,
        max(t.step) AS step_before,
        max_by(t.artifact_id, t.step) AS before_artifact_id,
        max_by(t.row, t.step) AS before_row,
        max_by(t.line, t.step) AS before_line
    FROM follows AS f
    JOIN told AS t ON t.proc_id = f.earlier_proc_id AND t.name = f.name AND t.step <= f.first_step
    GROUP BY f.proc_id, f.name
)
SELECT f.* EXCLUDE (folder), f.folder AS run, o.* EXCLUDE (proc_id, name)
FROM follows AS f
LEFT JOIN before AS o ON o.proc_id = f.proc_id AND o.name = f.name;
