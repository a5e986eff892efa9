/*
title = "What two saved states of a run differ in"
severity = "info"
scope = "job"
proves = """
Between the first and the last state that were saved under one name: which tensors are equal to the bit, which moved, and
which are in one of them alone; weights whose norm doubled or halved. Where all weights of all files are equal, the later
file holds nothing of what was trained between the two. States of optimizers do not count."""
cannot_prove = """
How far a tensor moved exactly: that is told from up to 64 of its elements (forensics checkpoint-diff A B tells the whole
distances). Why nothing moved, whether what stayed was meant to, and where nothing moved at all, whether the training moved
nothing or something else than what it trained was saved: a loss that falls meanwhile speaks for the latter."""
message = "{file}, step {step_a} to {step}: {told}"
fix = "{advice}"
causes = []
references = ["https://docs.pytorch.org/tutorials/recipes/recipes/saving_and_loading_a_general_checkpoint.html"]

[thresholds.min_steps]
value = 10
unit = "steps between both states"
why = "a warm-up may begin with steps that are too small for the weights' type"

[thresholds.far]
value = 2.0
unit = "larger / smaller norm of a matrix"
why = "weights that train soundly keep their norm within some percent from one saved state to the next"

[thresholds.min_fall]
value = 0.2
unit = "fall of the median loss from the first third between both states to the last, as a share of it"
why = "noise of batches moves a median of several values by less; weights that stay give no lasting fall"

[variant.files]
needs = ["checkpoint"]
strength = "strong"
*/
-- variant: files
WITH
state AS (
    SELECT
        artifact_id,
        path,
        run,
        concat_ws('/', run, regexp_replace(file, '[0-9]+', '#', 'g')) AS series,
        saved_step AS step
    FROM checkpoint_file
    WHERE saved_step IS NOT NULL AND damage IS NULL AND NOT is_unfinished AND kind IN ('safetensors', 'torch-zip', 'torch-legacy')
      AND NOT regexp_matches(file, '(?i)optim|sched|scaler|rng|random')
),
pair AS (
    SELECT
        series,
        min(run) AS run,
        arg_min(artifact_id, (step, artifact_id)) AS a,
        arg_max(artifact_id, (step, -artifact_id)) AS b,
        min(step) AS step_a,
        max(step) AS step
    FROM state
    GROUP BY series
    HAVING max(step) - min(step) >= $min_steps
),
weight AS (
    SELECT
        *
    FROM stored_tensor
    WHERE NOT regexp_matches(name, '(?i)(^|\.)(optim|lr_sched|sched|scaler|rng|random|ema)[^.]*\.')
),
side_a AS (SELECT p.series, w.* FROM pair AS p JOIN weight AS w ON w.artifact_id = p.a),
side_b AS (SELECT p.series, w.* FROM pair AS p JOIN weight AS w ON w.artifact_id = p.b),
compared AS (
    SELECT
        coalesce(a.series, b.series) AS series,
        coalesce(a.name, b.name) AS name,
        regexp_extract(coalesce(a.name, b.name), '^([^.]+(\.[0-9]+)?)', 1) AS branch,
        a.norm AS norm_a,
        b.norm AS norm_b,
        b.artifact_id,
        b.row,
        b.byte,
        CASE
            WHEN a.name IS NULL THEN 'new'
            WHEN b.name IS NULL THEN 'gone'
            WHEN a.shape <> b.shape OR a.dtype <> b.dtype THEN 'reshaped'
            WHEN a.checksum IS NULL OR b.checksum IS NULL THEN 'unread'
            WHEN a.checksum = b.checksum THEN 'equal'
            ELSE 'moved'
        END AS change,
        CASE WHEN len(a.picked) = len(b.picked)
            THEN list_distance(a.picked, b.picked) / nullif(sqrt(list_inner_product(a.picked, a.picked)), 0)
        END AS distance,
        a.norm > 0 AND b.norm > 0 AND len(TRY_CAST(a.shape AS BIGINT[])) > 1 AND greatest(a.norm / b.norm, b.norm / a.norm) >= $far AS is_far,
        -- Integers, masks and counters stay as they are in sound runs.
        coalesce(a.dtype, b.dtype) LIKE '%float%' AS is_float
    FROM side_a AS a
    FULL JOIN side_b AS b ON b.series = a.series AND b.name = a.name
),
branched AS (
    SELECT
        series,
        branch,
        count(*) AS n,
        count(*) FILTER (WHERE change = 'moved') AS n_moved,
        count(*) FILTER (WHERE change IN ('new', 'gone', 'reshaped')) AS n_other,
        arg_max((name, distance), (distance, name)) FILTER (WHERE change = 'moved' AND isfinite(distance)) AS most,
        max(artifact_id) AS artifact_id,
        min(byte) AS byte
    FROM compared
    GROUP BY series, branch
),
tree AS (
    SELECT
        series,
        list({
            'artifact_id': artifact_id, 'byte': byte,
            'note': branch || ': ' || n_moved || ' of ' || n || ' moved'
                || CASE WHEN n_other > 0 THEN ', ' || n_other || ' in one of both alone or of another form' ELSE '' END
                || coalesce(', most ' || most[1] || printf(' by %.3g %% of its norm', 100 * most[2]), '')
        } ORDER BY n_other DESC, n_moved / n, branch)[:8] AS evidence
    FROM branched
    WHERE artifact_id IS NOT NULL
    GROUP BY series
),
summed AS (
    SELECT
        series,
        count(*) AS n,
        count(*) FILTER (WHERE change = 'moved') AS n_moved,
        count(*) FILTER (WHERE change = 'equal' AND is_float) AS n_equal,
        count(*) FILTER (WHERE change = 'unread') AS n_unread,
        count(*) FILTER (WHERE change = 'new') AS n_new,
        count(*) FILTER (WHERE change = 'gone') AS n_gone,
        count(*) FILTER (WHERE change = 'reshaped') AS n_reshaped,
        count(*) FILTER (WHERE is_far) AS n_far,
        arg_max((name, norm_a, norm_b), (abs(ln(norm_b / norm_a)), name)) FILTER (WHERE is_far) AS far,
        arg_max((name, distance), (distance, name)) FILTER (WHERE change = 'moved' AND isfinite(distance)) AS most,
        min(row) AS row
    FROM compared
    GROUP BY series
),
-- The loss between both states, where at least six values of it are on record.
placed_loss AS (
    SELECT p.series, m.value, ntile(3) OVER (PARTITION BY p.series ORDER BY m.step, m.artifact_id, m.row) AS third
    FROM pair AS p
    JOIN metric AS m ON m.name = 'loss' AND m.step > p.step_a AND m.step <= p.step AND isfinite(m.value)
    JOIN artifact AS r ON r.id = m.artifact_id AND r.run IS NOT DISTINCT FROM p.run
),
fallen AS (
    SELECT
        series,
        median(value) FILTER (WHERE third = 1) AS loss_a,
        median(value) FILTER (WHERE third = 3) AS loss_b
    FROM placed_loss
    GROUP BY series
    HAVING count(*) >= 6 AND loss_a > 0 AND loss_b <= (1 - $min_fall) * loss_a
),
judged AS (
    SELECT
        s.*,
        s.n_equal > 0 AND s.n_unread + s.n_new + s.n_gone + s.n_reshaped = 0 AND sum(s.n_moved + s.n_unread) OVER () = 0 AS is_still
    FROM summed AS s
)
SELECT
    p.b AS artifact_id,
    j.row,
    'checkpoint_tensor' AS "table",
    p.step,
    p.step_a,
    f.file,
    j.n_moved,
    j.n_equal,
    j.n AS n_tensors,
    CASE WHEN j.is_still THEN 'no weight moved: all ' || j.n_equal || ' tensors are equal to the bit'
            || coalesce(printf(', while the loss fell from %.3g to %.3g', l.loss_a, l.loss_b), '')
        ELSE j.n_moved || ' of ' || j.n || ' tensors moved, ' || j.n_equal || ' unchanged'
            || CASE WHEN j.n_new > 0 THEN ', ' || j.n_new || ' came' ELSE '' END
            || CASE WHEN j.n_gone > 0 THEN ', ' || j.n_gone || ' went' ELSE '' END
            || CASE WHEN j.n_reshaped > 0 THEN ', ' || j.n_reshaped || ' of another shape or type' ELSE '' END
            || CASE WHEN j.n_unread > 0 THEN ', ' || j.n_unread || ' not read whole' ELSE '' END
            || coalesce('; most of all ' || j.most[1] || printf(' by about %.3g %% of its norm', 100 * j.most[2]), '')
            || CASE WHEN j.n_far > 0
                THEN '; the norm of ' || j.far[1] || ' went from ' || printf('%.3g to %.3g', j.far[2], j.far[3])
                    || CASE WHEN j.n_far > 1 THEN ', and of ' || (j.n_far - 1) || ' more to double or half' ELSE '' END
                ELSE ''
            END
    END AS told,
    CASE
        WHEN j.is_still AND l.series IS NOT NULL
            THEN 'The loss fell, so something was trained: look whether what is saved is that. A state_dict() that is taken once and kept, a copy of the model (deepcopy, EMA, the module before it was wrapped) or a file that an earlier run left gives the same weights each time.'
        WHEN j.is_still
            THEN 'Check that the weights are in the optimizer, that optimizer.step() runs and is not skipped, and that rate times gradient is not below the resolution of the weights'' type (bfloat16: 1/256 of the weight).'
        ELSE 'forensics checkpoint-diff A B shows both states as a tree, with distances.'
    END AS advice,
    CASE WHEN j.is_still THEN 'high' END AS severity,
    CASE WHEN j.is_still THEN ['weights-unmoved'] ELSE [] END AS causes,
    CASE WHEN j.is_still THEN ['weights-unmoved', 'gradient-blocked'] ELSE [] END AS requires,
    t.evidence,
    CASE WHEN j.is_still THEN 'unmoved' ELSE 'moved' END || ' ' || j.series AS key
FROM judged AS j
JOIN pair AS p ON p.series = j.series
JOIN checkpoint_file AS f ON f.artifact_id = p.b
LEFT JOIN tree AS t ON t.series = j.series
LEFT JOIN fallen AS l ON l.series = j.series
-- Weights that all moved a little are what training does.
WHERE j.is_still OR j.n_far > 0 OR (j.n_moved > 0 AND j.n_equal + j.n_new + j.n_gone + j.n_reshaped > 0)
ORDER BY j.is_still DESC, p.b;
