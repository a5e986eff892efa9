-- Ranks that stand apart in a job whose collectives do not go on. A row is one rank of one call of one group.
-- is_absent: the rank had not called what its peers called and did not finish, and waits for nobody itself. Otherwise it
-- called what its peers finished, which they can only with its data, and did not finish it; n_groups says in how many
-- groups. peers: the ranks that wait, or that finished.
CREATE TEMP VIEW rank_apart AS
WITH
stuck AS (
    SELECT * FROM pending_collective WHERE missing IS NOT NULL AND completed IS NULL
),
waiting AS (
    SELECT DISTINCT
        attempt,
        unnest(entered) AS rank
    FROM stuck
),
apart AS (
    SELECT
        attempt,
        name,
        members,
        sequence,
        operation,
        first_called_ns,
        entered AS peers,
        unnest(missing) AS rank,
        TRUE AS is_absent
    FROM stuck
    UNION ALL
    SELECT
        attempt,
        name,
        members,
        sequence,
        operation,
        first_called_ns,
        completed AS peers,
        unnest(list_filter(entered, LAMBDA r: NOT list_contains(completed, r))) AS rank,
        FALSE AS is_absent
    FROM pending_collective
    -- Of a broadcast, a reduce, a gather and a scatter some members are done before others take part.
    WHERE completed IS NOT NULL
      AND (operation LIKE 'all\_%' ESCAPE '\' OR operation LIKE 'reduce\_scatter%' ESCAPE '\' OR operation = 'barrier')
)
SELECT
    a.*,
    count(DISTINCT a.name) OVER (PARTITION BY a.attempt, a.rank, a.is_absent) AS n_groups
FROM apart AS a
WHERE CASE
    WHEN a.is_absent THEN NOT EXISTS (SELECT 1 FROM waiting AS w WHERE w.attempt = a.attempt AND w.rank = a.rank)
    -- Only in a job that stands still is being behind more than being late.
    ELSE EXISTS (SELECT 1 FROM stuck AS s WHERE s.attempt = a.attempt)
END;
