/*
title = "The health score of the steps is low"
severity = "info"
role = "symptom"
proves = """
In most of the steps in which it was measured, one part of the health score lies at its bad limit or beyond: the share of
gradient elements that are zero, the memory held over that of the device, or the time of the backward over that of the
forward. The score of a step is the mean of its parts, each 100 up to its healthy limit, 0 from its bad limit on, and in
proportion between."""
cannot_prove = """
That anything is wrong: embeddings and mixtures of experts have sparse gradients, a full device can be meant, and a
backward that repeats the forward takes three times as long."""
message = "{who}: the health score is {score} of 100 over {n_steps:# measured step|# measured steps}: {part} is {value} in {n_bad} of them (healthy up to {healthy}, bad from {bad}{says})"
fix = "Look at the chart of the health score beside loss and gradient norm: it is context for other findings, no fault by itself."

[thresholds.min_steps]
value = 3
unit = "measured steps at the bad limit"
measured = "n_bad"
why = "first steps are often out of the ordinary"

[thresholds.min_share]
value = 0.5
unit = "measured steps at the bad limit / measured steps"
measured = "n_bad / n_steps"
why = "less is a stretch of the run, which the chart shows"

[variant.tensors]
needs = ["tensor|sample|slice"]
strength = "indication"
*/
-- variant: tensors
WITH
usual AS (
    SELECT
        proc_id,
        part,
        healthy,
        bad,
        says,
        count(*) AS n_steps,
        count(*) FILTER (WHERE score = 0) AS n_bad,
        median(value) FILTER (WHERE score = 0) AS value,
        min(step) FILTER (WHERE score = 0) AS step
    FROM health_part
    -- Where all gradients are zero nothing was computed, which is no sparsity.
    WHERE part <> 'gradient-sparsity' OR value < 1
    GROUP BY proc_id, part, healthy, bad, says
)
SELECT
    h.artifact_id,
    h.row,
    h."table",
    h.proc_id,
    h.rank,
    h.step,
    h.ts_ns,
    CASE u.part
        WHEN 'gradient-sparsity' THEN 'the share of gradient elements that are zero'
        WHEN 'memory-residency' THEN 'the share of the device''s memory that is held'
        ELSE 'the time of the backward over that of the forward'
    END AS part,
    printf('%.2f', u.value) AS value,
    printf('%.2f', u.healthy) AS healthy,
    printf('%.2f', u.bad) AS bad,
    CASE WHEN u.says = '' THEN '' ELSE ', ' || u.says END AS says,
    (SELECT CAST(round(median(s.score)) AS INTEGER) FROM health_score AS s WHERE s.proc_id IS NOT DISTINCT FROM u.proc_id) AS score,
    u.n_steps,
    u.n_bad,
    u.part AS key
FROM usual AS u
JOIN health_part AS h ON h.proc_id IS NOT DISTINCT FROM u.proc_id AND h.part = u.part AND h.step = u.step
WHERE u.n_bad >= $min_steps AND u.n_bad >= $min_share * u.n_steps
ORDER BY h.ts_ns, h.artifact_id, h.row, u.part;
