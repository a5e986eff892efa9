-- Workers of a data loader whose main thread waits for a lock, as gdb or strace shows it. A row is one such record. place:
-- where the worker is in its Python code, from the dump of another tool, at place_row of place_artifact_id.
CREATE TEMP VIEW locked_worker AS
WITH RECURSIVE
caller AS (
    SELECT DISTINCT
        t.proc_id,
        t.stack_id AS id
    FROM thread_state AS t
    WHERE t.stack_id IS NOT NULL
    UNION
    SELECT
        c.proc_id,
        s.parent_id AS id
    FROM caller AS c
    JOIN stack AS s ON s.id = c.id
    WHERE s.parent_id IS NOT NULL
),
worker AS (
    SELECT DISTINCT c.proc_id
    FROM caller AS c
    JOIN frame AS f ON f.id = c.id
    WHERE f.function IN ('_worker_loop', '_DataLoader__worker_loop')
),
locked AS (
    SELECT
        t.*,
        p.pid
    FROM thread_state AS t
    JOIN worker AS w ON w.proc_id = t.proc_id
    JOIN proc AS p ON p.id = t.proc_id
    -- The main thread has the number of its process; its helpers wait for locks by design.
    WHERE t.wait_kind = 'futex' AND regexp_extract(t.thread, '^\d+') = CAST(p.pid AS VARCHAR)
),
doing AS (
    -- What the locked worker was doing, by its Python frames.
    SELECT
        t.proc_id,
        u.function || ' (' || u.file || ':' || u.line || ')' AS place,
        t.artifact_id,
        t.row
    FROM thread_state AS t
    JOIN frame AS k ON k.id = t.stack_id
    JOIN frame AS u ON u.id = k.user_stack_id
    WHERE u.file LIKE '%.py'
    QUALIFY row_number() OVER (PARTITION BY t.proc_id ORDER BY t.artifact_id, t.row) = 1
)
SELECT
    l.artifact_id,
    l.row,
    l.proc_id,
    l.ts_ns,
    l.wait_on,
    l.pid,
    d.place,
    d.artifact_id AS place_artifact_id,
    d.row AS place_row
FROM locked AS l
LEFT JOIN doing AS d ON d.proc_id = l.proc_id;
