"""Health of each step, as parts of a score from 0 (bad) to 100 (healthy): a chart, and never a verdict.

Reads tensor, sample, fact and slice; writes health_part, of which the view health_score is made. A part at its healthy
limit or better scores 100, at its bad limit or worse 0, and in proportion between; the score of a step is the mean of
those of its parts that are on record. Parts that were not measured in a step keep their last value there.

gradient-sparsity: share of elements of all recorded gradients that are zero.
memory-residency: memory that the allocator holds over the device's memory; limits as for memory use.
backward-forward: device time of what backward threads launched over that of what was launched before the last backward
began; where no kernels are recorded, the same of host operators. With activation checkpointing the backward repeats the
forward, and about three is right; it shows only where the trace tells of it (reentrant, or with Python stacks).
"""

from __future__ import annotations

import duckdb

from forensics.case import has_rows

# Healthy and bad limits; ratios. Memory use: as in the board of thresholds.
LIMITS = {
    "gradient-sparsity": (0.60, 0.85),
    "memory-residency": (0.75, 0.92),
    "backward-forward": (2.5, 4.0),
}
_CHECKPOINTED_HEALTHY = 3.5  # backward-forward, three and what kernels vary

_SPARSITY = """
SELECT t.artifact_id, 'tensor' AS "table", arg_max(t.row, t.zero_ratio * n.elements) AS row, t.proc_id, t.rank, t.step,
    max(t.ts_ns) AS ts_ns, 'gradient-sparsity' AS part, sum(t.zero_ratio * n.elements) / sum(n.elements) AS value,
    '' AS says
FROM tensor AS t
JOIN (
    SELECT id, coalesce(list_product(TRY_CAST(text AS BIGINT[])), 1.0) AS elements FROM string
    WHERE id IN (SELECT shape_id FROM tensor WHERE role = 'gradient')
) AS n ON n.id = t.shape_id AND n.elements > 0
WHERE t.role = 'gradient' AND t.zero_ratio IS NOT NULL AND t.step IS NOT NULL
GROUP BY t.artifact_id, t.proc_id, t.rank, t.step
"""
_RESIDENCY = """
SELECT s.artifact_id, 'sample', s.row, s.proc_id, s.rank, s.step, s.ts_ns, 'memory-residency', s.value / d.total, ''
FROM sample AS s
JOIN string AS n ON n.id = s.name_id
JOIN (
    -- A process with several devices does not say which one its counters are of.
    SELECT proc_id, max(number) AS total FROM fact
    WHERE key SIMILAR TO 'devices\\.[0-9]+\\.total_bytes' AND number > 0
    GROUP BY proc_id HAVING min(number) = max(number)
) AS d ON d.proc_id = s.proc_id
WHERE n.text = 'reserved' AND s.source = 'metrics' AND s.step IS NOT NULL AND isfinite(s.value)
"""
_TIMES = """
WITH
backward AS (
    SELECT s.artifact_id, s.proc_id, s.step, s.row, s.thread, s.ts_ns, s.dur_ns, s.parent_row
    FROM slice AS s JOIN string AS n ON n.id = s.name_id
    WHERE s.kind = 'cpu_op' AND s.step IS NOT NULL AND s.dur_ns IS NOT NULL
      AND (n.text LIKE 'autograd::engine::evaluate\\_function: %' ESCAPE '\\'
        OR regexp_full_match(n.text, '[A-Z]\\w*Backward\\d*'))
),
outermost AS (
    SELECT b.* FROM backward AS b
    WHERE NOT EXISTS (SELECT 1 FROM backward AS p WHERE p.artifact_id = b.artifact_id AND p.row = b.parent_row)
),
turn AS (
    SELECT artifact_id, proc_id, step, list(DISTINCT thread) AS threads, max(ts_ns) AS last_ns, min(row) AS row,
        min(ts_ns) AS ts_ns, sum(dur_ns) AS host_ns, count(*) AS n
    FROM outermost
    GROUP BY artifact_id, proc_id, step
),
device AS (
    SELECT t.artifact_id, t.step, t.row,
        sum(k.dur_ns) FILTER (WHERE list_contains(t.threads, r.thread)) AS backward_ns,
        sum(k.dur_ns) FILTER (WHERE NOT list_contains(t.threads, r.thread) AND r.ts_ns < t.last_ns) AS forward_ns
    FROM turn AS t
    JOIN slice AS k ON k.artifact_id = t.artifact_id AND k.step = t.step AND k.kind = 'kernel'
    JOIN slice AS r ON r.artifact_id = k.artifact_id AND r.row = k.launch_row
    WHERE k.dur_ns IS NOT NULL
    GROUP BY t.artifact_id, t.step, t.row
),
host AS (
    SELECT t.artifact_id, t.step, t.row, sum(o.dur_ns) AS forward_ns
    FROM turn AS t
    JOIN slice AS o ON o.artifact_id = t.artifact_id AND o.step = t.step AND o.kind = 'cpu_op' AND o.ts_ns < t.last_ns
    LEFT JOIN slice AS p ON p.artifact_id = o.artifact_id AND p.row = o.parent_row AND p.kind = 'cpu_op'
    LEFT JOIN outermost AS b ON b.artifact_id = o.artifact_id AND b.row = o.row
    WHERE p.row IS NULL AND b.row IS NULL AND o.dur_ns IS NOT NULL
    GROUP BY t.artifact_id, t.step, t.row
),
repeated AS (
    SELECT DISTINCT s.artifact_id
    FROM slice AS s JOIN string AS n ON n.id = s.name_id
    WHERE n.text LIKE '%CheckpointFunctionBackward%' OR n.text LIKE '%torch/utils/checkpoint.py%'
)
SELECT t.artifact_id, 'slice', t.row, t.proc_id, p.rank, t.step, t.ts_ns, 'backward-forward',
    CASE WHEN d.row IS NULL THEN t.host_ns / h.forward_ns ELSE d.backward_ns / d.forward_ns END,
    CASE WHEN c.artifact_id IS NOT NULL THEN 'with activation checkpointing' ELSE '' END
FROM turn AS t
LEFT JOIN proc AS p ON p.id = t.proc_id
LEFT JOIN device AS d ON d.artifact_id = t.artifact_id AND d.step = t.step AND d.row = t.row
LEFT JOIN host AS h ON h.artifact_id = t.artifact_id AND h.step = t.step AND h.row = t.row
LEFT JOIN repeated AS c ON c.artifact_id = t.artifact_id
WHERE CASE WHEN d.row IS NULL THEN h.forward_ns > 0 ELSE d.forward_ns > 0 AND d.backward_ns > 0 END
"""


def derive_health(con: duckdb.DuckDBPyConnection) -> None:
    for table, query in (("tensor", _SPARSITY), ("sample", _RESIDENCY), ("slice", _TIMES)):
        if not has_rows(con, table):
            continue
        con.execute(
            f"""
            INSERT INTO health_part
            SELECT p.artifact_id, p.row, p.proc_id, p.rank, p.step, p.ts_ns, p."table", p.part, p.value,
                100 * greatest(0, least(1, (l.bad - p.value) / (l.bad - l.healthy))), l.healthy, l.bad, p.says
            FROM ({query}) AS p(artifact_id, "table", row, proc_id, rank, step, ts_ns, part, value, says)
            JOIN (VALUES {_limits()}) AS l(part, says, healthy, bad) ON l.part = p.part AND l.says = p.says
            WHERE isfinite(p.value)
            QUALIFY row_number() OVER (PARTITION BY p.proc_id, p.part, p.step ORDER BY p.artifact_id, p.row) = 1
            ORDER BY p.proc_id, p.part, p.step
            """
        )


def _limits() -> str:
    rows = [(part, "", healthy, bad) for part, (healthy, bad) in LIMITS.items()]
    rows.append(
        ("backward-forward", "with activation checkpointing", _CHECKPOINTED_HEALTHY, LIMITS["backward-forward"][1])
    )
    return ", ".join(f"('{part}', '{says}', {healthy}, {bad})" for part, says, healthy, bad in rows)
