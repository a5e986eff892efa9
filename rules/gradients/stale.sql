/*
title = "Optimizer steps used gradients that were not computed in them"
severity = "critical"
cannot_prove = """
Why they were not renewed: a skipped backward, a detached copy, and a replayed graph that writes elsewhere look the same."""
message = "{who}: {what}"
fix = "Check that backward runs before every optimizer step and writes to the .grad that the optimizer reads; zero gradients with set_to_none=True so that a missing backward is visible."
causes = [{ state = "gradient-invalid", of = "rank" }]

[thresholds.min_steps]
value = 3
unit = "consecutive steps with the same gradient norm"
measured = "n_steps"
why = "two equal norms can be a repeated log line; three with changing losses cannot come from new batches"

[thresholds.min_digits]
value = 6
unit = "significant decimal digits of the norm"
why = "norms logged with fewer digits coincide by chance, and a clipped norm is a round number"

[thresholds.min_calls]
value = 2
unit = "steps of the optimizer without a backward, in one trace"
why = "the first and the last step of a trace can be cut"

[variant.calls]
needs = ["slice"]
strength = "proof"
proves = """
In steps of the trace the optimizer steps and no gradient is accumulated, while other steps of it show that they would
be seen."""

[variant.tensors]
needs = ["tensor"]
strength = "proof"
proves = """
Over several sampled steps the gradients are the same while the parameters or the loss are not: a backward over
another batch, or at other parameters, gives other gradients. Address and version counter tell whether anything wrote
to them at all."""
says = "Where no checksums were recorded, norm and largest value stand for the content; where neither parameters nor losses were, that a backward would have given other gradients is assumed. Both are then said as strong, not as proof."

[variant.metrics]
needs = ["sample"]
strength = "strong"
proves = """
Over several logged steps the gradient norm is the same in all its digits while the loss goes on changing."""
says = "Norms stand for the gradients; equal norms of full precision over several steps are taken as equal gradients."
*/
-- variant: calls
WITH
seen AS (
    SELECT
        s.artifact_id,
        s.proc_id,
        s.step,
        min(s.row) FILTER (WHERE n.text LIKE 'Optimizer.step#%') AS row,
        min(s.ts_ns) FILTER (WHERE n.text LIKE 'Optimizer.step#%') AS ts_ns,
        count(*) FILTER (WHERE n.text LIKE '%AccumulateGrad%') AS n_accumulated,
        -- Backwards inside of graphs and of compiled autograd accumulate out of sight.
        count(*) FILTER (WHERE n.text LIKE '%GraphLaunch%' OR n.text ILIKE '%compiled%autograd%' OR n.text LIKE '%CompiledFunctionBackward%') AS n_hidden
    FROM slice AS s
    JOIN string AS n ON n.id = s.name_id
    WHERE s.step IS NOT NULL
    GROUP BY s.artifact_id, s.proc_id, s.step
),
told AS (
    SELECT
        artifact_id,
        proc_id,
        min_by(row, step) FILTER (WHERE n_accumulated = 0 AND row IS NOT NULL) AS row,
        min_by(ts_ns, step) FILTER (WHERE n_accumulated = 0 AND row IS NOT NULL) AS ts_ns,
        min(step) FILTER (WHERE n_accumulated = 0 AND row IS NOT NULL) AS step,
        count(*) FILTER (WHERE n_accumulated = 0 AND row IS NOT NULL) AS n_stale,
        count(*) FILTER (WHERE row IS NOT NULL) AS n_steps,
        count(*) FILTER (WHERE n_accumulated > 0) AS n_backward,
        sum(n_hidden) AS n_hidden
    FROM seen
    GROUP BY artifact_id, proc_id
)
SELECT
    t.artifact_id,
    t.row,
    'slice' AS "table",
    t.proc_id,
    p.rank,
    t.step,
    t.ts_ns,
    t.n_stale AS n_steps,
    'in ' || t.n_stale || ' of ' || t.n_steps || ' traced steps, the first of them ' || t.step
        || ', the optimizer steps and no gradient is accumulated: it uses those of an earlier step' AS what,
    'stale' AS key
FROM told AS t
LEFT JOIN proc AS p ON p.id = t.proc_id
WHERE t.n_stale >= $min_calls AND t.n_backward > 0 AND t.n_hidden = 0
QUALIFY row_number() OVER (PARTITION BY t.proc_id ORDER BY t.step, t.artifact_id) = 1
ORDER BY t.ts_ns, t.artifact_id, t.row;
-- variant: tensors
WITH
gradient AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        t.step,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns,
        bool_and(t.checksum IS NOT NULL) AS has_checksum,
        list(coalesce(CAST(t.checksum AS VARCHAR), CAST(t.norm AS VARCHAR) || '/' || CAST(t.absmax AS VARCHAR)) ORDER BY t.name_id) AS content,
        CASE WHEN bool_and(t.addr IS NOT NULL AND t.version IS NOT NULL) THEN list(t.addr || '/' || t.version ORDER BY t.name_id) END AS place,
        sqrt(sum(t.norm * t.norm)) AS grad_norm
    FROM tensor AS t
    WHERE t.role = 'gradient' AND t.step IS NOT NULL AND t.norm > 0 AND isfinite(t.norm)
    GROUP BY t.artifact_id, t.proc_id, t.rank, t.step
),
run AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (PARTITION BY artifact_id, proc_id ORDER BY step) AS run_id
    FROM (
        SELECT
            *,
            coalesce(content <> lag(content) OVER (PARTITION BY artifact_id, proc_id ORDER BY step), TRUE) AS is_new
        FROM gradient
    )
),
stretch AS (
    SELECT
        artifact_id,
        proc_id,
        rank,
        min(row) AS row,
        min(step) AS first_step,
        max(step) AS last_step,
        min(ts_ns) AS ts_ns,
        count(*) - 1 AS n_samples,
        round(max(grad_norm), 6) AS grad_norm,
        bool_and(has_checksum) AS has_checksum,
        count(place) AS n_places,
        count(DISTINCT place) AS n_distinct_places
    FROM run
    GROUP BY artifact_id, proc_id, rank, run_id
    HAVING count(*) > $min_steps
),
moved AS (
    -- Whether what a backward depends on changed meanwhile; NULL where it is not on record.
    SELECT
        s.artifact_id,
        s.proc_id,
        s.first_step,
        (
            SELECT max(n) > 1 FROM (
                SELECT count(DISTINCT coalesce(CAST(p.checksum AS VARCHAR), CAST(p.norm AS VARCHAR))) AS n
                FROM tensor AS p
                WHERE p.artifact_id = s.artifact_id AND p.proc_id IS NOT DISTINCT FROM s.proc_id AND p.role = 'parameter'
                  AND p.step BETWEEN s.first_step AND s.last_step
                GROUP BY p.name_id
            )
        ) AS parameters_moved,
        (
            SELECT count(DISTINCT m.value) > 1 FROM metric AS m
            WHERE m.proc_id IS NOT DISTINCT FROM s.proc_id AND m.name = 'loss' AND m.step BETWEEN s.first_step AND s.last_step
            HAVING count(*) > 1
        ) AS loss_moved
    FROM stretch AS s
)
SELECT
    s.artifact_id,
    s.row,
    s.proc_id,
    s.rank,
    s.first_step + 1 AS step,
    s.ts_ns,
    s.n_samples AS n_steps,
    s.grad_norm,
    'from step ' || (s.first_step + 1) || ' on, '
        || CASE WHEN s.last_step - s.first_step = s.n_samples THEN s.n_samples || ' steps in a row'
            ELSE 'all ' || s.n_samples || ' steps sampled up to step ' || s.last_step END
        || ' had ' || CASE WHEN s.has_checksum THEN 'bit-identical gradients' ELSE 'gradients of the same norms and largest values' END
        || ' (norm ' || s.grad_norm || ')'
        || CASE WHEN m.parameters_moved THEN ' while the parameters went on changing' WHEN m.loss_moved THEN ' while the loss went on changing' ELSE '' END
        || CASE
            WHEN s.n_places < s.n_samples + 1 THEN ''
            WHEN s.n_distinct_places = 1 THEN '; addresses and version counters show that nothing wrote to them'
            ELSE '; they were written again each time, with the same values'
        END AS what,
    CASE WHEN s.has_checksum AND coalesce(m.parameters_moved, FALSE) OR s.has_checksum AND coalesce(m.loss_moved, FALSE) THEN 'proof' ELSE 'strong' END AS strength,
    'stale' AS key
FROM stretch AS s
JOIN moved AS m ON m.artifact_id = s.artifact_id AND m.proc_id IS NOT DISTINCT FROM s.proc_id AND m.first_step = s.first_step
-- The same batch at the same parameters gives the same gradients.
WHERE coalesce(m.parameters_moved, m.loss_moved, TRUE) OR coalesce(m.loss_moved, FALSE)
QUALIFY row_number() OVER (PARTITION BY s.proc_id ORDER BY s.first_step, s.artifact_id) = 1
ORDER BY s.ts_ns, s.artifact_id, s.row;
-- against: tensors
WITH
course AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        n.text AS name,
        count(*) AS n_samples,
        count(DISTINCT t.checksum) AS n_contents,
        max_by(t.row, t.step) AS row
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role = 'gradient' AND t.node_id IS NULL AND t.checksum IS NOT NULL AND t.norm > 0
    GROUP BY t.artifact_id, t.proc_id, n.text
)
SELECT
    artifact_id,
    min_by(row, name) AS row,
    'tensor' AS "table",
    proc_id,
    'Each of ' || count(*) || ' recorded gradients has other contents in each of its ' || max(n_samples) || ' sampled steps' AS says
FROM course
GROUP BY artifact_id, proc_id
HAVING bool_and(n_contents = n_samples) AND min(n_samples) > 1
ORDER BY artifact_id, proc_id;
-- variant: metrics
WITH
reading AS (
    SELECT
        g.artifact_id,
        g.row,
        g.line,
        g.proc_id,
        g.rank,
        g.step,
        g.ts_ns,
        g.value AS grad_norm,
        l.value AS loss,
        length(regexp_replace(regexp_replace(CAST(g.value AS VARCHAR), 'e.*$', ''), '[^0-9]|^[0.-]+', '', 'g')) AS n_digits
    FROM metric AS g
    JOIN metric AS l ON l.artifact_id = g.artifact_id AND l.proc_id = g.proc_id AND l.step = g.step AND l.name = 'loss'
    WHERE g.name = 'grad_norm' AND g.step IS NOT NULL AND isfinite(g.value) AND g.value > 0
),
run AS (
    SELECT
        *,
        sum(CASE WHEN is_new THEN 1 ELSE 0 END) OVER (PARTITION BY artifact_id, proc_id ORDER BY step, row) AS run_id
    FROM (
        SELECT
            *,
            coalesce(grad_norm <> lag(grad_norm) OVER (PARTITION BY artifact_id, proc_id ORDER BY step, row), TRUE) AS is_new
        FROM reading
    )
)
SELECT
    artifact_id,
    min(row) AS row,
    min(line) AS line,
    proc_id,
    rank,
    min(step) AS step,
    min(ts_ns) AS ts_ns,
    count(*) AS n_steps,
    max(grad_norm) AS grad_norm,
    'from step ' || min(step) || ' on, ' || count(*) || ' steps in a row had the same gradient norm (' || max(grad_norm)
        || ') while the loss went on changing: they used gradients that were not computed in them' AS what
FROM run
GROUP BY artifact_id, proc_id, rank, run_id
HAVING count(*) >= $min_steps AND count(DISTINCT loss) = count(*) AND max(n_digits) >= $min_digits
QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY min(step), artifact_id) = 1
ORDER BY ts_ns, artifact_id, row;
