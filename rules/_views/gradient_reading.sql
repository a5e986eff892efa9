-- Recorded gradients and parameters, joined: a row is one trainable parameter at one sampled step of one process.
-- `sample` numbers the samples of the parameter from 1, `n_samples` counts them. Without a gradient, is_missing.
CREATE TEMP VIEW gradient_reading AS
WITH
taken AS (
    SELECT
        t.artifact_id,
        t.proc_id,
        t.rank,
        t.step,
        n.text AS name,
        min(t.row) AS row,
        min(t.ts_ns) AS ts_ns,
        bool_or(t.role = 'missing-gradient') AS is_missing,
        max(t.norm) FILTER (WHERE t.role = 'gradient') AS gradient_norm,
        max(t.absmax) FILTER (WHERE t.role = 'gradient') AS gradient_absmax,
        max(t.zero_ratio) FILTER (WHERE t.role = 'gradient') AS gradient_zero_ratio,
        sum(t.n_nan + t.n_inf) FILTER (WHERE t.role = 'gradient') AS n_nonfinite,
        max(t.version) FILTER (WHERE t.role = 'gradient') AS gradient_version,
        max(t.addr) FILTER (WHERE t.role = 'gradient') AS gradient_addr,
        max(t.norm) FILTER (WHERE t.role = 'parameter') AS norm,
        max(t.absmax) FILTER (WHERE t.role = 'parameter') AS absmax,
        max(t.std) FILTER (WHERE t.role = 'parameter') AS std,
        max(t.checksum) FILTER (WHERE t.role = 'parameter') AS checksum,
        max(t.version) FILTER (WHERE t.role = 'parameter') AS version,
        max(t.dtype) FILTER (WHERE t.role = 'parameter') AS dtype,
        max(s.text) AS shape
    FROM tensor AS t
    JOIN string AS n ON n.id = t.name_id
    LEFT JOIN string AS s ON s.id = t.shape_id
    WHERE t.role IN ('gradient', 'missing-gradient', 'parameter') AND t.step IS NOT NULL AND t.node_id IS NULL
    GROUP BY t.artifact_id, t.proc_id, t.rank, t.step, n.text
)
SELECT
    *,
    row_number() OVER (PARTITION BY artifact_id, proc_id, name ORDER BY step) AS sample,
    count(*) OVER (PARTITION BY artifact_id, proc_id, name) AS n_samples
FROM taken;
