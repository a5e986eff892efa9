-- What a fleet can be asked. `stored` holds the rows of all analyses (rows.py); of a job the newest counts.
CREATE VIEW latest AS
SELECT s.* FROM stored AS s
JOIN (SELECT job, max(analyzed_ns) AS analyzed_ns FROM stored GROUP BY job) AS n
    ON n.job = s.job AND n.analyzed_ns = s.analyzed_ns
QUALIFY row_number() OVER (PARTITION BY s.job ORDER BY s.run DESC, s.edition) = 1;

CREATE VIEW job AS
SELECT
    job, name, series, place, run, status, reason, state, state_origin, scheduler_id, verdict, sentence, rule, severity,
    confidence, incident, started_ns, ended_ns, elapsed_s, n_gpus, gpu_hours, gpu_hours_origin,
    CASE WHEN state = 'failed' OR verdict IN ('root-cause', 'independent') THEN gpu_hours END AS gpu_hours_lost,
    len(list_distinct(list_transform(processes, lambda p: p.host))) AS n_hosts,
    len(list_filter(processes, lambda p: p.rank IS NOT NULL)) AS n_ranks,
    len(list_filter(processes, lambda p: p.rank IS NOT NULL AND p.traced)) AS n_ranks_traced,
    coalesce(list_sum(list_transform(
        list_filter(artifacts, lambda a: a.quality NOT IN ('empty', 'unknown')), lambda a: a.n)), 0)::BIGINT AS n_artifacts,
    coalesce(list_sum(list_transform(
        list_filter(artifacts, lambda a: a.quality IN ('complete', 'repaired')), lambda a: a.n)), 0)::BIGINT AS n_artifacts_whole,
    bytes, n_findings, n_warnings, code_version, content, edition, version, analyzed_ns, wall_s, cpu_s, peak_bytes, report
FROM latest;
COMMENT ON VIEW job IS 'One row per job, as last analyzed';
COMMENT ON COLUMN job.job IS 'Key of the job: its name and a hash of its place; the folder below jobs/';
COMMENT ON COLUMN job.name IS 'Name of its folder, or what its scheduler calls it';
COMMENT ON COLUMN job.series IS 'What runs of the same training have in common: the name without numbers';
COMMENT ON COLUMN job.place IS 'Where its artifacts lie';
COMMENT ON COLUMN job.run IS 'Number of the batch that first met this content';
COMMENT ON COLUMN job.status IS 'analyzed | not-analyzed';
COMMENT ON COLUMN job.reason IS 'Why it could not be analyzed';
COMMENT ON COLUMN job.state IS 'failed | completed | running | unknown, as scheduler, list, error or exit file say';
COMMENT ON COLUMN job.state_origin IS 'Who says so';
COMMENT ON COLUMN job.scheduler_id IS 'Job id of SLURM, or namespace/name in Kubernetes';
COMMENT ON COLUMN job.verdict IS 'root-cause | independent | not-established | healthy';
COMMENT ON COLUMN job.sentence IS 'The verdict in a sentence';
COMMENT ON COLUMN job.rule IS 'Rule of the first root cause; NULL without one';
COMMENT ON COLUMN job.severity IS 'Its severity';
COMMENT ON COLUMN job.confidence IS 'Its calibrated probability';
COMMENT ON COLUMN job.incident IS 'incident.incident of the first root cause, or of the first unknown error';
COMMENT ON COLUMN job.started_ns IS 'Start, ns since the epoch; times of sacct are taken as UTC';
COMMENT ON COLUMN job.ended_ns IS 'End, ns since the epoch; when nothing tells, the newest file''s time';
COMMENT ON COLUMN job.elapsed_s IS 'Duration, seconds';
COMMENT ON COLUMN job.n_gpus IS 'GPUs that it held';
COMMENT ON COLUMN job.gpu_hours IS 'GPU hours that it held; NULL where nothing tells';
COMMENT ON COLUMN job.gpu_hours_origin IS 'sacct | kubernetes | processes (time of processes that used a device)';
COMMENT ON COLUMN job.gpu_hours_lost IS 'gpu_hours of jobs that failed: an upper bound, what a checkpoint saved is not known';
COMMENT ON COLUMN job.n_hosts IS 'Hosts seen';
COMMENT ON COLUMN job.n_ranks IS 'Ranks seen, of all attempts';
COMMENT ON COLUMN job.n_ranks_traced IS 'Ranks of which there is a trace';
COMMENT ON COLUMN job.n_artifacts IS 'Files that are artifacts: of a known format and not empty';
COMMENT ON COLUMN job.n_artifacts_whole IS 'Those that were read whole or repaired';
COMMENT ON COLUMN job.bytes IS 'Bytes of its files';
COMMENT ON COLUMN job.n_findings IS 'Findings in the case; at most 200 are in the fleet';
COMMENT ON COLUMN job.n_warnings IS 'Losses at reading';
COMMENT ON COLUMN job.code_version IS 'Git commit of the training code, where the job recorded it';
COMMENT ON COLUMN job.content IS 'Hash of names and bytes of its files';
COMMENT ON COLUMN job.edition IS 'Hash of the program and the rules that analyzed it';
COMMENT ON COLUMN job.version IS 'Version of forensics that analyzed it';
COMMENT ON COLUMN job.analyzed_ns IS 'When it was analyzed, ns since the epoch';
COMMENT ON COLUMN job.wall_s IS 'Seconds that took';
COMMENT ON COLUMN job.cpu_s IS 'CPU seconds that took, of all its processes';
COMMENT ON COLUMN job.peak_bytes IS 'Most memory that one of them took';
COMMENT ON COLUMN job.report IS 'Report, relative to the fleet';

CREATE VIEW finding AS
SELECT
    l.job, l.name, l.run, l.ended_ns, f.id, f.rule, f.title, f.variant, f.severity, f.strength, f.confidence, f.place,
    f.attempt, f.rank, f.step, f.ts_ns, f.host, f.device, f.message, f.fix, f.fingerprint, f.incident, r.decision, r.note
FROM latest AS l, unnest(l.findings) AS u(f)
LEFT JOIN review AS r ON r.job = l.job AND r.fingerprint = f.fingerprint;
COMMENT ON VIEW finding IS 'Findings of all jobs, with what reviewers decided';
COMMENT ON COLUMN finding.job IS 'job.job';
COMMENT ON COLUMN finding.name IS 'job.name';
COMMENT ON COLUMN finding.run IS 'job.run';
COMMENT ON COLUMN finding.ended_ns IS 'job.ended_ns';
COMMENT ON COLUMN finding.id IS 'finding.id in the case';
COMMENT ON COLUMN finding.rule IS 'Id of the rule; its page is rules/RULE.html';
COMMENT ON COLUMN finding.title IS 'What is wrong';
COMMENT ON COLUMN finding.variant IS 'Variant of the rule that found it';
COMMENT ON COLUMN finding.severity IS 'critical | high | medium | info';
COMMENT ON COLUMN finding.strength IS 'proof | strong | indication';
COMMENT ON COLUMN finding.confidence IS 'Calibrated probability';
COMMENT ON COLUMN finding.place IS 'root | consequence | other, in the verdict of its job';
COMMENT ON COLUMN finding.attempt IS 'Life of the job between restarts';
COMMENT ON COLUMN finding.rank IS 'Global rank';
COMMENT ON COLUMN finding.step IS 'Step';
COMMENT ON COLUMN finding.ts_ns IS 'Time, ns since the epoch';
COMMENT ON COLUMN finding.host IS 'Host of the process';
COMMENT ON COLUMN finding.device IS 'Device index on that host';
COMMENT ON COLUMN finding.message IS 'The claim in a sentence';
COMMENT ON COLUMN finding.fix IS 'What to do';
COMMENT ON COLUMN finding.fingerprint IS 'Of this finding of this job, over re-runs';
COMMENT ON COLUMN finding.incident IS 'Of the same fault in any job';
COMMENT ON COLUMN finding.decision IS 'confirmed | dismissed by a reviewer; NULL: not reviewed';
COMMENT ON COLUMN finding.note IS 'The reviewer''s note';

CREATE VIEW process AS
SELECT l.job, p.attempt, p.host, p.rank, p.device, p.exit_code, p.signal, p.traced
FROM latest AS l, unnest(l.processes) AS u(p);
COMMENT ON VIEW process IS 'Processes of all jobs';
COMMENT ON COLUMN process.job IS 'job.job';
COMMENT ON COLUMN process.attempt IS 'Life of the job between restarts';
COMMENT ON COLUMN process.host IS 'Host';
COMMENT ON COLUMN process.rank IS 'Global rank';
COMMENT ON COLUMN process.device IS 'Device index on its host';
COMMENT ON COLUMN process.exit_code IS 'Exit code';
COMMENT ON COLUMN process.signal IS 'Signal that ended it';
COMMENT ON COLUMN process.traced IS 'Whether there is a trace of it';

CREATE VIEW error AS
SELECT l.job, l.run, l.ended_ns, e.exception, e.message, e.where_in_code, e.n, e.incident
FROM latest AS l, unnest(l.errors) AS u(e);
COMMENT ON VIEW error IS 'Errors in logs that no catalogue entry names';
COMMENT ON COLUMN error.job IS 'job.job';
COMMENT ON COLUMN error.run IS 'job.run';
COMMENT ON COLUMN error.ended_ns IS 'job.ended_ns';
COMMENT ON COLUMN error.exception IS 'Exception; empty for a line of text';
COMMENT ON COLUMN error.message IS 'What it says';
COMMENT ON COLUMN error.where_in_code IS 'Function and file of the innermost frame of the job''s own code';
COMMENT ON COLUMN error.n IS 'How often, in this job';
COMMENT ON COLUMN error.incident IS 'Of the same words in any job';

CREATE VIEW metric AS
SELECT l.job, l.name AS job_name, l.series, l.run, l.ended_ns, m.name, m.n, m.n_nonfinite, m.steps, m.samples
FROM latest AS l, unnest(l.metrics) AS u(m);
COMMENT ON VIEW metric IS 'Step metrics of all jobs, thinned to at most 256 samples';
COMMENT ON COLUMN metric.job IS 'job.job';
COMMENT ON COLUMN metric.job_name IS 'job.name';
COMMENT ON COLUMN metric.series IS 'job.series';
COMMENT ON COLUMN metric.run IS 'job.run';
COMMENT ON COLUMN metric.ended_ns IS 'job.ended_ns';
COMMENT ON COLUMN metric.name IS 'Name of the metric';
COMMENT ON COLUMN metric.n IS 'Values recorded';
COMMENT ON COLUMN metric.n_nonfinite IS 'Those that are NaN or infinite';
COMMENT ON COLUMN metric.steps IS 'Steps of the samples';
COMMENT ON COLUMN metric.samples IS 'Finite values at those steps';

CREATE VIEW missing_evidence AS
SELECT l.job, l.run, m.rule, m.capability FROM latest AS l, unnest(l.missing) AS u(m);
COMMENT ON VIEW missing_evidence IS 'Rules that could not be asked, and the capability that lacked';
COMMENT ON COLUMN missing_evidence.job IS 'job.job';
COMMENT ON COLUMN missing_evidence.run IS 'job.run';
COMMENT ON COLUMN missing_evidence.rule IS 'Id of the rule';
COMMENT ON COLUMN missing_evidence.capability IS 'What would have let it';

-- Batches that met new content, numbered without gaps.
CREATE VIEW working_run AS
SELECT run, row_number() OVER (ORDER BY run) AS ordinal, count(*) OVER () AS n
FROM (SELECT DISTINCT run FROM latest WHERE run IS NOT NULL);
COMMENT ON VIEW working_run IS 'Batches that met jobs with new content';
COMMENT ON COLUMN working_run.run IS 'Number of the batch';
COMMENT ON COLUMN working_run.ordinal IS 'From 1, without gaps';
COMMENT ON COLUMN working_run.n IS 'Number of all of them';

CREATE VIEW sighting AS
SELECT
    f.incident, f.rule, f.title, f.message, f.fix, f.severity, f.confidence, f.job, f.run, f.ended_ns, f.host, f.decision, true
        AS explained
FROM finding AS f WHERE f.place = 'root'
UNION ALL
SELECT
    j.incident, NULL, 'Not explained by any rule', coalesce(e.exception || CASE WHEN e.exception = '' THEN '' ELSE ': ' END
        || e.message, j.sentence), '', NULL, NULL, j.job, j.run, j.ended_ns, NULL, NULL, false
FROM job AS j
LEFT JOIN (SELECT DISTINCT ON (job, incident) job, incident, exception, message FROM error) AS e
    ON e.job = j.job AND e.incident = j.incident
WHERE j.verdict = 'not-established' AND j.incident IS NOT NULL;
COMMENT ON VIEW sighting IS 'Each incident in each job: root causes, and of jobs without one their first unknown error';
COMMENT ON COLUMN sighting.incident IS 'incident.incident';
COMMENT ON COLUMN sighting.rule IS 'Id of the rule; NULL for an unknown error';
COMMENT ON COLUMN sighting.title IS 'What is wrong';
COMMENT ON COLUMN sighting.message IS 'The claim, or the error''s words';
COMMENT ON COLUMN sighting.fix IS 'What to do';
COMMENT ON COLUMN sighting.severity IS 'critical | high | medium | info';
COMMENT ON COLUMN sighting.confidence IS 'Calibrated probability';
COMMENT ON COLUMN sighting.job IS 'job.job';
COMMENT ON COLUMN sighting.run IS 'job.run';
COMMENT ON COLUMN sighting.ended_ns IS 'job.ended_ns';
COMMENT ON COLUMN sighting.host IS 'Host of the finding';
COMMENT ON COLUMN sighting.decision IS 'What a reviewer decided';
COMMENT ON COLUMN sighting.explained IS 'Whether a rule explains it';

-- Absent for this many working runs: resolved; seen again after that: regressed.
CREATE MACRO resolved_after() AS 3;
CREATE VIEW incident AS
WITH numbered AS (
    SELECT s.*, w.ordinal, w.n,
        lag(w.ordinal) OVER (PARTITION BY s.incident ORDER BY w.ordinal, s.job) AS before
    FROM sighting AS s JOIN working_run AS w ON w.run = s.run
),
told AS (
    SELECT
        incident, min(rule) AS rule, min(title) AS title, arg_max(message, (ordinal, job)) AS message,
        arg_max(fix, (ordinal, job)) AS fix, arg_max(job, (ordinal, job)) AS example, bool_and(explained) AS explained,
        arg_max(severity, (ordinal, job)) AS severity, count(DISTINCT job) AS n_jobs, count(DISTINCT host) AS n_hosts,
        min(run) AS first_run, max(run) AS last_run, min(ended_ns) AS first_ns, max(ended_ns) AS last_ns,
        min(ordinal) AS first_ordinal, max(ordinal) AS last_ordinal, max(n) AS n_runs,
        max(before) FILTER (WHERE ordinal = n AND before < n) AS before_last,
        count(DISTINCT job) FILTER (WHERE ordinal = n) AS n_jobs_last_run,
        count(*) FILTER (WHERE decision LIKE 'confirm%') AS n_confirmed,
        count(*) FILTER (WHERE decision LIKE 'dismiss%') AS n_dismissed
    FROM numbered GROUP BY incident
)
SELECT
    t.incident,
    CASE
        WHEN last_ordinal = n_runs AND first_ordinal = n_runs THEN 'new'
        WHEN last_ordinal = n_runs AND n_runs - before_last - 1 >= resolved_after() THEN 'regressed'
        WHEN n_runs - last_ordinal >= resolved_after() THEN 'resolved'
        ELSE 'known'
    END AS state,
    t.rule, t.title, t.message, t.fix, t.severity, t.explained, t.n_jobs, t.n_jobs_last_run, t.n_hosts, t.first_run, t.last_run,
    t.first_ns, t.last_ns, t.example, g.gpu_hours_lost, t.n_confirmed, t.n_dismissed
FROM told AS t
LEFT JOIN (
    SELECT s.incident, sum(j.gpu_hours_lost) AS gpu_hours_lost
    FROM (SELECT DISTINCT incident, job FROM sighting) AS s JOIN job AS j ON j.job = s.job GROUP BY s.incident
) AS g ON g.incident = t.incident;
COMMENT ON VIEW incident IS 'The same fault over all jobs: root causes of the same rule with the same decisive words, and unknown errors';
COMMENT ON COLUMN incident.incident IS 'Hash of rule and decisive words, without ranks, steps, sizes, paths and times';
COMMENT ON COLUMN incident.state IS 'new (only in the last working run) | known | regressed (in the last one, after being absent for 3) | resolved (absent for 3)';
COMMENT ON COLUMN incident.rule IS 'Id of the rule; NULL for an unknown error';
COMMENT ON COLUMN incident.title IS 'What is wrong';
COMMENT ON COLUMN incident.message IS 'The claim in the newest job';
COMMENT ON COLUMN incident.fix IS 'What to do';
COMMENT ON COLUMN incident.severity IS 'critical | high | medium | info';
COMMENT ON COLUMN incident.explained IS 'Whether a rule explains it';
COMMENT ON COLUMN incident.n_jobs IS 'Jobs that have it';
COMMENT ON COLUMN incident.n_jobs_last_run IS 'Those that the last working run met';
COMMENT ON COLUMN incident.n_hosts IS 'Hosts that have it';
COMMENT ON COLUMN incident.first_run IS 'First batch that met it';
COMMENT ON COLUMN incident.last_run IS 'Last batch that met it';
COMMENT ON COLUMN incident.first_ns IS 'End of the first job, ns since the epoch';
COMMENT ON COLUMN incident.last_ns IS 'End of the last job, ns since the epoch';
COMMENT ON COLUMN incident.example IS 'job.job of the newest one';
COMMENT ON COLUMN incident.gpu_hours_lost IS 'Sum of job.gpu_hours_lost of its jobs; a job with several incidents counts for each';
COMMENT ON COLUMN incident.n_confirmed IS 'Findings that reviewers confirmed';
COMMENT ON COLUMN incident.n_dismissed IS 'Findings that reviewers dismissed';

-- Rules whose root causes speak of the machine, not of the program that ran on it.
CREATE MACRO blames_machine(rule) AS (
    (rule LIKE 'hardware-%' AND rule NOT IN ('hardware-illegal-access', 'hardware-device-assert', 'hardware-stream-race'))
    OR rule IN ('host-disk', 'host-context-switch', 'distributed-network')
);
-- Lower end of the 95 % interval of a share: one fault of one job is no sure sign. Wilson, JASA 22 (1927) 209.
CREATE MACRO wilson_low(k, n) AS (
    (k / n + 1.9208 / n - 1.96 * sqrt(k / n * (1 - k / n) / n + 0.9604 / (n * n))) / (1 + 3.8416 / n)
);
CREATE VIEW host AS
WITH seen AS (SELECT DISTINCT job, host FROM process WHERE host IS NOT NULL),
blamed AS (
    SELECT host, count(DISTINCT job) AS n_roots, count(DISTINCT job) FILTER (WHERE blames_machine(rule)) AS n_faults
    FROM finding WHERE place = 'root' AND host IS NOT NULL AND coalesce(decision, '') NOT LIKE 'dismiss%' GROUP BY host
)
SELECT
    s.host, count(*) AS n_jobs, count(*) FILTER (WHERE j.state = 'failed' OR j.verdict IN ('root-cause', 'independent')) AS n_failed,
    coalesce(max(b.n_roots), 0) AS n_roots, coalesce(max(b.n_faults), 0) AS n_faults,
    greatest(0, wilson_low(coalesce(max(b.n_faults), 0)::DOUBLE, count(*))) AS score, max(j.ended_ns) AS last_ns
FROM seen AS s JOIN job AS j ON j.job = s.job LEFT JOIN blamed AS b ON b.host = s.host GROUP BY s.host;
COMMENT ON VIEW host IS 'Hosts, and how often faults lie with them';
COMMENT ON COLUMN host.host IS 'Name';
COMMENT ON COLUMN host.n_jobs IS 'Jobs that ran there';
COMMENT ON COLUMN host.n_failed IS 'Those that failed, for whatever reason';
COMMENT ON COLUMN host.n_roots IS 'Jobs whose root cause lies in a process there, for whatever reason';
COMMENT ON COLUMN host.n_faults IS 'Those whose root cause is the machine: hardware, disk, network';
COMMENT ON COLUMN host.score IS 'Fault score: lower end of the 95 % interval of n_faults / n_jobs, 0 to 1';
COMMENT ON COLUMN host.last_ns IS 'End of the last job there, ns since the epoch';

CREATE VIEW gpu AS
WITH seen AS (
    SELECT DISTINCT job, host, device FROM process WHERE device IS NOT NULL
    UNION SELECT DISTINCT job, host, device FROM finding WHERE device IS NOT NULL
),
blamed AS (
    SELECT host, device, count(DISTINCT job) AS n_roots, count(DISTINCT job) FILTER (WHERE blames_machine(rule)) AS n_faults
    FROM finding
    WHERE place = 'root' AND device IS NOT NULL AND coalesce(decision, '') NOT LIKE 'dismiss%' GROUP BY host, device
)
SELECT
    s.host, s.device, count(*) AS n_jobs,
    count(*) FILTER (WHERE j.state = 'failed' OR j.verdict IN ('root-cause', 'independent')) AS n_failed,
    coalesce(max(b.n_roots), 0) AS n_roots, coalesce(max(b.n_faults), 0) AS n_faults,
    greatest(0, wilson_low(coalesce(max(b.n_faults), 0)::DOUBLE, count(*))) AS score
FROM seen AS s JOIN job AS j ON j.job = s.job
LEFT JOIN blamed AS b ON b.host IS NOT DISTINCT FROM s.host AND b.device = s.device GROUP BY s.host, s.device;
COMMENT ON VIEW gpu IS 'Devices, and how often faults lie with them';
COMMENT ON COLUMN gpu.host IS 'Host; NULL where it is not known';
COMMENT ON COLUMN gpu.device IS 'Index on that host';
COMMENT ON COLUMN gpu.n_jobs IS 'Jobs that used it';
COMMENT ON COLUMN gpu.n_failed IS 'Those that failed, for whatever reason';
COMMENT ON COLUMN gpu.n_roots IS 'Jobs whose root cause lies in a process on it, for whatever reason';
COMMENT ON COLUMN gpu.n_faults IS 'Those whose root cause is the machine';
COMMENT ON COLUMN gpu.score IS 'Fault score: lower end of the 95 % interval of n_faults / n_jobs, 0 to 1';

CREATE VIEW cause_by_day AS
SELECT
    (make_timestamp_ns(ended_ns))::DATE AS day, coalesce(rule, verdict, status) AS cause, count(*) AS n_jobs,
    sum(gpu_hours_lost) AS gpu_hours_lost
FROM job WHERE ended_ns IS NOT NULL GROUP BY ALL;
COMMENT ON VIEW cause_by_day IS 'Causes over time';
COMMENT ON COLUMN cause_by_day.day IS 'Day (UTC) on which jobs ended';
COMMENT ON COLUMN cause_by_day.cause IS 'Rule of the first root cause, else the verdict, else not-analyzed';
COMMENT ON COLUMN cause_by_day.n_jobs IS 'Jobs';
COMMENT ON COLUMN cause_by_day.gpu_hours_lost IS 'GPU hours of those that failed';

CREATE VIEW unknown_error AS
SELECT
    incident, min(exception) AS exception, arg_max(message, (run, job)) AS message, arg_max(where_in_code, (run, job)) AS
        where_in_code, count(DISTINCT job) AS n_jobs, sum(n)::BIGINT AS n, max(run) AS last_run, arg_max(job, (run, job)) AS example
FROM error GROUP BY incident;
COMMENT ON VIEW unknown_error IS 'Errors that no catalogue entry names, over all jobs: what to teach next';
COMMENT ON COLUMN unknown_error.incident IS 'Hash of the words';
COMMENT ON COLUMN unknown_error.exception IS 'Exception; empty for a line of text';
COMMENT ON COLUMN unknown_error.message IS 'What it says in the newest job';
COMMENT ON COLUMN unknown_error.where_in_code IS 'Where in the job''s own code';
COMMENT ON COLUMN unknown_error.n_jobs IS 'Jobs';
COMMENT ON COLUMN unknown_error.n IS 'Occurrences';
COMMENT ON COLUMN unknown_error.last_run IS 'Last batch that met it';
COMMENT ON COLUMN unknown_error.example IS 'job.job of the newest one';
COMMENT ON TABLE review IS 'What reviewers decided, from reviews.jsonl beside the cases; the last word counts';
COMMENT ON COLUMN review.job IS 'job.job';
COMMENT ON COLUMN review.fingerprint IS 'finding.fingerprint';
COMMENT ON COLUMN review.decision IS 'confirmed | dismissed';
COMMENT ON COLUMN review.note IS 'The reviewer''s note';
