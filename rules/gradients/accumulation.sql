/*
title = "Gradients are not accumulated as the run says"
severity = "high"
cannot_prove = """
Without recorded operators, a wrong divisor of the loss: the size of the sum alone does not tell it from a larger
gradient. With them, that nothing divides the gradients after the backward, or that the rate was chosen for the sum."""
message = "{who}: gradients are to be accumulated over {n_micro:# micro-batch|# micro-batches}, but {what}{at_step}"
fix = "Call optimizer.step() and zero_grad() only when (micro_batch + 1) % accumulation_steps == 0, inside DDP with no_sync() around the others, and divide the loss by accumulation_steps."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_steps]
value = 8
unit = "micro-batches between samples"
why = "a few can be a warm-up without accumulation"

[thresholds.max_error]
value = 0.001
unit = "|derivative / loss scale - 1|"
why = "float32 and powers of two hold both exactly; with two micro-batches the right value is a half"

[thresholds.min_pairs]
value = 3
unit = "losses at the same place of two runs"
why = "one pair that fits can be chance"

[thresholds.max_ratio_error]
value = 0.1
unit = "|ratio of losses / ratio of micro-batches - 1|, of each of the first points"
why = "runs of one seed drift apart by percents within the first points; their losses differ by a factor of two or more here"

[variant.tensors]
needs = ["tensor", "sample"]
strength = "strong"
proves = """
The run says that gradients are accumulated over several micro-batches, and the version counters of the parameters
show a write in every one of them: the optimizer steps before the sum is complete."""

[variant.operators]
needs = ["tensor", "node"]
strength = "strong"
proves = """
The recorded backward enters the loss with a derivative of one, or of the loss scale, where a mean over the
micro-batches needs that divided by their number."""
says = "The derivative is that of the recorded step. Whether the gradients are divided later is not on record."

[variant.runs]
needs = ["log_event", "sample"]
strength = "strong"
proves = """
Two runs lie side by side whose losses stand to each other, point by point, as the numbers of their micro-batches."""
says = "That the gradients are too large by the same factor is read from the gradient norms where both runs log them. A trainer may also sum only what it logs."
*/
-- variant: tensors
WITH
written AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        name,
        min(row) AS row,
        min(step) AS step,
        min(ts_ns) AS ts_ns,
        max(version) - min(version) AS n_writes,
        max(step) - min(step) AS n_steps
    FROM gradient_reading
    WHERE version IS NOT NULL
    GROUP BY artifact_id, proc_id, rank, name
)
SELECT
    w.artifact_id,
    w.row,
    w.proc_id,
    w.rank,
    w.step,
    w.ts_ns,
    w.name AS module,
    'the parameters are written to ' || w.n_writes || ' times in ' || w.n_steps AS what,
    t.n_micro,
    'misaligned' AS key
FROM written AS w
JOIN accumulation_told AS t ON t.proc_id IS NOT DISTINCT FROM w.proc_id
-- Half as many writes as micro-batches are too many for an accumulation over three; at least one for each is needed here.
WHERE w.n_steps >= $min_steps AND w.n_writes >= w.n_steps
QUALIFY row_number() OVER (PARTITION BY w.proc_id ORDER BY w.artifact_id, w.row) = 1
ORDER BY w.ts_ns, w.artifact_id, w.row;
-- variant: operators
WITH
entered AS (
    -- The first operator of the loss that a recorded backward runs, and the derivative that it gets: its first operand.
    SELECT
        n.artifact_id,
        n.graph_id,
        n.proc_id,
        n.rank,
        n.step,
        n.ts_ns,
        d.row,
        d.absmax AS derivative,
        o.text AS operator
    FROM node AS n
    JOIN string AS o ON o.id = n.autograd_id
    JOIN tensor AS d ON d.artifact_id = n.artifact_id AND d.node_id = n.node_id AND d.step = n.step AND d.role = 'input'
    JOIN string AS h ON h.id = d.shape_id AND h.text = '[]'
    WHERE n.phase = 'backward'
      AND regexp_full_match(o.text, '(Nll|Mse|Smooth|Huber|BinaryCrossEntropy|KlDiv|SoftMargin|L1)\w*Backward\d*')
    QUALIFY row_number() OVER (PARTITION BY n.proc_id, n.step ORDER BY n.artifact_id, n.node_id, d.row) = 1
),
scaled AS (
    SELECT
        proc_id,
        step,
        max(value) AS scale
    FROM metric
    WHERE name = 'loss_scale' AND value > 0
    GROUP BY proc_id, step
)
SELECT
    e.artifact_id,
    e.row,
    'tensor' AS "table",
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    e.operator AS op,
    'the backward enters the loss (' || e.operator || ') with a derivative of ' || printf('%.6g', e.derivative)
        || CASE WHEN s.scale IS NULL THEN '' ELSE ', which is the loss scale' END
        || ': the loss is not divided by ' || t.n_micro || ', so the sum is ' || t.n_micro || ' times the mean' AS what,
    t.n_micro,
    'undivided' AS key
FROM entered AS e
JOIN accumulation_told AS t ON t.proc_id IS NOT DISTINCT FROM e.proc_id
LEFT JOIN scaled AS s ON s.proc_id IS NOT DISTINCT FROM e.proc_id AND s.step = e.step
WHERE abs(e.derivative / coalesce(s.scale, 1) - 1) <= $max_error
QUALIFY row_number() OVER (PARTITION BY e.proc_id ORDER BY e.step, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
-- variant: runs
WITH
-- A run is one artifact that says how often it accumulates, and in which losses are logged.
run AS (
    SELECT
        e.artifact_id,
        min(e.line) AS line,
        min(CAST(e.fields ->> 'accumulation_steps' AS BIGINT)) AS n_micro
    FROM log AS e
    WHERE e.signature = 'accumulation-told'
    GROUP BY e.artifact_id
    HAVING count(DISTINCT e.fields ->> 'accumulation_steps') = 1
),
point AS (
    SELECT
        c.artifact_id,
        c.proc_id,
        c.rank,
        c.row,
        c.line,
        c.step,
        c.ts_ns,
        c.name,
        c.value,
        c.place
    FROM training_curve AS c
    WHERE c.name IN ('loss', 'grad_norm')
    -- The series that an artifact tells most of.
    QUALIFY c.n = max(c.n) OVER (PARTITION BY c.artifact_id, c.name)
),
pair AS (
    SELECT
        b.artifact_id,
        a.artifact_id AS other_id,
        b.proc_id,
        b.rank,
        r.n_micro,
        o.n_micro AS n_other,
        o.line AS other_line,
        count(*) FILTER (WHERE b.name = 'loss') AS n_pairs,
        min_by(b.row, b.place) FILTER (WHERE b.name = 'loss') AS row,
        min_by(b.line, b.place) FILTER (WHERE b.name = 'loss') AS line,
        min_by(b.step, b.place) FILTER (WHERE b.name = 'loss') AS step,
        min(b.ts_ns) AS ts_ns,
        min_by(b.value, b.place) FILTER (WHERE b.name = 'loss') AS value,
        min_by(a.value, b.place) FILTER (WHERE b.name = 'loss') AS other_value,
        max(abs(b.value / a.value * o.n_micro / r.n_micro - 1)) FILTER (WHERE b.name = 'loss') AS error,
        median(b.value / a.value) FILTER (WHERE b.name = 'grad_norm') AS norm_ratio
    FROM run AS r
    JOIN run AS o ON o.n_micro < r.n_micro
    JOIN point AS b ON b.artifact_id = r.artifact_id
    JOIN point AS a ON a.artifact_id = o.artifact_id AND a.name = b.name AND a.place = b.place
    WHERE b.place <= $min_pairs AND a.value > 0 AND isfinite(a.value) AND isfinite(b.value)
    GROUP BY b.artifact_id, a.artifact_id, b.proc_id, b.rank, r.n_micro, o.n_micro, o.line
)
SELECT
    p.artifact_id,
    p.row,
    p.line,
    p.proc_id,
    p.rank,
    p.step,
    p.ts_ns,
    p.n_micro,
    'its losses are ' || printf('%.2f', p.value / p.other_value) || ' times those of ' || x.path || ', which accumulates over ' || p.n_other || ' ('
        || printf('%.4g', p.value) || ' and ' || printf('%.4g', p.other_value) || ' at the first point): they are summed, not averaged'
        || CASE WHEN p.norm_ratio IS NULL THEN '' ELSE '; gradient norms are ' || printf('%.2f', p.norm_ratio) || ' times as large' END AS what,
    'Divide the loss by the number of micro-batches, or by the tokens of all of them; where the trainer does it, give it a model that takes num_items_in_batch (**kwargs in forward), or a version that divides itself (transformers from 4.48 on). Rates tuned on the sum are too large by that factor before.' AS fix,
    [{'artifact_id': p.other_id, 'line': p.other_line, 'note': 'the run that it is held against'}] AS evidence,
    'summed' AS key
FROM pair AS p
JOIN artifact AS x ON x.id = p.other_id
WHERE p.n_pairs >= $min_pairs AND p.error <= $max_ratio_error
QUALIFY row_number() OVER (PARTITION BY p.artifact_id ORDER BY p.error, p.other_id) = 1
ORDER BY p.ts_ns, p.artifact_id, p.row;
