/*
title = "Ranks differ in what is trainable"
severity = "critical"
scope = "job"
cannot_prove = """
Which rank is right: where two differ, the message of DDP gives numbers only."""
message = "{what}"
fix = "Freeze and unfreeze by the same rule on every rank, before the model is wrapped; a condition on the rank, a checkpoint that only one rank loads, or a random choice without a common seed makes them differ."
causes = [{ state = "rank-failed", of = "rank" }, { state = "collective-mismatched", of = "group" }]

[variant.tensors]
needs = ["tensor"]
strength = "proof"
proves = "The sets of parameters that require a gradient differ between ranks, by name."

[variant.log]
needs = ["log_event"]
strength = "strong"
proves = """
DistributedDataParallel compared the ranks and found that their parameters differ in number or shape."""
says = "DDP compares numbers of parameters and shapes; which parameters differ, it does not say."
*/
-- variant: tensors
WITH
trained AS (
    SELECT DISTINCT
        p.attempt,
        g.proc_id,
        g.rank,
        g.name
    FROM gradient_reading AS g
    JOIN proc AS p ON p.id = g.proc_id
    WHERE g.rank IS NOT NULL
),
spread AS (
    SELECT
        attempt,
        name,
        list(DISTINCT rank ORDER BY rank) AS ranks,
        (SELECT count(DISTINCT t.rank) FROM trained AS t WHERE t.attempt = o.attempt) AS n_ranks
    FROM trained AS o
    GROUP BY attempt, name
),
apart AS (
    SELECT
        attempt,
        ranks,
        count(*) AS n_names,
        min(name) AS first_name
    FROM spread
    WHERE len(ranks) < n_ranks
    GROUP BY attempt, ranks
)
SELECT
    min_by(g.artifact_id, g.row) AS artifact_id,
    min(g.row) AS row,
    NULL::INTEGER AS proc_id,
    NULL::INTEGER AS rank,
    min(g.step) AS step,
    min(g.ts_ns) AS ts_ns,
    a.first_name AS module,
    a.n_names,
    a.n_names || ' parameters, first ' || a.first_name || ', are trainable on ranks ' || list_aggregate(a.ranks, 'string_agg', ', ')
        || ' only' AS what,
    a.first_name AS key
FROM apart AS a
JOIN gradient_reading AS g ON g.name = a.first_name AND list_contains(a.ranks, g.rank)
GROUP BY a.attempt, a.first_name, a.n_names, a.ranks
ORDER BY ts_ns, artifact_id, row, what;
-- against: tensors
WITH
trained AS (
    SELECT
        p.attempt,
        g.rank,
        list(DISTINCT g.name ORDER BY g.name) AS names,
        min(g.artifact_id) AS artifact_id,
        min(g.row) AS row
    FROM gradient_reading AS g
    JOIN proc AS p ON p.id = g.proc_id
    WHERE g.rank IS NOT NULL
    GROUP BY p.attempt, g.rank
)
SELECT
    min_by(artifact_id, rank) AS artifact_id,
    min_by(row, rank) AS row,
    'tensor' AS "table",
    NULL::INTEGER AS proc_id,
    'The same ' || len(min_by(names, rank)) || ' parameters require a gradient on all ' || count(*) || ' recorded ranks' AS says,
    'rank ' || min(rank) AS note,
    [{'artifact_id': max_by(artifact_id, rank), 'row': max_by(row, rank), 'note': 'rank ' || max(rank)}] AS evidence
FROM trained
GROUP BY attempt
HAVING count(*) > 1 AND count(DISTINCT names) = 1
ORDER BY attempt;
-- variant: log
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    NULL::INTEGER AS rank,
    e.step,
    e.ts_ns,
    e.line,
    'Ranks differ in their trainable parameters: ' || e.message AS what,
    e.signature AS key
FROM log AS e
WHERE e.signature = 'ddp-shape-mismatch' AND e.role = 'primary' AND contains(e.message, 'DDP expects same model')
QUALIFY row_number() OVER (PARTITION BY e.attempt ORDER BY e.ts_ns NULLS LAST, e.artifact_id, e.row) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
