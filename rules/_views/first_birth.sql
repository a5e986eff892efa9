-- Harmful births of the step and phase in which the first of an attempt came, one of each process: what the other processes
-- got from it is no birth. `since`: first step without a finite reading between it and this one, which was recorded;
-- has_flow: the recording tells who wrote what each operator read; n_recorded: ranks of which operators were recorded.
-- family: of the operator (family_of_operator), of a logarithm that of what made its operand where that is a softmax or a
-- sigmoid. finite_loss: the loss that was logged for that step, where it is finite.
CREATE TEMP VIEW first_birth AS
WITH
zero AS (
    SELECT
        b.*,
        p.attempt,
        p.world_size,
        o.text AS operator,
        coalesce(g.text, o.text) AS op,
        m.text AS module,
        t.text AS tensor_name,
        f.text AS first_parameter,
        u.function || ' (' || u.file || ':' || u.line || ')' AS called_in
    FROM birth AS b
    LEFT JOIN proc AS p ON p.id = b.proc_id
    LEFT JOIN string AS o ON o.id = b.op_id
    LEFT JOIN string AS g ON g.id = b.autograd_id
    LEFT JOIN string AS m ON m.id = b.module_id
    LEFT JOIN string AS t ON t.id = b.tensor_name_id
    LEFT JOIN string AS f ON f.id = b.first_parameter_id
    LEFT JOIN frame AS k ON k.id = b.stack_id
    LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
    WHERE b.is_harmful AND b.cause <> 'from-peer'
      -- Overflow of a scaled backward from which the run recovers is how a loss scaler finds its scale.
      AND NOT (
        b.cause = 'overflow' AND b.phase = 'backward'
        AND EXISTS (
            SELECT 1 FROM metric AS s JOIN metric AS l ON l.proc_id = s.proc_id AND l.name = 'grad_norm'
            WHERE s.proc_id = b.proc_id AND s.name = 'loss_scale' AND l.step > b.step AND isfinite(l.value)
        )
      )
    QUALIFY rank() OVER (PARTITION BY p.attempt ORDER BY b.step, b.kind = 'parameter', b.phase = 'backward') = 1
        AND row_number() OVER (PARTITION BY b.proc_id ORDER BY b.ordinal) = 1
),
reading AS (
    SELECT
        proc_id,
        step,
        bool_and(isfinite(value)) AS is_finite
    FROM metric
    WHERE name IN ('loss', 'grad_norm') AND step IS NOT NULL
    GROUP BY proc_id, step
),
streak AS (
    SELECT
        z.artifact_id,
        z.row,
        min(r.step) AS since
    FROM zero AS z
    JOIN reading AS r ON r.proc_id = z.proc_id AND r.step <= z.step AND NOT r.is_finite
    WHERE z.kind = 'operator'
      AND NOT EXISTS (SELECT 1 FROM reading AS q WHERE q.proc_id = z.proc_id AND q.step BETWEEN r.step AND z.step AND q.is_finite)
    GROUP BY z.artifact_id, z.row
)
SELECT
    z.*,
    s.since,
    coalesce(
        (
            SELECT min(w.name)
            FROM (
                SELECT lower(replace(regexp_replace(regexp_replace(o.text, '^.*::', ''), 'Backward\d*$', ''), '_', '')) AS name
                FROM edge AS e
                JOIN node AS n ON n.artifact_id = e.artifact_id AND n.graph_id = e.graph_id AND n.node_id = e.from_node
                JOIN string AS o ON o.id = n.op_id
                WHERE e.artifact_id = z.artifact_id AND e.graph_id = z.graph_id AND e.to_node = z.node_id AND e.kind = 'data'
            ) AS w
            WHERE w.name IN ('softmax', 'sigmoid') AND z.cause = 'log-of-zero'
        ),
        f.family
    ) AS family,
    (
        SELECT CASE WHEN bool_and(isfinite(m.value)) THEN max(m.value) END
        FROM metric AS m
        WHERE m.proc_id = z.proc_id AND m.name = 'loss' AND m.step = z.step
    ) AS finite_loss,
    EXISTS (
        SELECT 1 FROM edge AS e WHERE e.artifact_id = z.artifact_id AND e.graph_id = z.graph_id AND e.tensor_row IS NOT NULL
    ) AS has_flow,
    (
        SELECT count(DISTINCT q.rank) FROM node AS n JOIN proc AS q ON q.id = n.proc_id
        WHERE q.attempt = z.attempt AND n.phase = 'forward'
    ) AS n_recorded
FROM zero AS z
LEFT JOIN family_of_operator AS f ON f.name = lower(replace(regexp_replace(regexp_replace(z.op, '^.*::', ''), 'Backward\d*$', ''), '_', ''))
LEFT JOIN streak AS s ON s.artifact_id = z.artifact_id AND s.row = z.row;
