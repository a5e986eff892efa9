-- Processes that a kernel killed for the memory limit of another job of the scheduler, on a host that both share. A row is
-- one of them. Empty where the number of this job is not known: by its variables, or by the name of its output (that of a
-- task of an array has the number of the array, not of the job).
CREATE TEMP VIEW foreign_kill AS
WITH
own_job AS (
    SELECT regexp_extract(value, '^\d+') AS id FROM fact WHERE key IN ('SLURM_JOB_ID', 'SLURM_JOBID')
    UNION
    SELECT regexp_extract(path, '(?:^|/)slurm-(\d+)\.[^/]*$', 1) AS id FROM artifact
)
SELECT DISTINCT
    e.host,
    e.fields ->> 'pid' AS pid
FROM log AS e
WHERE e.signature = 'host-oom-summary'
  AND regexp_full_match(e.fields ->> 'memcg_job', '\d+')
  AND EXISTS (SELECT 1 FROM own_job AS j WHERE j.id <> '')
  AND NOT EXISTS (SELECT 1 FROM own_job AS j WHERE j.id = e.fields ->> 'memcg_job');
