-- Losses of runs whose commands are on record, with the backend that the command names: eager where it names none.
-- A row is one step's loss in the metrics of one run; file: its artifact below the run's folder; command: without backend
-- and the place where it writes to, so that runs of one command by several backends can be paired.
CREATE TEMP VIEW training_run_of_backend AS
WITH
told AS (
    SELECT
        min(regexp_replace(a.path, '(^|/)[^/]*$', '')) AS folder,
        regexp_replace(f.value, '\s--?(out|output|output[-_]dir|log[-_]dir|backend|compile[-_]backend)[= ]\S+|\s--?(no[-_])?compile\b', '', 'g') AS command,
        coalesce(
            nullif(regexp_extract(f.value, '\s--?(?:compile[-_])?backend[= ](\S+)', 1), ''),
            CASE WHEN regexp_matches(f.value, '\s--?compile\b') THEN 'compiled' ELSE 'eager' END
        ) AS backend
    FROM fact AS f
    JOIN artifact AS a ON a.id = f.artifact_id
    WHERE f.key = 'command'
    GROUP BY f.value
)
SELECT
    t.folder,
    t.command,
    t.backend,
    substr(a.path, length(t.folder) + 2) AS file,
    c.*
FROM training_curve AS c
JOIN artifact AS a ON a.id = c.artifact_id
JOIN told AS t ON starts_with(a.path, t.folder || '/')
WHERE c.name = 'loss' AND c.source = 'metrics' AND c.step IS NOT NULL;
