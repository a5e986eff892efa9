/*
title = "The loss stands still"
severity = "info"
role = "symptom"
proves = """
The loss of the last quarter is that of the first within two percent, the gradient norm moved by less than five percent,
and the learning rate is far from the end of its schedule."""
cannot_prove = """
Why nothing is learned: a model at its best stands still too."""
message = "{who}: over {n_steps:# logged step|# logged steps} the loss stays at {loss}, and the gradient norm at {norm}"
fix = "Overfit one batch first: if that fails, the fault lies in model, loss or optimizer and not in the data."
requires = [{ state = "weights-unmoved", of = "rank" }, { state = "gradient-blocked", of = "rank" }, { state = "gradient-invalid", of = "rank" }]

[thresholds.max_loss_change]
value = 0.02
unit = "|last quarter - first quarter| / first quarter, medians"
why = "scatter of medians over ten losses of small batches"

[thresholds.max_norm_change]
value = 0.05
unit = "the same of the gradient norm"
why = "a model that learns changes its gradients by more"

[thresholds.min_points]
value = 40
unit = "logged losses"
why = "a slow start is no plateau"

[variant.metrics]
needs = ["sample"]
strength = "indication"
*/
-- variant: metrics
WITH
course AS (
    SELECT
        proc_id,
        name,
        median(value) FILTER (WHERE place * 4 <= n) AS early,
        median(value) FILTER (WHERE place * 4 > 3 * n) AS late,
        max(value) AS largest,
        max_by(value, place) AS last,
        count(*) AS n_points,
        min(artifact_id) AS artifact_id,
        min(row) AS row,
        min(line) AS line,
        min(rank) AS rank,
        max(ts_ns) AS ts_ns
    FROM training_curve
    WHERE preference = 1 AND name IN ('loss', 'grad_norm', 'learning_rate')
    GROUP BY proc_id, name
    HAVING bool_and(isfinite(value))
)
SELECT
    l.artifact_id,
    l.row,
    l.line,
    l.proc_id,
    l.rank,
    l.ts_ns,
    l.n_points AS n_steps,
    printf('%.4g', l.late) AS loss,
    printf('%.3g', g.late) AS norm,
    'plateau' AS key
FROM course AS l
JOIN course AS g ON g.proc_id IS NOT DISTINCT FROM l.proc_id AND g.name = 'grad_norm'
JOIN course AS r ON r.proc_id IS NOT DISTINCT FROM l.proc_id AND r.name = 'learning_rate'
WHERE l.name = 'loss' AND l.n_points >= $min_points AND g.n_points >= $min_points
  AND abs(l.late - l.early) <= $max_loss_change * abs(l.early)
  AND abs(g.late - g.early) <= $max_norm_change * abs(g.early)
  AND (r.last > 0.1 * r.largest OR r.largest = 0)
ORDER BY l.ts_ns, l.artifact_id, l.row;
