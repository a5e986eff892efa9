-- How the logged gradient norms of a run grow: a row is one series.
-- growth: median of the last tenth / median of the first three. correlation: of the norm with its ordinal, and
-- exponential_correlation of its logarithm. loss_change: median loss of the last quarter / of the first.
CREATE TEMP VIEW training_norm_growth AS
WITH
norm AS (
    SELECT * FROM training_curve WHERE name = 'grad_norm' AND isfinite(value) AND value > 0
),
loss AS (
    SELECT
        proc_id,
        median(value) FILTER (WHERE place * 4 > n * 3) / nullif(median(value) FILTER (WHERE place * 4 <= n), 0) AS loss_change
    FROM training_curve
    WHERE name = 'loss' AND preference = 1 AND isfinite(value)
    GROUP BY proc_id
)
SELECT
    m.artifact_id,
    m.proc_id,
    m.rank,
    min(m.preference) AS preference,
    min_by(m.row, m.place) AS row,
    min_by(m.line, m.place) AS line,
    min_by(m.step, m.place) AS step,
    min(m.ts_ns) AS ts_ns,
    max_by({'artifact_id': m.artifact_id, 'row': m.row, 'line': m.line}, m.place) AS last_at,
    count(*) AS n_points,
    max(coalesce(m.step, m.place)) - min(coalesce(m.step, m.place)) AS n_steps,
    round(median(m.value) FILTER (WHERE m.place <= 3), 4) AS first_norm,
    round(median(m.value) FILTER (WHERE m.place * 10 > m.n * 9), 4) AS last_norm,
    median(m.value) FILTER (WHERE m.place * 10 > m.n * 9) / median(m.value) FILTER (WHERE m.place <= 3) AS growth,
    corr(m.value, m.place) AS correlation,
    corr(ln(m.value), m.place) AS exponential_correlation,
    coalesce(max(l.loss_change), 1) AS loss_change
FROM norm AS m
LEFT JOIN loss AS l ON l.proc_id IS NOT DISTINCT FROM m.proc_id
GROUP BY m.artifact_id, m.series, m.proc_id, m.rank;
