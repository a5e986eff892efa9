/*
title = "What agreed at one step of a captured job and no longer at the next"
severity = "info"
proves = """
Step by step, the recorded state of the graph, of the gradients it writes, of the parameters and of the allocator; named
is the first step at which captured gradients are no longer where the graph writes them."""
cannot_prove = """
The state of components that no recorder saw at both steps."""
message = "{who}: between {before} and step {step} these stop agreeing: {apart}; these stay: {same}"
fix = "Look at what runs between the two steps: what replaces, frees or moves the component that stops agreeing first."

[variant.tensors]
needs = ["tensor"]
strength = "strong"
*/
-- variant: tensors
WITH
captured AS (
    SELECT
        proc_id,
        name_id,
        addr,
        min(step) OVER (PARTITION BY proc_id) AS capture_step
    FROM tensor
    WHERE role = 'captured-gradient'
),
gradient AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        t.step,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns,
        count(*) AS n,
        count(*) FILTER (WHERE t.role = 'missing-gradient') AS n_missing,
        count(*) FILTER (WHERE EXISTS (
            SELECT 1 FROM captured AS c WHERE c.proc_id = t.proc_id AND c.name_id = t.name_id AND c.addr = t.addr
        )) AS n_inside
    FROM tensor AS t
    WHERE t.role IN ('gradient', 'missing-gradient')
      AND EXISTS (SELECT 1 FROM captured AS c WHERE c.proc_id = t.proc_id AND c.name_id = t.name_id)
    GROUP BY t.artifact_id, t.proc_id, t.rank, t.step
),
following AS (
    SELECT
        g.*,
        c.capture_step,
        c.n AS n_captured,
        lag(g.step) OVER (PARTITION BY g.artifact_id, g.proc_id ORDER BY g.step) AS last_step,
        lag(g.n_inside) OVER (PARTITION BY g.artifact_id, g.proc_id ORDER BY g.step) AS last_inside
    FROM gradient AS g
    JOIN (
        SELECT
            proc_id,
            min(capture_step) AS capture_step,
            count(DISTINCT name_id) AS n
        FROM captured
        GROUP BY proc_id
    ) AS c ON c.proc_id = g.proc_id
),
apart AS (
    SELECT
        *,
        -- The first sample after the capture is compared with the capture itself, when all gradients were inside.
        last_step IS NULL OR last_step <= capture_step AS is_first
    FROM following
    WHERE step > capture_step
      AND n_inside < CASE WHEN last_step IS NULL OR last_step <= capture_step THEN n_captured ELSE last_inside END
    QUALIFY row_number() OVER (PARTITION BY proc_id ORDER BY step, artifact_id) = 1
),
component AS (
    SELECT
        proc_id,
        step,
        'gradients in the graph''s buffers' AS name,
        n_inside || ' of ' || n AS value
    FROM following
    WHERE step > capture_step
    UNION ALL BY NAME
    SELECT DISTINCT
        proc_id,
        capture_step AS step,
        'gradients in the graph''s buffers' AS name,
        n_captured || ' of ' || n_captured AS value
    FROM following
    UNION ALL BY NAME
    SELECT
        proc_id,
        step,
        'gradients that are None' AS name,
        CAST(n_missing AS VARCHAR) AS value
    FROM following
    WHERE step > capture_step
    UNION ALL BY NAME
    SELECT
        proc_id,
        step,
        CASE name WHEN 'graph_replays' THEN 'replays of graphs' WHEN 'graph_captures' THEN 'captures' ELSE 'reserved bytes' END AS name,
        CAST(CAST(max(value) AS BIGINT) AS VARCHAR) AS value
    FROM metric
    WHERE name IN ('graph_replays', 'graph_captures', 'reserved_bytes')
    GROUP BY ALL
    UNION ALL BY NAME
    SELECT
        t.proc_id,
        t.step,
        'parameters that the last optimizer step changed' AS name,
        count(*) FILTER (WHERE t.is_new) || ' of ' || count(*) AS value
    FROM (
        SELECT
            proc_id,
            step,
            checksum <> lag(checksum) OVER (PARTITION BY artifact_id, proc_id, name_id ORDER BY step) AS is_new
        FROM tensor
        WHERE role = 'parameter' AND checksum IS NOT NULL
    ) AS t
    WHERE t.is_new IS NOT NULL
    GROUP BY t.proc_id, t.step
)
SELECT
    a.artifact_id,
    a.row,
    'tensor' AS "table",
    a.proc_id,
    a.rank,
    a.step,
    a.ts_ns,
    CASE WHEN a.is_first THEN 'the capture in step ' || a.capture_step ELSE 'step ' || a.last_step END AS before,
    coalesce(
        string_agg(coalesce(n.name, b.name) || ' ' || coalesce(b.value, 'not recorded') || ' → ' || coalesce(n.value, 'not recorded'), '; ' ORDER BY coalesce(n.name, b.name))
        FILTER (WHERE n.value IS DISTINCT FROM b.value),
        'nothing'
    ) AS apart,
    coalesce(string_agg(n.name || ' ' || n.value, '; ' ORDER BY n.name) FILTER (WHERE n.value = b.value), 'nothing') AS same
FROM apart AS a
LEFT JOIN component AS n ON n.proc_id = a.proc_id AND n.step = a.step
LEFT JOIN component AS b ON b.proc_id = a.proc_id AND b.step = CASE WHEN a.is_first THEN a.capture_step ELSE a.last_step END AND b.name = n.name
GROUP BY ALL
ORDER BY a.ts_ns, a.artifact_id, a.row;
