/*
title = "Runs with the same settings give different results"
severity = "high"
scope = "job"
cannot_prove = """
Which operator or generator makes the difference. Floating-point atomics, the choice of kernels, an order of data from an
unseeded generator, and time or process ids used as seeds do."""
message = "{what}{settings}"
fix = "Seed every generator (random, numpy.random.default_rng(seed), DataLoader generator and workers), then torch.use_deterministic_algorithms(True) with CUBLAS_WORKSPACE_CONFIG=:4096:8 and cudnn.benchmark=False; it raises at operators that cannot be deterministic."
causes = []
references = ["https://docs.pytorch.org/docs/stable/notes/randomness.html"]

[thresholds.min_relative]
value = 1e-5
unit = "difference / larger of both losses"
why = "logs round to six or seven digits"

[thresholds.min_steps]
value = 5
unit = "steps that both runs have"
why = "fewer cannot show that the runs part and stay apart"

[variant.runs]
needs = ["sample", "fact"]
strength = "strong"
proves = """
Two runs of the same command, versions and seeds are on record and their losses part at the named step; what is set
for determinism is said."""

[variant.repeated]
needs = ["sample"]
strength = "strong"
proves = "Runs with the same seed end with different results."
says = "The records say that runs had the same seed and ended differently; whether everything else was the same is not on record."
*/
-- variant: runs
WITH
told AS (
    -- The command of each folder, without where it writes to.
    SELECT
        regexp_replace(a.path, '(^|/)[^/]*$', '') AS folder,
        max(regexp_replace(f.value, '\s--?(out|output|output[-_]dir|log[-_]dir|run[-_]name|name)[= ]\S+', '', 'g')) AS command
    FROM fact AS f
    JOIN artifact AS a ON a.id = f.artifact_id
    WHERE f.key = 'command'
    GROUP BY ALL
),
seeded AS (
    SELECT
        regexp_replace(a.path, '(^|/)[^/]*$', '') AS folder,
        string_agg(DISTINCT f.key || '=' || f.value, ' ' ORDER BY f.key || '=' || f.value) FILTER (WHERE contains(f.key, 'seed') AND f.value <> 'random') AS seeds,
        max(f.value) FILTER (WHERE contains(f.key, 'deterministic_algorithms')) AS deterministic
    FROM fact AS f
    JOIN artifact AS a ON a.id = f.artifact_id
    GROUP BY ALL
),
run AS (
    SELECT
        c.artifact_id,
        regexp_replace(a.path, '(^|/)[^/]*$', '') AS folder,
        regexp_extract(a.path, '[^/]*$') AS file,
        a.format,
        c.proc_id,
        c.rank,
        c.step,
        min(c.row) AS row,
        min(c.line) AS line,
        min(c.value) AS loss
    FROM training_curve AS c
    JOIN artifact AS a ON a.id = c.artifact_id
    WHERE c.name = 'loss' AND c.source = 'metrics' AND c.step IS NOT NULL AND isfinite(c.value)
    GROUP BY ALL
),
labelled AS (
    SELECT r.*, coalesce(t.command, u.command) AS command, s.seeds, s.deterministic
    FROM run AS r
    LEFT JOIN told AS t ON t.folder = r.folder
    LEFT JOIN told AS u ON r.folder LIKE u.folder || '/%' AND u.folder <> ''
    LEFT JOIN seeded AS s ON s.folder = r.folder
),
pair AS (
    SELECT
        x.artifact_id,
        x.folder AS folder,
        y.folder AS other_folder,
        y.artifact_id AS other_artifact_id,
        max(x.deterministic) AS deterministic,
        max(x.seeds) AS seeds,
        count(*) AS n_steps,
        min(x.step) FILTER (WHERE abs(x.loss - y.loss) > $min_relative * greatest(abs(x.loss), abs(y.loss))) AS step,
        count(*) FILTER (WHERE abs(x.loss - y.loss) > $min_relative * greatest(abs(x.loss), abs(y.loss))) AS n_apart
    FROM labelled AS x
    JOIN labelled AS y
        ON y.file = x.file AND y.format = x.format AND y.step = x.step AND y.rank IS NOT DISTINCT FROM x.rank
        AND y.folder > x.folder AND y.command = x.command AND y.seeds IS NOT DISTINCT FROM x.seeds
    WHERE x.seeds IS NOT NULL
    GROUP BY ALL
)
SELECT
    p.artifact_id,
    min(r.row) AS row,
    min(r.line) AS line,
    NULL::INTEGER AS proc_id,
    NULL::INTEGER AS rank,
    p.step,
    NULL::BIGINT AS ts_ns,
    p.n_apart,
    'Two runs of the same command with the same seeds part at step ' || p.step || ' (' || p.n_apart || ' of ' || p.n_steps || ' losses differ)' AS what,
    CASE p.deterministic WHEN 'false' THEN '; deterministic algorithms are off' WHEN 'true' THEN '; deterministic algorithms are on, so look at the data and the seeds' ELSE '' END AS settings,
    'runs' AS key,
    [{'artifact_id': p.other_artifact_id, 'row': min(q.row), 'line': min(q.line), 'note': 'the other run at that step'}] AS evidence
FROM pair AS p
JOIN run AS r ON r.artifact_id = p.artifact_id AND r.step = p.step
JOIN run AS q ON q.artifact_id = p.other_artifact_id AND q.step = p.step
WHERE p.n_steps >= $min_steps AND p.n_apart * 2 >= p.n_steps
GROUP BY p.artifact_id, p.other_artifact_id, p.step, p.n_apart, p.n_steps, p.deterministic
ORDER BY p.step, p.artifact_id, p.other_artifact_id
LIMIT 1;
-- variant: repeated
WITH
record AS (
    SELECT
        artifact_id,
        proc_id,
        line,
        min(row) AS row,
        max(value) FILTER (WHERE name = 'run') AS run,
        max(value) FILTER (WHERE name = 'seed') AS seed
    FROM metric
    WHERE line IS NOT NULL AND source = 'metrics'
    GROUP BY artifact_id, proc_id, line
),
placed AS (
    SELECT
        *,
        row_number() OVER (PARTITION BY artifact_id, proc_id, run ORDER BY line) AS place,
        count(*) OVER (PARTITION BY artifact_id, proc_id, run) AS n
    FROM record
    WHERE run IS NOT NULL AND seed IS NOT NULL
),
result AS (
    SELECT
        p.artifact_id,
        p.place,
        p.seed,
        m.name,
        min(p.row) AS row,
        min(p.line) AS line,
        count(DISTINCT p.run) AS n_runs,
        count(DISTINCT p.n) AS n_lengths,
        min(m.value) AS least,
        max(m.value) AS largest
    FROM placed AS p
    JOIN metric AS m ON m.artifact_id = p.artifact_id AND m.line = p.line AND m.name NOT IN ('run', 'seed', 'step', 'epoch')
    WHERE NOT contains(m.name, 'time') AND NOT contains(m.name, 'second') AND NOT contains(m.name, 'memory')
    GROUP BY p.artifact_id, p.place, p.seed, m.name
)
SELECT
    r.artifact_id,
    min(r.row) AS row,
    min(r.line) AS line,
    NULL::INTEGER AS proc_id,
    NULL::INTEGER AS rank,
    NULL::BIGINT AS step,
    NULL::BIGINT AS ts_ns,
    r.name AS metric,
    max(r.n_runs) || ' runs with seed ' || min(r.seed) || ' end differently: ' || r.name || ' between ' || min_by(r.least, -(r.largest - r.least))
        || ' and ' || max_by(r.largest, r.largest - r.least)
        || CASE WHEN count(*) FILTER (WHERE r.least = r.largest) > 0
            THEN '; ' || count(*) FILTER (WHERE r.least = r.largest) || ' of ' || count(*) || ' cases agree to the last digit' ELSE '' END AS what,
    coalesce((
        SELECT '; ' || min(f.key) || ' is false' FROM fact AS f
        WHERE regexp_matches(f.key, '(^|\.)deterministic') AND lower(f.value) = 'false'
    ), '') AS settings,
    r.name AS key
FROM result AS r
WHERE r.n_runs >= 2 AND r.n_lengths = 1
GROUP BY r.artifact_id, r.name
HAVING bool_or(r.largest - r.least > 1e-3 * abs(r.largest))
ORDER BY r.artifact_id, row, metric;
