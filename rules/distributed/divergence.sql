/*
title = "Replicas of the model are no longer equal"
severity = "high"
scope = "job"
cannot_prove = """
Which rank is right where two differ. Contents are compared by a checksum over a sample of them, at sampled steps: the
first difference may lie between two samples. Buffers differ by design between two forwards of DistributedDataParallel
and are not judged."""
message = "{what}{at_step}{since}: {why}"
fix = "{remedy}"
causes = [{ state = "state-diverged", of = "group" }]
requires = [{ state = "state-diverged", of = "group" }]
references = [
    "https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
    "https://docs.pytorch.org/docs/stable/notes/ddp.html#internal-design",
]

[thresholds.min_equal_norms]
value = 5
unit = "logged steps in which all ranks give the same norm, from the first on"
why = "norms of shards differ from the first step on"

[thresholds.min_apart]
value = 2
unit = "common steps that differ, up to the last one"
why = "methods that average weights now and then agree again"

[thresholds.equal]
value = 2e-6
unit = "difference / value"
why = "metrics are written with seven digits"

[thresholds.apart]
value = 1e-3
unit = "difference / value"
why = "kernels chosen by device or load round differently"

[variant.tensors]
needs = ["tensor"]
strength = "strong"
proves = """
A parameter that data-parallel ranks keep as replicas has other contents on some of them, by its checksum, from the named
sampled step on and in all later samples. That ranks are replicas is known because it was equal on all of them before, or
its reduced gradient is equal, or more than half of three or more ranks agree."""

[variant.metrics]
needs = ["sample"]
strength = "strong"
proves = """
A norm or an evaluation that all ranks computed to the same digits differs between them from the named step on."""
says = "Which tensor differs was not recorded."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = "The job's own check found replicas whose contents differ."
says = "The job's own check found it; when the replicas parted, it does not say."
*/
-- variant: tensors
WITH
course AS (
    SELECT
        r.*,
        max(r.step) FILTER (WHERE r.n_contents = 1) OVER w AS last_equal,
        bool_or(r.n_contents = 1 AND NOT r.is_plain) OVER w AS was_equal,
        max(r.n_ranks) OVER w AS most_ranks,
        max(r.version) OVER w - min(r.version) OVER w AS n_writes,
        count(*) OVER w AS n_samples,
        count(DISTINCT r.addrs) OVER w AS n_addresses
    FROM replica_reading AS r
    WINDOW w AS (PARTITION BY r.attempt, r.role, r.name)
),
-- What differs from some step on and in every later sample.
parted AS (
    SELECT *
    FROM course
    WHERE n_contents > 1 AND n_shapes = 1 AND (last_equal IS NULL OR step > last_equal)
    QUALIFY row_number() OVER (PARTITION BY attempt, role, name ORDER BY step) = 1
),
reduced AS (
    SELECT
        attempt,
        name,
        min(step) FILTER (WHERE n_contents > 1) AS first_apart,
        bool_and(n_contents = 1 OR is_zero) AS is_equal,
        count(*) FILTER (WHERE n_contents = 1 AND NOT is_zero) AS n_equal
    FROM replica_reading
    WHERE role = 'gradient'
    GROUP BY attempt, name
),
parameter AS (
    SELECT
        p.*,
        g.first_apart AS gradient_apart,
        coalesce(g.is_equal AND g.n_equal > 0, FALSE) AS is_reduced,
        p.n_ranks >= 3 AND 2 * p.n_common > p.n_ranks AS is_outvoted
    FROM parted AS p
    LEFT JOIN reduced AS g ON g.attempt = p.attempt AND g.name = p.name
    WHERE p.role = 'parameter'
      AND (p.was_equal OR coalesce(g.is_equal AND g.n_equal > 0, FALSE) OR (p.n_ranks >= 3 AND 2 * p.n_common > p.n_ranks))
),
compared AS (
    SELECT attempt, count(DISTINCT name) AS n_parameters FROM replica_reading WHERE role = 'parameter' GROUP BY attempt
),
rate AS (
    SELECT p.attempt, c.step
    FROM training_curve AS c
    JOIN proc AS p ON p.id = c.proc_id
    WHERE c.name = 'learning_rate' AND c.preference = 1 AND c.step IS NOT NULL
    GROUP BY p.attempt, c.step
    HAVING max(c.value) > min(c.value) * (1 + $apart)
),
first_parameter AS (
    SELECT
        f.*,
        count(*) OVER (PARTITION BY f.attempt) AS n_apart,
        EXISTS (SELECT 1 FROM rate AS r WHERE r.attempt = f.attempt AND r.step <= f.step) AS rates_differ
    FROM parameter AS f
    QUALIFY row_number() OVER (PARTITION BY f.attempt ORDER BY f.step, f.gradient_apart NULLS LAST, f.places[1].row, f.name) = 1
),
first_attribute AS (
    SELECT
        p.*,
        count(*) OVER (PARTITION BY p.attempt) AS n_apart
    FROM parted AS p
    WHERE p.role = 'attribute' AND p.n_writes > 0 AND p.n_addresses = 1 AND p.n_samples >= 2
      AND EXISTS (SELECT 1 FROM compared AS c WHERE c.attempt = p.attempt)
      AND NOT EXISTS (SELECT 1 FROM parted AS o WHERE o.attempt = p.attempt AND o.role = 'parameter')
    QUALIFY row_number() OVER (PARTITION BY p.attempt ORDER BY p.step, p.places[1].row, p.name) = 1
),
told AS (
    SELECT
        f.*,
        c.n_parameters,
        CASE WHEN f.is_reduced OR starts_with(f.name, 'module.') OR f.is_outvoted THEN 'proof' ELSE 'strong' END AS strength,
        f.n_apart || ' of ' || c.n_parameters || ' parameters, first ' || f.name || ',' AS subject,
        CASE
            WHEN f.gradient_apart <= f.step THEN 'gradient'
            WHEN f.rates_differ THEN 'rate'
            WHEN f.last_equal IS NULL THEN 'start'
            WHEN f.is_reduced THEN 'written'
        END AS reason
    FROM first_parameter AS f
    JOIN compared AS c ON c.attempt = f.attempt
    UNION ALL BY NAME
    SELECT
        f.*,
        'strong' AS strength,
        f.name || CASE WHEN f.n_apart > 1 THEN ' and ' || (f.n_apart - 1) || ' more tensors that are' ELSE ', a tensor that is' END
            || ' neither parameter nor buffer,' AS subject,
        'attribute' AS reason
    FROM first_attribute AS f
)
SELECT
    t.places[1].artifact_id AS artifact_id,
    t.places[1].row AS row,
    'tensor' AS "table",
    CASE WHEN len(t.odd_ranks) = 1 AND t.n_ranks >= 3 THEN t.odd_ranks[1] END AS rank,
    t.step,
    t.ts_ns,
    t.strength,
    t.name AS module,
    t.subject || CASE WHEN t.n_apart = 1 THEN ' differs' ELSE ' differ' END || CASE
        WHEN t.n_ranks >= 3 AND 2 * t.n_common > t.n_ranks
        THEN ' on ' || CASE WHEN len(t.odd_ranks) = 1 THEN 'rank ' ELSE 'ranks ' END
            || list_aggregate([r::VARCHAR FOR r IN t.odd_ranks[1:8]], 'string_agg', ', ')
            || CASE WHEN len(t.odd_ranks) > 8 THEN ', …' ELSE '' END || ' from the other ' || t.n_common
        ELSE ' between the ' || t.n_ranks || ' ranks'
    END AS what,
    CASE WHEN t.last_equal IS NOT NULL THEN ', equal up to step ' || t.last_equal ELSE ', the first sample' END AS since,
    CASE t.reason
        WHEN 'gradient' THEN 'their gradients already differ at step ' || t.gradient_apart || ', after the backward, so they are not reduced over the ranks'
        WHEN 'rate' THEN 'ranks logged different learning rates'
        WHEN 'start' THEN 'they were so before the first recorded step, though their gradients are reduced'
        WHEN 'written' THEN 'their reduced gradients are equal in all samples, so something writes to them on one rank alone'
        WHEN 'attribute' THEN 'each rank writes its own values to it in place, and DistributedDataParallel and state_dict do not know it; all '
            || (SELECT c.n_parameters FROM compared AS c WHERE c.attempt = t.attempt) || ' parameters are equal'
        ELSE 'why is not on record'
    END AS why,
    CASE t.reason
        WHEN 'gradient' THEN 'Call the wrapped model itself, not model.module; leave no_sync() before the last backward of a step; reduce gradients of parameters that the wrapper does not know by hand.'
        WHEN 'rate' THEN 'Step the scheduler by the same number on every rank, not by what a rank measured alone.'
        WHEN 'start' THEN 'Load and initialise weights before the model is wrapped, or broadcast them from rank 0 afterwards.'
        WHEN 'written' THEN 'Look for code under a condition on the rank that changes weights or the state of the optimizer (loading, clamping, averaging), and for a random choice without a common seed.'
        WHEN 'attribute' THEN 'Register it with register_buffer, so that it is saved, moved and handed out by rank 0; or reduce it over the ranks where it is updated.'
        ELSE 'Compare the ranks'' code paths between the last equal sample and this one.'
    END AS remedy,
    CASE WHEN t.reason = 'attribute'
        THEN 'Every rank writes other values to this tensor, in place, over the steps, while all parameters that were compared are equal.'
    END AS proves,
    'rank ' || t.places[1].rank AS note,
    -- Both sides first: the places begin with ranks that stand apart and end with those that agree.
    [
        {'artifact_id': p.artifact_id, 'row': p.row, 'note': 'rank ' || p.rank}
        FOR p IN list_concat(t.places[-1:-1], t.places[2:8])
    ] AS evidence,
    t.attempt AS fault,
    t.name AS key
FROM told AS t
ORDER BY t.attempt, t.step, t.name;
-- against: tensors
WITH
equal AS (
    SELECT
        attempt,
        count(DISTINCT name) AS n_names,
        count(DISTINCT step) AS n_steps,
        max(n_ranks) AS n_ranks,
        max(step) AS step
    FROM replica_reading
    WHERE role = 'parameter'
    GROUP BY attempt
    HAVING bool_and(n_contents = 1)
)
SELECT
    r.places[1].artifact_id AS artifact_id,
    r.places[1].row AS row,
    'tensor' AS "table",
    'All ' || e.n_names || ' parameters that were compared have the same contents on ' || e.n_ranks || ' ranks, in ' || e.n_steps
        || CASE e.n_steps WHEN 1 THEN ' sampled step, step ' ELSE ' sampled steps up to step ' END || e.step AS says,
    'rank ' || r.places[1].rank AS note,
    [{'artifact_id': r.places[2].artifact_id, 'row': r.places[2].row, 'note': 'rank ' || r.places[2].rank}] AS evidence
FROM equal AS e
JOIN replica_reading AS r ON r.attempt = e.attempt AND r.role = 'parameter' AND r.step = e.step
QUALIFY row_number() OVER (PARTITION BY e.attempt ORDER BY r.name) = 1
ORDER BY e.attempt, r.name;
-- variant: metrics
WITH
value AS (
    SELECT
        p.attempt,
        m.name,
        m.step,
        m.rank,
        m.value,
        m.artifact_id,
        m.row,
        m.line,
        m.ts_ns
    FROM metric AS m
    JOIN proc AS p ON p.id = m.proc_id
    WHERE m.source = 'metrics' AND m.rank IS NOT NULL AND m.step IS NOT NULL AND isfinite(m.value)
      AND (m.name = 'grad_norm' OR starts_with(m.name, 'eval_') OR starts_with(m.name, 'val_'))
    QUALIFY row_number() OVER (PARTITION BY p.attempt, m.name, m.step, m.rank ORDER BY m.artifact_id, m.row DESC) = 1
),
compared AS (
    SELECT
        attempt,
        name,
        step,
        count(*) AS n_ranks,
        max(value) AS high,
        min(value) AS low,
        (max(value) - min(value)) / greatest(abs(max(value)), abs(min(value)), 1e-30) AS gap,
        list({'rank': rank, 'artifact_id': artifact_id, 'row': row, 'line': line, 'value': value} ORDER BY rank) AS places,
        min(ts_ns) AS ts_ns
    FROM value
    GROUP BY attempt, name, step
    HAVING count(*) >= 2
),
course AS (
    SELECT
        *,
        row_number() OVER w AS place,
        count(*) FILTER (WHERE gap > $apart) OVER (
            PARTITION BY attempt, name ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
        ) AS n_apart_from_here,
        count(*) OVER (PARTITION BY attempt, name ORDER BY step ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS n_from_here,
        bool_and(gap <= $equal) OVER (PARTITION BY attempt, name ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
            AS was_equal,
        -- A value that no data enters, as ln 10 of a head of zeros, or an accuracy of 0, is equal anywhere.
        count(*) FILTER (WHERE low <> 0 AND abs(low - round(low, 3)) > 1e-7 AND abs(exp(low) - round(exp(low))) > 1e-3) OVER (
            PARTITION BY attempt, name ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS n_telling,
        max(step) OVER (PARTITION BY attempt, name ORDER BY step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last_equal
    FROM compared
    WINDOW w AS (PARTITION BY attempt, name ORDER BY step)
)
SELECT
    c.places[1].artifact_id AS artifact_id,
    c.places[1].row AS row,
    c.places[1].line AS line,
    'sample' AS "table",
    c.step,
    c.ts_ns,
    c.name || ' differs between the ' || c.n_ranks || ' ranks' AS what,
    ', equal up to step ' || c.last_equal AS since,
    c.places[1].value || ' on rank ' || c.places[1].rank || ' and ' || c.places[2].value || ' on rank ' || c.places[2].rank AS why,
    'Record checksums of the parameters on every rank (forensics_recorder), and look for state that is neither parameter nor buffer.' AS remedy,
    'rank ' || c.places[1].rank AS note,
    [{'artifact_id': p.artifact_id, 'row': p.row, 'line': p.line, 'note': 'rank ' || p.rank} FOR p IN c.places[2:9]] AS evidence,
    c.attempt AS fault,
    c.name AS key
FROM course AS c
WHERE c.was_equal AND c.gap > $apart AND c.n_apart_from_here = c.n_from_here AND c.n_from_here >= $min_apart
  AND c.n_telling >= CASE WHEN c.name = 'grad_norm' THEN $min_equal_norms ELSE 1 END
QUALIFY row_number() OVER (PARTITION BY c.attempt ORDER BY c.step, c.name) = 1
ORDER BY c.attempt, c.step, c.name;

-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.line,
    e.proc_id,
    e.rank,
    e.step,
    e.ts_ns,
    'The job''s own check found replicas that differ' AS what,
    '' AS since,
    e.message AS why,
    'Compare what the replicas load, draw at random and reduce; the ranks that the message names are those to compare.' AS remedy,
    0 AS fault,
    e.signature AS key
FROM log AS e
WHERE e.class = 'comm.diverged' AND e.role = 'primary'
QUALIFY row_number() OVER (PARTITION BY e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
