-- When each rank came to each collective that two or more ranks recorded: a row is one rank's arrival. `lag_ns` is how much
-- later than the last but one of the ranks it came, where it came last by more than the clocks' error; else 0.
-- Source `dump`: calls by sequence number, flight recorders; `trace`: kernels, or calls, by step and order, profilers.
-- Kernels of one collective end together, so that their lengths tell the order without any clock. Clocks of one host are one:
-- what was added to align them is taken back. Of a group the last 400 calls are looked at, and not the first five of start-up.
CREATE TEMP VIEW collective_arrival AS
WITH
called AS (
    SELECT
        g.attempt,
        'dump' AS source,
        'group ' || g.number || ' ' || c.sequence AS key,
        c.artifact_id,
        c.row,
        c.rank,
        c.proc_id,
        c.step,
        c.operation,
        c.ts_ns,
        NULL::BIGINT AS dur_ns
    FROM collective AS c
    JOIN wait_member AS m ON m.artifact_id = c.artifact_id AND m.group_id = c.group_id
    JOIN wait_group AS g ON g.number = m.number
    WHERE NOT coalesce(c.is_p2p, FALSE) AND c.sequence IS NOT NULL AND c.ts_ns IS NOT NULL
    QUALIFY c.sequence > max(c.sequence) OVER (PARTITION BY g.number) - 400
        AND c.sequence > min(c.sequence) OVER (PARTITION BY g.number) + 4
    UNION ALL
    SELECT
        p.attempt,
        'trace' AS source,
        concat_ws(' ', g.description, n.text, c.operation, c.step) || ' '
            || row_number() OVER (PARTITION BY c.artifact_id, g.description, n.text, c.operation, c.step ORDER BY c.row) AS key,
        c.artifact_id,
        c.row,
        c.rank,
        c.proc_id,
        c.step,
        c.operation,
        coalesce(c.started_ns, c.ts_ns) AS ts_ns,
        c.completed_ns - c.started_ns AS dur_ns
    FROM collective AS c
    JOIN proc AS p ON p.id = c.proc_id
    LEFT JOIN process_group AS g ON g.artifact_id = c.artifact_id AND g.id = c.group_id
    LEFT JOIN string AS n ON n.id = g.name_id
    WHERE c.artifact_id IN (SELECT artifact_id FROM coverage WHERE capability = 'collective.profiler')
      AND NOT coalesce(c.is_p2p, FALSE) AND c.step IS NOT NULL AND coalesce(c.started_ns, c.ts_ns) IS NOT NULL
),
placed AS (
    SELECT
        c.* EXCLUDE (ts_ns),
        c.ts_ns,
        a.clock_offset_ns,
        a.clock_error_ns,
        a.timeline,
        min(p.host) OVER w = max(p.host) OVER w AND count(p.host) OVER w = count(*) OVER w AND bool_and(a.clock = 'epoch') OVER w AS is_one_host,
        count(c.dur_ns) OVER w = count(*) OVER w AS has_lengths
    FROM called AS c
    JOIN artifact AS a ON a.id = c.artifact_id
    JOIN proc AS p ON p.id = c.proc_id
    WHERE c.rank IS NOT NULL
    WINDOW w AS (PARTITION BY c.attempt, c.source, c.key)
    QUALIFY count(*) OVER w >= 2 AND row_number() OVER (PARTITION BY c.attempt, c.source, c.key, c.rank ORDER BY c.artifact_id, c.row) = 1
),
timed AS (
    SELECT
        *,
        CASE
            WHEN has_lengths THEN -dur_ns
            WHEN is_one_host THEN ts_ns - clock_offset_ns
            ELSE ts_ns
        END AS arrival_ns,
        CASE WHEN has_lengths OR is_one_host THEN 0 ELSE clock_error_ns END AS error_ns
    FROM placed
    WHERE has_lengths OR is_one_host OR timeline = 'epoch'
)
SELECT
    *,
    row_number() OVER w = 1 AS is_last,
    CASE
        WHEN row_number() OVER w = 1 AND arrival_ns - lead(arrival_ns) OVER w > error_ns + lead(error_ns) OVER w
        THEN arrival_ns - lead(arrival_ns) OVER w
        ELSE 0
    END AS lag_ns,
    count(*) OVER (PARTITION BY attempt, source, key) AS n_ranks
FROM timed
WINDOW w AS (PARTITION BY attempt, source, key ORDER BY arrival_ns DESC, rank);
