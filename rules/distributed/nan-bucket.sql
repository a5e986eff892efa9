/*
title = "One rank's gradients were not finite before they were reduced"
severity = "high"
scope = "job"
proves = """
The communication hook recorded a bucket that was not finite on the named ranks in a step in which the buckets of the
others, before the reduction, were: the reduction handed the value to all."""
cannot_prove = """
Which operator of that rank made it."""
message = "Rank {rank} brought the first gradient bucket that is not finite{at_step}; {n_finite:the gradients of # other rank were|the gradients of # other ranks were} finite before the reduction"
fix = "Look at rank {rank}'s batch and forward in that step; the other ranks only received it."
causes = [{ state = "value-nonfinite", of = "rank" }]
requires = [{ state = "value-nonfinite", of = "rank" }, { state = "batch-unusable", of = "rank" }]

[variant.buckets]
needs = ["tensor"]
strength = "proof"
*/
-- variant: buckets
WITH
bad AS (
    SELECT
        p.attempt,
        t.proc_id,
        t.rank,
        t.step,
        min(t.artifact_id) AS artifact_id,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns
    FROM tensor AS t
    JOIN proc AS p ON p.id = t.proc_id
    WHERE t.role = 'bucket' AND t.n_nan + t.n_inf > 0 AND t.rank IS NOT NULL
    GROUP BY p.attempt, t.proc_id, t.rank, t.step
),
first AS (
    SELECT * FROM bad
    QUALIFY rank() OVER (PARTITION BY attempt ORDER BY step) = 1
)
SELECT
    f.artifact_id,
    f.row,
    f.proc_id,
    f.rank,
    f.step,
    f.ts_ns,
    p.world_size - (SELECT count(DISTINCT o.rank) FROM first AS o WHERE o.attempt = f.attempt) AS n_finite,
    -- Where the operator is on record, the bucket is what came of it.
    CASE WHEN EXISTS (SELECT 1 FROM birth AS b WHERE b.proc_id = f.proc_id AND b.is_harmful) THEN 'symptom' ELSE 'cause' END AS role,
    'bucket' AS key
FROM first AS f
JOIN proc AS p ON p.id = f.proc_id
-- Bad on all ranks at once, the value came with what they share.
WHERE (SELECT count(DISTINCT o.rank) FROM first AS o WHERE o.attempt = f.attempt) < p.world_size
ORDER BY f.step, f.rank, f.artifact_id, f.row;
