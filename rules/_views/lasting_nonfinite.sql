-- Losses, gradient norms and flags of a job about its values that tell of what is not finite, and after which none of the
-- same name is finite again: a row is one value. is_told: it is a flag; is_part: one of several losses; n_bad, n_kinds:
-- values that are not finite and kinds of these, of its name and process. What a recorded birth explains, and what a loss
-- scale that never moves does, is left out.
CREATE TEMP VIEW lasting_nonfinite AS
WITH
-- `told`: what a job says of its values in a flag, as `params_finite_after_step`, false where one of them is not finite.
reading AS (
    SELECT
        *,
        coalesce(unit, '') = 'bool' AS is_told,
        CASE WHEN coalesce(unit, '') = 'bool' THEN value = 1 ELSE isfinite(value) END AS is_good,
        -- Jobs with several losses give each a name of its own.
        name NOT IN ('loss', 'grad_norm') AND coalesce(unit, '') <> 'bool' AS is_part,
        -- What is drawn up ahead is read a few logged steps before it is used.
        coalesce(lag(line, 3) OVER (PARTITION BY artifact_id, proc_id, name ORDER BY row), 0) AS since_line
    FROM metric
    WHERE name IN ('loss', 'grad_norm')
        OR (source IN ('log', 'metrics') AND regexp_matches(lower(name), '(^|[_/.])loss($|[_/.])')
            AND NOT regexp_matches(lower(name), '(^|[_/.])(eval|val|valid|validation|test|dev)[_/.]|loss_(scale|weight|std)'))
        OR (unit = 'bool' AND regexp_matches(name, '(^|_)(is|all)?_?finite(_|$)'))
),
course AS (
    SELECT
        proc_id,
        name,
        count(*) FILTER (WHERE NOT is_good) AS n_bad,
        count(DISTINCT value) FILTER (WHERE NOT is_good) AS n_kinds,
        max(step) FILTER (WHERE is_good) AS last_good_step,
        max((artifact_id, row)) FILTER (WHERE is_good) AS last_good,
        max_by(is_good, (artifact_id, row)) AS ends_good
    FROM reading
    GROUP BY proc_id, name
)
SELECT r.*, c.n_bad, c.n_kinds
FROM reading AS r
JOIN course AS c ON c.proc_id IS NOT DISTINCT FROM r.proc_id AND c.name = r.name
WHERE NOT r.is_good
  AND (
    c.last_good IS NULL
    OR CASE WHEN r.step IS NULL OR c.last_good_step IS NULL THEN (r.artifact_id, r.row) > c.last_good ELSE r.step > c.last_good_step END
  )
  -- One of several losses that is not used may be undefined.
  AND (NOT r.is_part OR NOT EXISTS (
    SELECT 1 FROM course AS o WHERE o.proc_id IS NOT DISTINCT FROM r.proc_id AND contains(o.name, 'loss') AND o.ends_good
  ))
  -- Infinite at a loss scale that never moves: that scale is at fault (numerics-scaler-stall), not an operator.
  AND NOT EXISTS (
    SELECT 1 FROM metric AS s
    WHERE s.proc_id IS NOT DISTINCT FROM r.proc_id AND s.name = 'loss_scale' AND r.name = 'grad_norm'
    HAVING count(*) > 1 AND min(s.value) = max(s.value) AND max(s.value) > 1
  )
  AND NOT EXISTS (
    SELECT 1 FROM birth AS b JOIN proc AS p ON p.id = b.proc_id JOIN proc AS q ON q.attempt = p.attempt
    WHERE q.id = r.proc_id AND b.is_harmful AND (b.step <= r.step OR b.proc_id = r.proc_id)
  );
