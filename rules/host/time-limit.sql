/*
title = "The job ran into its time limit"
severity = "critical"
scope = "job"
cannot_prove = """
Whether the job needed more time or had long stopped making progress: look at the last step and its time."""
message = "The job ran into its time limit{host_text}: {said}{detail}"
fix = "Ask for more time (--time, activeDeadlineSeconds, -W), or save on a warning signal (--signal=USR1@300) and requeue; compare the time of the last step with that of the end first."
causes = [{ state = "job-stopped", of = "job" }]
requires = [{ state = "collective-stuck", of = "group" }, { state = "rank-stalled", of = "rank" }]
references = ["https://slurm.schedmd.com/sbatch.html#OPT_time"]

[variant.scheduler]
needs = ["log_event.scheduler"]
strength = "strong"
proves = "The scheduler says that it ended the job because its time was up."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = "A log of the job says that its time was up."

[variant.timeout-command]
needs = ["outcome", "sample"]
strength = "indication"
proves = "The job ended with the exit code of the command timeout (124)."
says = "The exit code is the one that the command timeout gives when time is up; a program may give it as well."

[thresholds.max_steps_silent]
value = 10
unit = "time between the last step and the end / time of one step"
why = "one step may take several times as long as most; a job that hangs is silent for much longer"

[thresholds.min_silence_s]
value = 1800
unit = "s between the job's last own line and the end by the scheduler"
why = "half an hour without a line is longer than evaluations and saves take; a job that hangs is silent, a long one is not"
*/
-- variant: scheduler
SELECT
    *,
    CASE
        WHEN silent_s >= $min_silence_s
            THEN '; its own files had ended ' || CAST(silent_s AS BIGINT) // 60 || ' minutes before, so it may have hung'
        ELSE ''
    END AS detail,
    CASE WHEN silent_s >= $min_silence_s THEN 'symptom' END AS role
FROM time_limit_word
ORDER BY ts_ns, artifact_id, row;
-- variant: log
SELECT
    *,
    CASE
        WHEN silent_s >= $min_silence_s
            THEN '; its own files had ended ' || CAST(silent_s AS BIGINT) // 60 || ' minutes before, so it may have hung'
        ELSE ''
    END AS detail,
    CASE WHEN silent_s >= $min_silence_s THEN 'symptom' END AS role
FROM time_limit_word
ORDER BY ts_ns, artifact_id, row;
-- variant: timeout-command
WITH
stepped AS (
    SELECT
        a.timeline,
        max(m.ts_ns) AS last_ns,
        (max(m.ts_ns) - min(m.ts_ns)) / (count(DISTINCT m.step) - 1) AS step_ns
    FROM metric AS m
    JOIN artifact AS a ON a.id = m.artifact_id
    WHERE m.step IS NOT NULL AND m.ts_ns IS NOT NULL
    GROUP BY a.timeline
    HAVING count(DISTINCT m.step) > 2
),
signalled AS (
    SELECT
        e.ts_ns,
        s.timeline,
        s.last_ns,
        s.step_ns
    FROM log AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    JOIN stepped AS s ON s.timeline = a.timeline
    WHERE e.class = 'process.signal' AND e.ts_ns IS NOT NULL
    QUALIFY row_number() OVER (ORDER BY e.ts_ns DESC, e.artifact_id, e.row) = 1
)
SELECT
    f.artifact_id,
    f.line,
    s.ts_ns,
    NULL AS silent_s,
    '' AS host_text,
    'exit code 124' AS said,
    CASE
        WHEN s.last_ns IS NULL THEN '; how long it had made no step by then is not known'
        WHEN s.ts_ns - s.last_ns > $max_steps_silent * s.step_ns
            THEN '; its last step was ' || CAST((s.ts_ns - s.last_ns) / 1e9 AS BIGINT) || ' s before, so it may have hung'
        ELSE '; it made steps until then'
    END AS detail,
    CASE WHEN coalesce(s.ts_ns - s.last_ns > $max_steps_silent * s.step_ns, TRUE) THEN 'symptom' END AS role,
    'timeout-command' AS key
FROM fact AS f
LEFT JOIN signalled AS s ON TRUE
WHERE f.key = 'exit_code'
  AND f.number = 124
QUALIFY row_number() OVER (ORDER BY f.artifact_id, f.line) = 1
ORDER BY f.artifact_id, f.line;
