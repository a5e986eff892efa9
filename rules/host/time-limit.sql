/*
title = "The job ran into its time limit"
severity = "critical"
scope = "job"
proves = """
The scheduler says that it ended the job because its time was up."""
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

[variant.log]
needs = ["log_event"]
strength = "strong"

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
