-- Reductions over the ranks that made of finite gradients what is not finite, the first of each attempt: a row is one
-- process, with the parameter whose addends are largest. n_ranks: ranks whose addends are on record; total: sum over
-- these of the largest absolute addend; ends_at: the largest value of the type in which gradients were handed over.
-- explained_by: type (total is beyond it), float16 (beyond that, should the hook sum in it), nothing (no sum of such
-- values leaves a type), unrecorded (ranks are missing).
CREATE TEMP VIEW bad_reduction AS
WITH
-- IEEE 754; float8 is no type that gradients are summed in.
largest (dtype, ends_at) AS (
    VALUES ('float16', 65504.0), ('bfloat16', 3.3895314e38), ('float32', 3.4028235e38), ('float64', 1.7976931348623157e308)
),
bucket AS (
    SELECT
        p.attempt,
        p.world_size,
        t.*,
        n.text AS name
    FROM tensor AS t
    JOIN proc AS p ON p.id = t.proc_id
    JOIN string AS n ON n.id = t.name_id
    WHERE t.role IN ('bucket', 'reduced-bucket') AND t.step IS NOT NULL AND t.rank IS NOT NULL
),
-- From the first bucket on that was bad before it was reduced, or the first operator that gave what is not finite.
spoiled AS (
    SELECT
        attempt,
        min(step) AS step
    FROM (
        SELECT attempt, step FROM bucket WHERE role = 'bucket' AND n_nan + n_inf > 0
        UNION ALL
        SELECT p.attempt, b.step FROM birth AS b JOIN proc AS p ON p.id = b.proc_id WHERE b.is_harmful AND b.kind = 'operator'
    )
    GROUP BY attempt
),
brought AS (
    SELECT
        attempt,
        step,
        name,
        rank,
        max(absmax) AS absmax,
        max(dtype) AS dtype
    FROM bucket
    WHERE role = 'bucket' AND n_nan + n_inf = 0
    GROUP BY attempt, step, name, rank
),
addend AS (
    SELECT
        attempt,
        step,
        name,
        count(*) AS n_ranks,
        sum(absmax) AS total,
        max(absmax) AS absmax,
        max(dtype) AS dtype
    FROM brought
    GROUP BY attempt, step, name
),
given AS (
    SELECT
        r.*,
        a.n_ranks,
        a.total,
        a.absmax AS largest_addend,
        a.dtype AS handed_over_in,
        l.ends_at,
        CASE
            WHEN a.total > l.ends_at THEN 'type'
            WHEN a.total > 65504 THEN 'float16'
            WHEN a.n_ranks < r.world_size OR r.world_size IS NULL THEN 'unrecorded'
            ELSE 'nothing'
        END AS explained_by
    FROM bucket AS r
    JOIN addend AS a ON a.attempt = r.attempt AND a.step = r.step AND a.name = r.name
    LEFT JOIN largest AS l ON l.dtype = a.dtype
    LEFT JOIN spoiled AS s ON s.attempt = r.attempt
    WHERE r.role = 'reduced-bucket' AND r.n_nan + r.n_inf > 0 AND r.step < coalesce(s.step, r.step + 1)
    QUALIFY rank() OVER (PARTITION BY r.attempt ORDER BY r.step) = 1
)
SELECT
    *,
    count(*) OVER (PARTITION BY proc_id) AS n_parameters
FROM given
QUALIFY row_number() OVER (
    PARTITION BY proc_id ORDER BY explained_by = 'nothing', total DESC NULLS LAST, artifact_id, row
) = 1;
