/*
title = "The training thread waits for a processor"
severity = "high"
role = "performance"
proves = """
Each time the thread was given a processor it had been ready for longer than the threshold, on average over the recorded time
(the kernel's own count of the time on the run queue and of switches), and these waits are a good part of its time."""
cannot_prove = """
Who had the processors meanwhile: other processes of the host, the job's own workers and threads, or a limit of the
container (cpu.max) look alike."""
message = "{who}: {task} waited {delay:duration} for a processor at each of {n:# switch|# switches}, {total:duration} in all, {share:percent} of its time"
fix = "Give the rank as many cores as it has busy threads: compare loader workers times ranks and OMP_NUM_THREADS with nproc and cpu.max of the container, and look for other jobs (top -H)."
causes = [{ state = "throughput-low", of = "job" }]
requires = [{ state = "cores-contended", of = "host" }]
references = ["https://docs.kernel.org/scheduler/sched-stats.html"]

[thresholds.max_delay]
value = 400e-6
unit = "s on the run queue for each switch"
measured = "delay / 1e9"
why = "under 150 µs is healthy; above 400 µs a launch-bound thread loses more to waiting than to launching"

[thresholds.min_share]
value = 0.3
unit = "time on the run queue / time, for high"
measured = "share"
why = "threads that sleep and wake on a shared host wait a tenth or two now and then"

[thresholds.min_told_share]
value = 0.1
unit = "the same, for medium"
why = "below a tenth it costs the job little"

[thresholds.min_switches]
value = 20
unit = "switches"
measured = "n"
why = "fewer give no average"

[thresholds.min_run_share]
value = 0.1
unit = "time that a task ran / time that all listed tasks ran"
why = "tables of a whole host list many that hardly run"

[variant.recorder]
needs = ["sample"]
strength = "strong"

[variant.host]
needs = ["sample.host"]
strength = "strong"
says = "The time is that since the task began, or of the recording; a part of it may lie before the training."
*/
-- variant: recorder
WITH
step AS (
    SELECT
        m.artifact_id,
        m.proc_id,
        m.rank,
        m.step,
        min(m.row) AS row,
        min(m.line) AS line,
        min(m.ts_ns) AS ts_ns,
        sum(m.value) FILTER (WHERE m.name = 'run_delay_seconds') AS delay,
        sum(m.value) FILTER (WHERE m.name = 'n_switches') AS n,
        sum(m.value) FILTER (WHERE m.name IN ('step_seconds', 'outside_seconds')) AS seconds
    FROM metric AS m
    WHERE m.source = 'metrics' AND m.step IS NOT NULL
      AND m.name IN ('run_delay_seconds', 'n_switches', 'step_seconds', 'outside_seconds')
    GROUP BY m.artifact_id, m.proc_id, m.rank, m.step
),
whole AS (
    SELECT *
    FROM step
    WHERE delay IS NOT NULL AND n IS NOT NULL AND seconds > 0
    -- The first steps load and compile.
    QUALIFY row_number() OVER (PARTITION BY artifact_id, proc_id ORDER BY step) > 2
),
total AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min_by(row, -delay) AS row,
        min_by(line, -delay) AS line,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        sum(delay) AS delay,
        sum(n) AS n,
        sum(seconds) AS seconds
    FROM whole
    GROUP BY artifact_id, proc_id, rank
)
SELECT
    t.artifact_id,
    t.row,
    t.line,
    'sample' AS "table",
    t.proc_id,
    t.rank,
    t.step,
    t.ts_ns,
    'the training thread' AS task,
    CAST(t.n AS BIGINT) AS n,
    CAST(1e9 * t.delay / t.n AS BIGINT) AS delay,
    CAST(1e9 * t.delay AS BIGINT) AS total,
    least(1, t.delay / t.seconds) AS share,
    CASE WHEN t.delay < $min_share * t.seconds THEN 'medium' ELSE 'high' END AS severity,
    'run-queue' AS key
FROM total AS t
WHERE t.n >= $min_switches AND t.delay > $max_delay * t.n AND t.delay >= $min_told_share * t.seconds
QUALIFY row_number() OVER (PARTITION BY t.proc_id ORDER BY t.delay DESC, t.artifact_id) = 1
ORDER BY t.ts_ns, t.artifact_id, t.row;

-- variant: host
WITH
task AS (
    SELECT
        m.artifact_id,
        m.proc_id,
        m.rank,
        m.entity,
        min(m.row) AS row,
        min(m.line) AS line,
        sum(m.value) FILTER (WHERE m.name = 'run_delay_seconds') AS delay,
        sum(m.value) FILTER (WHERE m.name = 'n_switches') AS n,
        sum(m.value) FILTER (WHERE m.name = 'run_seconds') AS ran
    FROM metric AS m
    WHERE m.source = 'host' AND m.name IN ('run_delay_seconds', 'n_switches', 'run_seconds')
    GROUP BY m.artifact_id, m.proc_id, m.rank, m.entity
    QUALIFY ran >= $min_run_share * sum(ran) OVER (PARTITION BY m.artifact_id)
)
SELECT
    t.artifact_id,
    t.row,
    t.line,
    'sample' AS "table",
    t.proc_id,
    t.rank,
    NULL::BIGINT AS ts_ns,
    t.entity AS task,
    CAST(t.n AS BIGINT) AS n,
    CAST(1e9 * t.delay / t.n AS BIGINT) AS delay,
    CAST(1e9 * t.delay AS BIGINT) AS total,
    t.delay / (t.delay + t.ran) AS share,
    CASE WHEN t.delay < $min_share * (t.delay + t.ran) THEN 'medium' ELSE 'high' END AS severity,
    'run-queue' AS key
FROM task AS t
WHERE t.n >= $min_switches AND t.delay > $max_delay * t.n AND t.delay >= $min_told_share * (t.delay + t.ran)
QUALIFY row_number() OVER (PARTITION BY t.artifact_id ORDER BY t.delay DESC, t.entity) = 1
ORDER BY t.artifact_id, t.row;
