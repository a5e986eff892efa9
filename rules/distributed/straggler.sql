/*
title = "One rank comes last to the collectives and makes all others wait"
severity = "high"
role = "performance"
scope = "job"
proves = """
In most of the recorded collectives this rank arrived last, by more than the clocks' error, and the time between the arrival of the
last but one and its own adds up to a tenth of the recorded time or more. Arrivals are the calls in flight recorder dumps, or the
starts of kernels in traces; who waits long is not asked, since those are the others."""
cannot_prove = """
Why, beyond what is recorded of that rank and its peers in the same steps. Where hosts differ and their clocks are not
known well enough, nothing is said."""
message = "{who} came last to {n_last} of {n:# collective|# collectives}; its peers waited {lost:duration} of {span:duration} for it ({share:percent}): {why}"
fix = "{remedy}"
causes = [{ state = "throughput-low", of = "job" }]
requires = [{ state = "input-stalled", of = "rank" }]
references = [
    "https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html",
]

[thresholds.min_collectives]
value = 8
unit = "recorded collectives"
why = "fewer may be start-up"

[thresholds.min_last_ratio]
value = 0.75
unit = "collectives that the rank came last to / those that anybody came last to by more than the clocks' error"
why = "by chance each of n ranks is last in one of n"

[thresholds.min_lost_ratio]
value = 0.1
unit = "time that the others waited for it / recorded time"
measured = "share"
why = "a tenth of time is what makes a finding high"

[thresholds.min_unexplained_ratio]
value = 0.2
unit = "the same, where what the rank did in that time is not on record"
why = "small steps on a busy host lose a tenth to chance"

[thresholds.max_single_ratio]
value = 0.5
unit = "longest single wait / all of them"
why = "one long wait is an event, such as a checkpoint, and no slow rank"

[thresholds.min_explained_ratio]
value = 0.5
unit = "time that the rank spent more than its peers' median on one thing / time that they waited for it"
why = "the larger part"

[variant.arrivals]
needs = ["collective|collective.profiler"]
strength = "strong"
*/
-- variant: arrivals
WITH
source_span AS (
    SELECT
        attempt,
        source,
        count(DISTINCT key) AS n,
        count(*) FILTER (WHERE lag_ns > 0) AS n_told,
        count(DISTINCT rank) AS n_ranks,
        max(ts_ns) - min(ts_ns) AS span_ns,
        min(ts_ns) AS from_ns,
        max(ts_ns) AS to_ns,
        min(step) AS first_step,
        max(step) AS last_step
    FROM collective_arrival
    GROUP BY attempt, source
),
late AS (
    SELECT
        attempt,
        source,
        rank,
        min(proc_id) AS proc_id,
        count(*) AS n_last,
        sum(lag_ns) AS lost_ns,
        max(lag_ns) AS most_ns,
        list({'artifact_id': artifact_id, 'row': row, 'step': step, 'ts_ns': ts_ns, 'lag_ns': lag_ns, 'operation': operation}
            ORDER BY lag_ns DESC, artifact_id, row)[1:4] AS places
    FROM collective_arrival
    WHERE lag_ns > 0
    GROUP BY attempt, source, rank
),
straggler AS (
    SELECT l.*, s.* EXCLUDE (attempt, source)
    FROM late AS l
    JOIN source_span AS s ON s.attempt = l.attempt AND s.source = l.source
    WHERE s.n >= $min_collectives AND l.n_last >= $min_last_ratio * s.n_told AND l.n_last >= 0.5 * $min_collectives
      AND l.lost_ns >= $min_lost_ratio * s.span_ns AND l.most_ns <= $max_single_ratio * l.lost_ns
    QUALIFY row_number() OVER (PARTITION BY l.attempt ORDER BY l.lost_ns / s.span_ns DESC, l.source) = 1
),
-- What each rank spent time on: seconds a step out of metrics, and out of traces.
told AS (
    SELECT
        p.attempt,
        m.rank,
        CASE
            WHEN m.name IN ('data_seconds', 'data_time', 'dataloader_time', 'data_loading_time', 'outside_seconds') THEN 'input'
            WHEN m.name = 'gc_seconds' THEN 'gc'
            WHEN m.name = 'run_delay_seconds' THEN 'host'
        END AS part,
        avg(m.value) * 1e9 AS spent_ns,
        count(*) AS n_steps,
        min_by(m.artifact_id, m.row) AS artifact_id,
        min(m.row) AS row
    FROM metric AS m
    JOIN proc AS p ON p.id = m.proc_id
    JOIN straggler AS s ON s.attempt = p.attempt
    WHERE m.source = 'metrics' AND m.step IS NOT NULL
      AND m.name IN (
        'data_seconds', 'data_time', 'dataloader_time', 'data_loading_time', 'outside_seconds', 'gc_seconds', 'run_delay_seconds'
      )
    GROUP BY p.attempt, m.rank, part
    UNION ALL
    SELECT
        p.attempt,
        c.rank,
        CASE
            WHEN n.text LIKE 'enumerate(DataLoader)%' THEN 'input'
            WHEN c.kind = 'python_function' THEN 'gc'
            WHEN c.kind IN ('kernel', 'memcpy') THEN 'kernel'
            ELSE 'operators'
        END AS part,
        sum(c.dur_ns) / count(DISTINCT c.step) AS spent_ns,
        count(DISTINCT c.step) AS n_steps,
        min(c.artifact_id) AS artifact_id,
        arg_max(c.row, c.dur_ns) AS row
    FROM slice AS c
    JOIN proc AS p ON p.id = c.proc_id
    JOIN straggler AS s ON s.attempt = p.attempt
    JOIN string AS n ON n.id = c.name_id
    WHERE c.step IS NOT NULL AND c.dur_ns IS NOT NULL
      AND (
        n.text LIKE 'enumerate(DataLoader)%'
        OR (c.kind = 'python_function' AND regexp_full_match(n.text, '.*(gc\.collect|built-in function collect)>?'))
        OR (c.kind IN ('kernel', 'memcpy') AND NOT regexp_matches(n.text, '(?i)nccl|rccl'))
        OR (c.kind = 'cpu_op' AND c.parent_row IS NULL)
      )
    GROUP BY p.attempt, c.rank, part
),
spent AS (
    SELECT * FROM told
    WHERE part IS NOT NULL
    QUALIFY row_number() OVER (PARTITION BY attempt, rank, part ORDER BY spent_ns DESC, artifact_id, row) = 1
),
excess AS (
    SELECT
        s.attempt,
        o.part,
        o.spent_ns - median(p.spent_ns) AS more_ns,
        o.spent_ns,
        median(p.spent_ns) AS peers_ns,
        o.artifact_id,
        o.row
    FROM straggler AS s
    JOIN spent AS o ON o.attempt = s.attempt AND o.rank = s.rank
    JOIN spent AS p ON p.attempt = s.attempt AND p.part = o.part AND p.rank <> s.rank
    GROUP BY s.attempt, o.part, o.spent_ns, o.artifact_id, o.row
),
throttled AS (
    SELECT DISTINCT s.attempt
    FROM straggler AS s
    JOIN proc AS p ON p.id = s.proc_id
    JOIN metric AS m ON m.device = coalesce(p.device, p.local_rank)
    LEFT JOIN proc AS o ON o.id = m.proc_id
    WHERE m.name IN (
        'clocks_event_reasons.hw_thermal_slowdown', 'clocks_event_reasons.hw_power_brake_slowdown',
        'clocks_event_reasons.hw_slowdown', 'clocks_event_reasons.sw_thermal_slowdown'
    )
      AND m.value > 0 AND (o.host IS NULL OR p.host IS NULL OR o.host = p.host)
),
-- Steps that the lost time is spread over: those of the metrics in which it lies, else the rank's late collectives.
reason AS (
    SELECT
        e.*,
        e.more_ns / (s.lost_ns / greatest(1, coalesce(s.last_step - s.first_step + 1, s.n_last))) AS explained
    FROM excess AS e
    JOIN straggler AS s ON s.attempt = e.attempt
    QUALIFY row_number() OVER (
        PARTITION BY e.attempt ORDER BY CASE e.part WHEN 'operators' THEN 1 ELSE 0 END, e.more_ns DESC, e.part
    ) = 1
),
judged AS (
    SELECT
        s.*,
        r.spent_ns,
        r.peers_ns,
        r.artifact_id AS reason_artifact_id,
        r.row AS reason_row,
        CASE
            WHEN r.explained >= $min_explained_ratio AND r.part <> 'kernel' THEN r.part
            WHEN t.attempt IS NOT NULL THEN 'throttled'
            WHEN r.explained >= $min_explained_ratio THEN 'kernel'
        END AS part
    FROM straggler AS s
    LEFT JOIN reason AS r ON r.attempt = s.attempt
    LEFT JOIN throttled AS t ON t.attempt = s.attempt
)
SELECT
    j.places[1].artifact_id AS artifact_id,
    j.places[1].row AS row,
    'collective' AS "table",
    j.proc_id,
    j.rank,
    j.first_step AS step,
    j.places[1].ts_ns AS ts_ns,
    j.n_last,
    j.n,
    j.lost_ns AS lost,
    j.span_ns AS span,
    j.lost_ns / j.span_ns AS share,
    j.places[1].operation AS op,
    CASE
        WHEN j.part = 'throttled' THEN 'nvidia-smi shows its GPU slowed down by heat or power'
        WHEN j.part IS NULL THEN 'what it did in that time is not on record'
        ELSE 'it spent ' || CAST(round(j.spent_ns / 1e6, 1) AS VARCHAR) || ' ms of a step '
            || CASE j.part
                WHEN 'input' THEN 'waiting for its input'
                WHEN 'gc' THEN 'in Python''s garbage collector'
                WHEN 'host' THEN 'ready to run while its host''s processors were busy with others'
                WHEN 'kernel' THEN 'in kernels and copies on its device'
                ELSE 'in operators on its host'
            END || ', its peers ' || CAST(round(j.peers_ns / 1e6, 1) AS VARCHAR) || ' ms'
    END AS why,
    CASE j.part
        WHEN 'input' THEN 'Look at what this rank reads: its files, their sizes and place, the work for each sample; give the loader more workers, or even the shards out.'
        WHEN 'gc' THEN 'Call gc.freeze() after start-up and gc.collect() at the same step on all ranks, with automatic collection switched off.'
        WHEN 'host' THEN 'Look for other processes and threads on this host (top -H, OMP_NUM_THREADS, loader workers) and give each rank its own cores.'
        WHEN 'throttled' THEN 'Check cooling and power of this GPU; run its rank elsewhere until then.'
        WHEN 'kernel' THEN 'Compare the shapes of its batches with those of its peers, and the clocks of its GPU (nvidia-smi -q -d CLOCK,PERFORMANCE).'
        WHEN 'operators' THEN 'Compare the shapes of its batches and what it computes on the host with its peers.'
        ELSE 'Record a profiler trace of the same steps on this rank and on one of its peers, with times of the input.'
    END AS remedy,
    list_concat(
        [{'artifact_id': p.artifact_id, 'row': p.row, 'note': 'last, ' || CAST(p.lag_ns // 1000000 AS VARCHAR) || ' ms'} FOR p IN j.places[2:4]]
    ) AS evidence,
    j.rank AS fault,
    coalesce(j.part, 'unknown') AS key
FROM judged AS j
WHERE j.part IS NOT NULL OR j.lost_ns >= $min_unexplained_ratio * j.span_ns
ORDER BY j.attempt, j.rank;
