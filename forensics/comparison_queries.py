"""SQL over two attached cases, `good` and `failed`: queries give rank, step, what, good, failed in telling order."""

from __future__ import annotations

TOLERANCE = 1e-6  # relative; repeated float32 sums of equal runs agree to about 1e-7

# Facts that name the run and not its settings, and metrics that clocks make.
_OWN_FACTS = "(trace_id|time|date|pid|hostname|host_name|tracename|path|dir|folder|file|log|port|uuid|address|command)"
_CLOCK_METRICS = (
    "(time|second|sec$|duration|elapsed|per_s|throughput|runtime|_ms$|_ns$|_s$|rss|fps|eta$|cpu|usage|mem|disk)"
)

_UNEQUAL = f"""
(
    isfinite(g.{{0}}) <> isfinite(f.{{0}})
    OR (isfinite(g.{{0}}) AND abs(g.{{0}} - f.{{0}}) > {TOLERANCE} * greatest(abs(g.{{0}}), abs(f.{{0}}), 1e-30))
)
"""


def _both(part: str) -> str:
    """CTEs g and f: the same part of each case."""
    return f"WITH g AS ({part.format(run='good')}), f AS ({part.format(run='failed')})"


_FACT = f"""
    SELECT x.scope, x.key, p.rank, string_agg(DISTINCT left(x.value, 100), ' | ' ORDER BY left(x.value, 100)) AS value
    FROM {{run}}.fact AS x LEFT JOIN {{run}}.proc AS p ON p.id = x.proc_id
    WHERE x.scope IN ('version', 'variable', 'option', 'device', 'allocator', 'distributed')
      AND NOT regexp_matches(lower(x.key), '{_OWN_FACTS}')
    GROUP BY x.scope, x.key, p.rank
"""
SETTINGS = f"""
{_both(_FACT)}
SELECT
    coalesce(g.rank, f.rank) AS rank, NULL::BIGINT AS step,
    coalesce(g.scope, f.scope) || ' ' || coalesce(g.key, f.key) AS what, g.value AS good, f.value AS failed
FROM g FULL JOIN f ON f.scope = g.scope AND f.key = g.key AND f.rank IS NOT DISTINCT FROM g.rank
WHERE g.value IS DISTINCT FROM f.value
ORDER BY g.value IS NULL OR f.value IS NULL, coalesce(g.scope, f.scope) <> 'option', what, 1
"""

_METRIC = f"""
    SELECT s.rank, s.step, n.text AS name, e.text AS entity, arg_max(s.value, (s.artifact_id, s.row)) AS value
    FROM {{run}}.sample AS s
    JOIN {{run}}.string AS n ON n.id = s.name_id
    LEFT JOIN {{run}}.string AS e ON e.id = s.entity_id
    WHERE s.step IS NOT NULL AND s.source IN ('metrics', 'log')
      AND NOT regexp_matches(lower(n.text), '{_CLOCK_METRICS}')
    GROUP BY s.rank, s.step, n.text, e.text
"""
METRICS = f"""
{_both(_METRIC)},
parted AS (
    SELECT g.rank, g.step, g.name || coalesce(' of ' || g.entity, '') AS what, g.value AS good, f.value AS failed
    FROM g JOIN f
        ON f.rank IS NOT DISTINCT FROM g.rank AND f.step = g.step AND f.name = g.name
        AND f.entity IS NOT DISTINCT FROM g.entity
    WHERE {_UNEQUAL.format("value")}
)
SELECT rank, step, what, printf('%.7g', good) AS good, printf('%.7g', failed) AS failed
FROM parted
QUALIFY row_number() OVER (PARTITION BY rank, what ORDER BY step) = 1
ORDER BY step, what, rank
"""

_TENSOR = """
    SELECT
        t.rank, t.step, t.role, n.text AS name, t.node_id, t.row, t.artifact_id,
        coalesce(t.n_nan, 0) + coalesce(t.n_inf, 0) AS n_nonfinite, coalesce(t.absmax, t.norm) AS size, t.dtype,
        z.text AS shape
    FROM {run}.tensor AS t
    JOIN {run}.string AS n ON n.id = t.name_id
    LEFT JOIN {run}.string AS z ON z.id = t.shape_id
    WHERE t.step IS NOT NULL
    QUALIFY row_number() OVER (
        PARTITION BY t.rank, t.step, t.role, n.text, t.node_id ORDER BY t.artifact_id, t.row
    ) = 1
"""
TENSORS = f"""
{_both(_TENSOR)},
parted AS (
    SELECT
        g.rank, g.step, g.role || ' ' || g.name AS what, f.artifact_id, f.row,
        printf('absmax or norm %.7g, %d not finite, %s %s', g.size, g.n_nonfinite, g.dtype, g.shape) AS good,
        printf('absmax or norm %.7g, %d not finite, %s %s', f.size, f.n_nonfinite, f.dtype, f.shape) AS failed
    FROM g JOIN f
        ON f.rank IS NOT DISTINCT FROM g.rank AND f.step = g.step AND f.role = g.role AND f.name = g.name
        AND f.node_id IS NOT DISTINCT FROM g.node_id
    WHERE (g.n_nonfinite > 0) <> (f.n_nonfinite > 0) OR g.dtype IS DISTINCT FROM f.dtype
       OR g.shape IS DISTINCT FROM f.shape OR ({_UNEQUAL.format("size")})
)
SELECT rank, step, what, good, failed
FROM parted
QUALIFY row_number() OVER (PARTITION BY rank, what ORDER BY step, artifact_id, row) = 1
ORDER BY step, artifact_id, row, rank
"""

_COLLECTIVE = """
    SELECT
        c.rank, n.text AS process_group, c.operation, c.dtype, c.in_bytes, c.state,
        row_number() OVER (
            PARTITION BY c.rank, n.text ORDER BY c.sequence, c.p2p_sequence, c.artifact_id, c.row
        ) AS place
    FROM {run}.collective AS c
    LEFT JOIN {run}.process_group AS p ON p.artifact_id = c.artifact_id AND p.id = c.group_id
    LEFT JOIN {run}.string AS n ON n.id = p.name_id
"""
COLLECTIVES = f"""
{_both(_COLLECTIVE)},
parted AS (
    SELECT
        coalesce(g.rank, f.rank) AS rank, coalesce(g.process_group, f.process_group) AS process_group,
        coalesce(g.place, f.place) AS place,
        g.operation || coalesce(' ' || g.dtype, '') || coalesce(' ' || g.in_bytes || ' B', '') AS good,
        f.operation || coalesce(' ' || f.dtype, '') || coalesce(' ' || f.in_bytes || ' B', '') AS failed
    FROM g FULL JOIN f
        ON f.rank IS NOT DISTINCT FROM g.rank AND f.process_group IS NOT DISTINCT FROM g.process_group
        AND f.place = g.place
)
SELECT
    rank, NULL::BIGINT AS step,
    'collective ' || place || coalesce(' of group ' || process_group, '') AS what, good, failed
FROM parted
WHERE good IS DISTINCT FROM failed
QUALIFY row_number() OVER (PARTITION BY rank, process_group ORDER BY place) = 1
ORDER BY good IS NULL OR failed IS NULL, place, rank, process_group
"""

_LINE = """
    SELECT
        regexp_replace(
            left(coalesce(nullif(split_part(m.text, chr(10), 1), ''), l.signature), 160), '0x[0-9a-f]+|[0-9]+', '#', 'g'
        ) AS template,
        l.role = 'primary' OR l.role = 'symptom' AS is_trouble,
        l.rank, l.step, l.ts_ns, l.artifact_id, l.row,
        left(coalesce(nullif(split_part(m.text, chr(10), 1), ''), l.signature), 200) AS message
    FROM {run}.log_event AS l
    LEFT JOIN {run}.string AS m ON m.id = l.message_id
    WHERE l.role <> 'noise' AND coalesce(nullif(split_part(m.text, chr(10), 1), ''), l.signature) IS NOT NULL
"""
LOGS = f"""
{_both(_LINE)},
once AS (
    SELECT
        *, count(*) OVER (PARTITION BY run, template) AS n_rows,
        row_number() OVER (PARTITION BY run, template ORDER BY ts_ns NULLS LAST, artifact_id, row) AS number
    FROM (SELECT 'good' AS run, * FROM g UNION ALL SELECT 'failed' AS run, * FROM f)
    WHERE template NOT IN (SELECT template FROM g INTERSECT SELECT template FROM f)
)
SELECT
    rank, step, 'log line, ' || n_rows || ' times' AS what,
    CASE run WHEN 'good' THEN message END AS good, CASE run WHEN 'failed' THEN message END AS failed
FROM once
WHERE number = 1
ORDER BY run, NOT is_trouble, ts_ns NULLS LAST, artifact_id, row
"""

_LAST = """
    SELECT p.rank, max(s.step) AS last
    FROM {run}.step AS s JOIN {run}.proc AS p ON p.id = s.proc_id
    GROUP BY p.rank
"""
STEPS = f"""
{_both(_LAST)}
SELECT
    coalesce(g.rank, f.rank) AS rank, least(g.last, f.last) + 1 AS step, 'last step' AS what,
    g.last::VARCHAR AS good, f.last::VARCHAR AS failed
FROM g FULL JOIN f ON f.rank IS NOT DISTINCT FROM g.rank
WHERE g.last IS DISTINCT FROM f.last
ORDER BY 2, 1
"""

_OPERATOR = """
    SELECT s.rank, s.kind, left(n.text, 120) AS name, count(*) AS n_calls, sum(s.dur_ns) / 1e6 AS total_ms
    FROM {run}.slice AS s JOIN {run}.string AS n ON n.id = s.name_id
    WHERE s.kind IN ('cpu_op', 'kernel', 'memcpy', 'memset', 'runtime')
    GROUP BY s.rank, s.kind, left(n.text, 120)
"""
OPERATORS = f"""
{_both(_OPERATOR)}
SELECT
    coalesce(g.rank, f.rank) AS rank, NULL::BIGINT AS step,
    coalesce(g.kind, f.kind) || ' ' || coalesce(g.name, f.name) AS what,
    printf('%d calls, %.3f ms', g.n_calls, g.total_ms) AS good,
    printf('%d calls, %.3f ms', f.n_calls, f.total_ms) AS failed
FROM g FULL JOIN f ON f.kind = g.kind AND f.name = g.name AND f.rank IS NOT DISTINCT FROM g.rank
WHERE g.n_calls IS DISTINCT FROM f.n_calls
   OR abs(g.total_ms - f.total_ms) > greatest(1, 0.25 * greatest(g.total_ms, f.total_ms))
ORDER BY g.n_calls IS NOT DISTINCT FROM f.n_calls, abs(coalesce(g.total_ms, 0) - coalesce(f.total_ms, 0)) DESC, what, 1
"""

_DEVICE_TIME = """
    SELECT
        rank, device, sum(to_ns - ts_ns) AS span, sum(idle_ns) AS idle, sum(exposed_communication_ns) AS communication,
        sum(exposed_copy_ns) AS copies
    FROM {run}.device_time GROUP BY rank, device
"""
DEVICE_TIME = f"""
{_both(_DEVICE_TIME)}
SELECT
    g.rank, NULL::BIGINT AS step, 'time of device ' || g.device AS what,
    printf('%.0f %% idle, %.0f %% communication alone, %.0f %% copies alone',
        100.0 * g.idle / g.span, 100.0 * g.communication / g.span, 100.0 * g.copies / g.span) AS good,
    printf('%.0f %% idle, %.0f %% communication alone, %.0f %% copies alone',
        100.0 * f.idle / f.span, 100.0 * f.communication / f.span, 100.0 * f.copies / f.span) AS failed
FROM g JOIN f ON f.rank IS NOT DISTINCT FROM g.rank AND f.device = g.device
WHERE greatest(abs(g.idle / g.span - f.idle / f.span), abs(g.communication / g.span - f.communication / f.span),
    abs(g.copies / g.span - f.copies / f.span)) > 0.05
ORDER BY 1, 3
"""

_MEMORY = """
    SELECT p.rank, m.device, sum(m.total_bytes) AS held, sum(m.allocated_bytes) AS allocated
    FROM {run}.memory_segment AS m LEFT JOIN {run}.proc AS p ON p.id = m.proc_id
    GROUP BY p.rank, m.device
"""
MEMORY = f"""
{_both(_MEMORY)}
SELECT
    coalesce(g.rank, f.rank) AS rank, NULL::BIGINT AS step, 'memory of device ' || coalesce(g.device, f.device) AS what,
    printf('%.1f MiB held, %.1f MiB allocated', g.held / 1048576, g.allocated / 1048576) AS good,
    printf('%.1f MiB held, %.1f MiB allocated', f.held / 1048576, f.allocated / 1048576) AS failed
FROM g FULL JOIN f ON f.rank IS NOT DISTINCT FROM g.rank AND f.device = g.device
WHERE g.held IS DISTINCT FROM f.held OR g.allocated IS DISTINCT FROM f.allocated
ORDER BY 1, 3
"""

_NAMED_STEP = "(?i)(?:checkpoint|ckpt|step|iter|iteration)[-_=]?0*([0-9]+)"  # of a folder or file
_STORED = f"""
    SELECT
        a.path, n.text AS name, t.dtype, z.text AS shape, t.checksum, t.norm, t.picked, t.row,
        coalesce(c.step, TRY_CAST(regexp_extract(a.path, '{_NAMED_STEP}', 1) AS BIGINT)) AS step,
        coalesce(t.n_nan, 0) + coalesce(t.n_inf, 0) AS n_nonfinite
    FROM {{run}}.checkpoint_tensor AS t
    JOIN {{run}}.checkpoint AS c ON c.artifact_id = t.artifact_id
    JOIN {{run}}.artifact AS a ON a.id = t.artifact_id
    JOIN {{run}}.string AS n ON n.id = t.name_id
    LEFT JOIN {{run}}.string AS z ON z.id = t.shape_id
    QUALIFY row_number() OVER (PARTITION BY a.path, n.text ORDER BY t.row) = 1
"""
_STORED_AS = "printf('%s %s, norm %.7g, %d not finite', {0}.dtype, {0}.shape, {0}.norm, {0}.n_nonfinite)"
STORED = f"""
{_both(_STORED)},
parted AS (
    SELECT
        coalesce(g.step, f.step) AS step, coalesce(g.path, f.path) || ': ' || coalesce(g.name, f.name) AS what,
        CASE WHEN g.name IS NOT NULL THEN {_STORED_AS.format("g")} END AS good,
        CASE WHEN f.name IS NOT NULL THEN {_STORED_AS.format("f")} END AS failed,
        g.n_nonfinite IS DISTINCT FROM f.n_nonfinite AS breaks,
        g.dtype IS DISTINCT FROM f.dtype OR g.shape IS DISTINCT FROM f.shape AS is_other,
        CASE WHEN len(g.picked) = len(f.picked) THEN list_distance(g.picked, f.picked) END AS distance,
        greatest(g.norm, f.norm) AS norm,
        coalesce(f.row, g.row) AS row
    FROM g FULL JOIN f ON f.path = g.path AND f.name = g.name
    -- Only files that both kept: one that a run did not come to save says nothing of its values.
    WHERE (g.checksum, g.dtype, g.shape) IS DISTINCT FROM (f.checksum, f.dtype, f.shape)
      AND coalesce(g.path, f.path) IN (SELECT path FROM g INTERSECT SELECT path FROM f)
)
SELECT NULL::INTEGER AS rank, step, what, good, failed
FROM parted
WHERE is_other OR breaks OR norm IS NULL OR coalesce(distance > {TOLERANCE} * norm, true)
ORDER BY step NULLS LAST, NOT breaks, NOT is_other, distance / nullif(norm, 0) DESC NULLS LAST, what, row
"""

_COMPILED = """
    SELECT c.rank, c.kind, left(n.text, 120) AS name, count(*) AS n_events, coalesce(sum(c.dur_ns), 0) / 1e9 AS total_s
    FROM {run}.compile_event AS c LEFT JOIN {run}.string AS n ON n.id = c.name_id
    WHERE c.kind NOT IN ('guards', 'guard')
    GROUP BY c.rank, c.kind, left(n.text, 120)
"""
COMPILED = f"""
{_both(_COMPILED)}
SELECT
    coalesce(g.rank, f.rank) AS rank, NULL::BIGINT AS step,
    coalesce(g.kind, f.kind) || coalesce(' of ' || coalesce(g.name, f.name), '') AS what,
    printf('%d times, %.3f s', g.n_events, g.total_s) AS good,
    printf('%d times, %.3f s', f.n_events, f.total_s) AS failed
FROM g FULL JOIN f
    ON f.kind = g.kind AND f.name IS NOT DISTINCT FROM g.name AND f.rank IS NOT DISTINCT FROM g.rank
WHERE g.n_events IS DISTINCT FROM f.n_events
ORDER BY abs(coalesce(g.n_events, 0) - coalesce(f.n_events, 0)) DESC, what, 1
"""

_SEVERITIES = "['critical', 'high', 'medium', 'info']"
_FINDING = f"""
    SELECT
        rule, rank, min(step) AS step, arg_min(message, id) AS message,
        arg_min(severity, list_position({_SEVERITIES}, severity)) AS severity
    FROM {{run}}.finding GROUP BY rule, rank
"""
FINDINGS = f"""
{_both(_FINDING)}
SELECT
    coalesce(g.rank, f.rank) AS rank, coalesce(g.step, f.step) AS step,
    coalesce(g.severity, f.severity) || ' ' || coalesce(g.rule, f.rule) AS what, g.message AS good, f.message AS failed
FROM g FULL JOIN f ON f.rule = g.rule AND f.rank IS NOT DISTINCT FROM g.rank
WHERE g.rule IS NULL OR f.rule IS NULL
ORDER BY
    f.rule IS NULL,
    list_position({_SEVERITIES}, coalesce(g.severity, f.severity)),
    what,
    1
"""

COLLECTIVE_ORDER, LAST_STEPS = "collectives in order", "last steps"
# Name, query, tables of which both cases need rows for it to say anything.
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("settings and environment", SETTINGS, ("fact",)),
    ("tensors by step", TENSORS, ("tensor",)),
    ("metrics by step", METRICS, ("sample",)),
    (LAST_STEPS, STEPS, ("step",)),
    (COLLECTIVE_ORDER, COLLECTIVES, ("collective",)),
    ("stored tensors", STORED, ("checkpoint_tensor",)),
    ("log lines", LOGS, ()),
    ("compilations", COMPILED, ("compile_event",)),
    ("operators and kernels", OPERATORS, ("slice",)),
    ("device time", DEVICE_TIME, ("device_time",)),
    ("memory", MEMORY, ("memory_segment",)),
    ("findings", FINDINGS, ()),
)
# Those that can tell where the runs part, the finer ones before those that sum them up.
ORDERED: tuple[tuple[str, str], ...] = (
    ("tensors by step", TENSORS),
    ("metrics by step", METRICS),
    (COLLECTIVE_ORDER, COLLECTIVES),
    (LAST_STEPS, STEPS),
    ("stored tensors", STORED),
    ("log lines", LOGS),
    ("memory", MEMORY),
    ("operators and kernels", OPERATORS),
    ("settings and environment", SETTINGS),
)
