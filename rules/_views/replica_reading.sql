-- Recorded tensors compared over ranks: a row is one parameter, gradient, buffer or plain attribute at one step that two or
-- more ranks sampled. `n_contents` counts the different contents, by checksum; `n_common` the ranks that share the most
-- frequent one, `odd_ranks` the others. `is_plain`: the contents of some rank are one value throughout, so equal by chance.
CREATE TEMP VIEW replica_reading AS
WITH
reading AS (
    SELECT
        p.attempt,
        t.rank,
        t.role,
        n.text AS name,
        t.step,
        t.checksum,
        t.shape_id,
        coalesce(t.std, 0) = 0 AS is_plain,
        coalesce(t.norm, 0) = 0 AS is_zero,
        t.artifact_id,
        t.row,
        t.ts_ns,
        t.addr,
        t.version
    FROM tensor AS t
    JOIN proc AS p ON p.id = t.proc_id
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role IN ('parameter', 'gradient', 'buffer', 'attribute') AND t.node_id IS NULL
      AND t.checksum IS NOT NULL AND t.rank IS NOT NULL AND t.step IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY p.attempt, t.rank, t.role, n.text, t.step ORDER BY t.artifact_id, t.row) = 1
),
content AS (
    SELECT
        attempt,
        role,
        name,
        step,
        checksum,
        count(*) AS n
    FROM reading
    GROUP BY attempt, role, name, step, checksum
),
common AS (
    SELECT *
    FROM content
    QUALIFY row_number() OVER (PARTITION BY attempt, role, name, step ORDER BY n DESC, checksum) = 1
)
SELECT
    r.attempt,
    r.role,
    r.name,
    r.step,
    count(*) AS n_ranks,
    count(DISTINCT r.checksum) AS n_contents,
    count(DISTINCT r.shape_id) AS n_shapes,
    max(c.n) AS n_common,
    list(r.rank ORDER BY r.rank) FILTER (WHERE r.checksum <> c.checksum) AS odd_ranks,
    bool_or(r.is_plain) AS is_plain,
    bool_or(r.is_zero) AS is_zero,
    list({'rank': r.rank, 'artifact_id': r.artifact_id, 'row': r.row} ORDER BY r.checksum = c.checksum, r.rank) AS places,
    min(r.ts_ns) AS ts_ns,
    min(r.version) AS version,
    list(r.addr ORDER BY r.rank) AS addrs
FROM reading AS r
JOIN common AS c ON c.attempt = r.attempt AND c.role = r.role AND c.name = r.name AND c.step = r.step
GROUP BY r.attempt, r.role, r.name, r.step
HAVING count(*) >= 2;
