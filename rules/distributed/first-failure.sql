/*
title = "One rank failed before the others"
severity = "critical"
scope = "job"
proves = """
Of the ranks that failed, this one's own error (not a timeout and not a lost connection) carries the earliest time; the
others failed after it or only waited for it. The first row of torchrun's table, its "first observed failure", is held
against that order: it goes by when each process's error file was written, to the second."""
cannot_prove = """
Why it failed beyond what its own error says. Where clocks of hosts differ by more than the gap, the order is open."""
message = "{who} failed first{at_step}: {error}{launcher}"
fix = "Start with this rank's own traceback; what the other ranks print is its echo."
causes = [{ state = "rank-gone", of = "rank" }]
requires = [{ state = "rank-failed", of = "rank" }]
references = ["https://docs.pytorch.org/docs/stable/elastic/errors.html"]

[thresholds.min_lead_ms]
value = 1
unit = "ms between the first failure and the next"
why = "within a millisecond the order of two processes' messages means nothing"

[variant.log]
needs = ["log_event"]
strength = "strong"
*/
-- variant: log
WITH
failure AS (
    SELECT
        e.*,
        coalesce(CAST(e.fields ->> 'rank' AS INTEGER), e.rank) AS failed_rank,
        a.clock_error_ns,
        e.class LIKE 'comm.%' OR e.role = 'symptom' OR e.role = 'secondary' AS is_echo,
        error_text(e.exception, coalesce(e.message, e.signature, 'unknown error')) AS error
    FROM log AS e
    JOIN artifact AS a ON a.id = e.artifact_id
    WHERE e.role IN ('primary', 'symptom', 'secondary')
      AND coalesce(e.fields ->> 'handled', 'false') <> 'true'
      AND coalesce(e.class, '') NOT LIKE 'outcome.%'
      AND coalesce(e.class, '') NOT LIKE 'sched.%'
      AND coalesce(e.class, '') NOT IN ('meta', 'numerics.divergence')
      AND (e.exception IS NOT NULL OR e.level = 'fatal' OR e.class LIKE 'crash.%' OR e.class LIKE 'comm.%' OR e.source = 'torchrun')
),
failed_rank AS (
    SELECT
        attempt,
        failed_rank,
        bool_and(is_echo) AS only_echoes,
        max(clock_error_ns) AS error_ns,
        min(artifact_id) AS from_artifact,
        max(artifact_id) AS to_artifact,
        -- Stamps of whole seconds (launchers, error files) count only where nothing finer is known.
        coalesce(min(ts_ns) FILTER (WHERE ts_ns % 1000000000 <> 0), min(ts_ns)) AS first_ns,
        coalesce(
            min(ts_ns) FILTER (WHERE NOT is_echo AND ts_ns % 1000000000 <> 0), min(ts_ns) FILTER (WHERE NOT is_echo)
        ) AS own_ns
    FROM failure
    WHERE failed_rank IS NOT NULL
    GROUP BY attempt, failed_rank
),
lead AS (
    SELECT
        f.attempt,
        f.failed_rank,
        f.own_ns,
        count(o.failed_rank) AS n_others,
        -- Less what both clocks may err, unless one file tells of both ranks.
        min(
            coalesce(o.own_ns, o.first_ns)
            - CASE
                WHEN f.from_artifact = f.to_artifact AND o.from_artifact = o.to_artifact AND f.to_artifact = o.to_artifact THEN 0
                ELSE coalesce(f.error_ns, 0) + coalesce(o.error_ns, 0)
            END
        ) - f.own_ns AS lead_ns,
        bool_and(o.only_echoes) AS others_only_echo
    FROM failed_rank AS f
    JOIN failed_rank AS o ON o.attempt IS NOT DISTINCT FROM f.attempt AND o.failed_rank <> f.failed_rank
    WHERE NOT f.only_echoes
    GROUP BY f.attempt, f.failed_rank, f.own_ns
),
-- The first word of another rank, after the last that a rank has its lead on.
next_one AS (
    SELECT
        l.attempt,
        l.failed_rank,
        min_by(
            {
                'artifact_id': o.artifact_id,
                'row': o.row,
                'line': o.line,
                'rank': o.failed_rank,
                'after': CASE WHEN o.ts_ns % 1000000000 <> 0 AND l.own_ns % 1000000000 <> 0
                    THEN round((o.ts_ns - l.own_ns) / 1e6, 1) || ' ms later, ' ELSE '' END
            },
            (o.ts_ns % 1000000000 = 0, o.ts_ns, o.failed_rank, o.artifact_id, o.row)
        ) AS at
    FROM lead AS l
    JOIN failure AS o ON o.attempt IS NOT DISTINCT FROM l.attempt AND o.failed_rank <> l.failed_rank AND o.ts_ns >= l.own_ns
    GROUP BY l.attempt, l.failed_rank
),
-- What launchers call the first failure, each of its own node; and what the ranks' own words say of it.
launcher AS (
    SELECT
        l.attempt,
        l.failed_rank,
        CASE
            WHEN bool_or(n.named_rank = l.failed_rank) THEN '; torchrun''s first row names it too'
            ELSE '; torchrun''s first row names rank ' || min(n.named_rank)
                || CASE
                    WHEN bool_and(f.only_echoes) THEN ', which only waited for another or lost its connection'
                    WHEN l.lead_ns >= $min_lead_ms * 1000000 THEN ', whose own error is later by the clocks'
                    ELSE ''
                END
        END AS said,
        list({ 'artifact_id': n.artifact_id, 'row': n.row, 'line': n.line, 'note': 'torchrun''s first row: rank ' || n.named_rank } ORDER BY n.artifact_id, n.row)[:4] AS evidence
    FROM lead AS l
    JOIN (SELECT *, CAST(fields ->> 'rank' AS INTEGER) AS named_rank FROM log WHERE signature = 'torchrun-root-cause') AS n
        ON n.attempt IS NOT DISTINCT FROM l.attempt AND n.named_rank IS NOT NULL
    LEFT JOIN failed_rank AS f ON f.attempt IS NOT DISTINCT FROM l.attempt AND f.failed_rank = n.named_rank
    GROUP BY l.attempt, l.failed_rank, l.lead_ns
)
SELECT
    e.artifact_id,
    e.row,
    e.proc_id,
    l.failed_rank AS rank,
    e.step,
    e.ts_ns,
    e.line,
    briefly(e.error, 300) AS error,
    e.source <> 'torchrun' AND coalesce(e.fields ->> 'via', '') <> 'torchrun' AS is_own,
    u.function || ' (' || u.file || ':' || u.line || ')' AS where_in_code,
    l.n_others AS n_other_failed_ranks,
    -- Against itself torchrun's table is no check.
    CASE WHEN is_own THEN coalesce(w.said, '') ELSE '' END AS launcher,
    'the error of rank ' || l.failed_rank AS note,
    list_concat(
        CASE WHEN x.at IS NOT NULL
            THEN [{
                'artifact_id': x.at.artifact_id,
                'row': x.at.row,
                'line': x.at.line,
                'note': 'the next to tell of an error, ' || x.at.after || 'rank ' || x.at.rank
            }]
        END,
        CASE WHEN is_own THEN w.evidence END
    ) AS evidence,
    coalesce(e.exception, e.signature) AS key
FROM lead AS l
JOIN failure AS e ON e.attempt IS NOT DISTINCT FROM l.attempt AND e.failed_rank = l.failed_rank AND NOT e.is_echo
LEFT JOIN next_one AS x ON x.attempt IS NOT DISTINCT FROM l.attempt AND x.failed_rank = l.failed_rank
LEFT JOIN launcher AS w ON w.attempt IS NOT DISTINCT FROM l.attempt AND w.failed_rank = l.failed_rank
LEFT JOIN frame AS k ON k.id = e.stack_id
LEFT JOIN frame AS u ON u.id = coalesce(k.user_stack_id, k.id)
WHERE (l.lead_ns >= $min_lead_ms * 1000000 OR l.others_only_echo)
QUALIFY row_number() OVER (
    PARTITION BY l.attempt
    ORDER BY
        l.own_ns NULLS LAST, l.failed_rank, (e.step IS NULL), (e.stack_id IS NULL), e.ts_ns NULLS LAST, e.artifact_id, e.row
) = 1
ORDER BY e.ts_ns, e.artifact_id, e.row;
