/*
title = "BatchNorm's averages do not fit what the model is evaluated on"
severity = "high"
proves = """
The model keeps running averages (BatchNorm), the training loss holds its course, and the loss of the evaluation, which
uses the averages, jumps between evaluations or swings by far more than the training loss."""
cannot_prove = """
The averages themselves are not on record: samples of another domain and averages out of tiny batches look alike."""
message = "{who}: with BatchNorm in the model ({buffer}), the evaluation loss {what}{at_step} while the training loss stays at about {training}"
fix = "Compare a batch of the evaluation in train() and eval() mode. Recompute the averages on data of that domain, use a larger batch or SyncBatchNorm, a smaller momentum, or a norm without averages (LayerNorm, GroupNorm)."
causes = []

[thresholds.min_jump]
value = 3.0
unit = "evaluation loss / median of the evaluations before"
why = "overfitting raises it by a tenth or two from one evaluation to the next"

[thresholds.min_swing]
value = 1.5
unit = "largest / smallest of two neighbouring evaluations, on average"
why = "evaluations of one set differ by a few percent once the first ones are over"

[thresholds.min_evaluations]
value = 4
unit = "evaluations"
why = "fewer show no course"

[variant.metrics]
needs = ["sample", "tensor"]
strength = "indication"
*/
-- variant: metrics
WITH
averaged AS (
    SELECT
        t.proc_id,
        min(n.text) AS buffer
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role IN ('placement', 'buffer') AND contains(n.text, 'running_mean')
    GROUP BY t.proc_id
),
evaluation AS (
    SELECT
        e.*,
        a.buffer,
        median(e.value) OVER (PARTITION BY e.proc_id ORDER BY e.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS past,
        lag(e.value) OVER (PARTITION BY e.proc_id ORDER BY e.place) AS last
    FROM training_curve AS e
    JOIN averaged AS a ON a.proc_id IS NOT DISTINCT FROM e.proc_id
    WHERE e.name = 'eval_loss' AND e.preference = 1 AND isfinite(e.value) AND e.value > 0
),
training AS (
    SELECT
        proc_id,
        median(value) FILTER (WHERE place * 2 > n) AS late,
        median(value) FILTER (WHERE place * 2 <= n) AS early
    FROM training_curve
    WHERE name = 'loss' AND preference = 1
    GROUP BY proc_id
    HAVING bool_and(isfinite(value))
),
jump AS (
    SELECT
        e.artifact_id, e.row, e.line, e.proc_id, e.rank, e.step, e.ts_ns, e.buffer, t.late,
        'jumps to ' || printf('%.3g', e.value) || ' from ' || printf('%.3g', e.past) AS what,
        e.place
    FROM evaluation AS e
    JOIN training AS t ON t.proc_id IS NOT DISTINCT FROM e.proc_id
    WHERE e.place >= $min_evaluations AND e.value > $min_jump * e.past AND t.late < 1.2 * t.early
),
swing AS (
    SELECT
        e.artifact_id, min_by(e.row, e.place) AS row, min_by(e.line, e.place) AS line, e.proc_id, e.rank,
        min_by(e.step, e.place) AS step, min(e.ts_ns) AS ts_ns, e.buffer, max(t.late) AS late,
        'swings between ' || printf('%.3g', min(e.value)) || ' and ' || printf('%.3g', max(e.value)) || ' over ' || count(*) || ' evaluations of one set' AS what,
        min(e.place) AS place
    FROM evaluation AS e
    JOIN training AS t ON t.proc_id IS NOT DISTINCT FROM e.proc_id
    WHERE e.last IS NOT NULL
    GROUP BY e.artifact_id, e.proc_id, e.rank, e.buffer
    HAVING count(*) >= 2 * $min_evaluations AND exp(avg(abs(ln(e.value / e.last)))) > 1 + 0.4 * ($min_swing - 1)
       AND max(e.value) / min(e.value) > $min_swing
       AND abs(corr(e.value, e.place)) < 0.5
)
SELECT
    artifact_id, row, line, proc_id, rank, step, ts_ns, buffer, what,
    printf('%.3g', late) AS training,
    'norm-stats' AS key
FROM (SELECT * FROM jump UNION ALL SELECT * FROM swing)
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY place, what) = 1
ORDER BY ts_ns, artifact_id, row;
