"""What the report says of the case itself: artifacts, warnings, facts of the job, processes, timeline, series.

All text that comes from artifacts is masked here, as in `briefing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from forensics.citations import Citations
from forensics.finding import Evidence, Verdict
from forensics.redact import mask
from forensics.report import view
from forensics.report.text import one_line

MAX_TIMELINE = 300
MAX_SERIES = 24
_TELLING, _SECOND_NS = 120, 10**9  # characters of an error that tell it from others
MAX_POINTS = 20_000  # read of a series: beyond, the lowest and highest of each stretch of it
_KEY_FACTS = (
    ("torch", "PyTorch"),
    ("cuda_version", "CUDA"),
    ("driver_version", "Driver"),
    ("python", "Python"),
    ("command", "Command"),
)


def evidence_view(evidence: Evidence, note: str = "") -> view.EvidenceView:
    said = note or mask(evidence.note)
    for kind in ("line", "byte", "row"):
        position = getattr(evidence, kind)
        if position is not None:
            return view.EvidenceView(mask(evidence.artifact), kind, position, mask(evidence.text), said)
    return view.EvidenceView(mask(evidence.artifact), "", None, mask(evidence.text), said)


def artifacts(con: duckdb.DuckDBPyConnection) -> tuple[view.ArtifactView, ...]:
    rows = con.execute(
        """
        WITH
        named AS (
            SELECT DISTINCT
                c.artifact_id,
                p.id,
                CASE WHEN p.rank IS NULL THEN 'process ' || p.id ELSE 'rank ' || p.rank END AS name
            FROM coverage AS c JOIN proc AS p ON p.id = c.proc_id
        ),
        counted AS (
            SELECT artifact_id, capability, sum(n_kept) AS n_kept
            FROM coverage GROUP BY artifact_id, capability HAVING sum(n_kept) > 0
        )
        SELECT a.path, a.format, a.bytes, a.quality,
            (SELECT string_agg(n.name, ', ' ORDER BY n.id) FROM named AS n WHERE n.artifact_id = a.id),
            (SELECT string_agg(c.capability || ' ' || c.n_kept, ', ' ORDER BY c.capability)
             FROM counted AS c WHERE c.artifact_id = a.id),
            (SELECT list(w.message ORDER BY w.code, w.message) FROM ingest_warning AS w WHERE w.artifact_id = a.id)
        FROM artifact AS a ORDER BY a.id
        """
    ).fetchall()
    return tuple(
        view.ArtifactView(
            mask(path), kind or "unknown", size, quality, procs or "", counts or "", tuple(mask(w) for w in warns or ())
        )
        for path, kind, size, quality, procs, counts, warns in rows
    )


def warnings(con: duckdb.DuckDBPyConnection) -> tuple[view.WarningView, ...]:
    rows = con.execute(
        "SELECT a.path, w.line, w.byte, w.message, w.hides"
        " FROM ingest_warning AS w JOIN artifact AS a ON a.id = w.artifact_id"
        " ORDER BY a.id, w.line, w.byte, w.code, w.message"
    ).fetchall()
    return tuple(
        view.WarningView(
            mask(path),
            f"line {line}" if line is not None else f"byte {byte}" if byte is not None else "",
            mask(text),
            hides,
        )
        for path, line, byte, text, hides in rows
    )


def job_facts(con: duckdb.DuckDBPyConnection) -> tuple[tuple[str, str], ...]:
    one = con.execute(
        "SELECT count(*), count(DISTINCT rank), max(world_size), count(DISTINCT host), max(attempt) + 1 FROM proc"
    ).fetchone()
    procs, ranks, world, hosts, attempts = one or (0, 0, None, 0, None)
    facts = [("Processes", str(procs))]
    if ranks:
        facts.append(("Ranks seen", f"{ranks} of {world}" if world else str(ranks)))
    if hosts:
        facts.append(("Hosts", str(hosts)))
    runs = [
        row[0] for row in con.execute("SELECT DISTINCT run FROM artifact WHERE run IS NOT NULL ORDER BY 1").fetchall()
    ]
    if runs:
        facts.append(("Runs", mask(", ".join(runs))[:200]))
    elif attempts and attempts > 1:
        facts.append(("Attempts", str(attempts)))
    for key, label in _KEY_FACTS:
        values = con.execute(
            "SELECT DISTINCT value FROM fact WHERE lower(key) = ? ORDER BY value LIMIT 3", [key]
        ).fetchall()
        if values:
            short = [v[0].split(" (")[0] if key == "python" else v[0] for v in values]
            facts.append((label, mask(", ".join(dict.fromkeys(short)))[:200]))
    steps = con.execute("SELECT max(step) FROM step").fetchone()
    if steps and steps[0] is not None:
        facts.append(("Last step", str(steps[0])))
    return tuple(facts)


def processes(con: duckdb.DuckDBPyConnection) -> tuple[view.ProcessView, ...]:
    rows = con.execute(
        """
        WITH
        moment AS (
            SELECT proc_id, ts_ns FROM log_event
            UNION ALL SELECT proc_id, ts_ns FROM slice
            UNION ALL SELECT proc_id, ts_ns FROM sample
        ),
        span AS (
            SELECT proc_id, min(ts_ns) AS lo, max(ts_ns) AS hi FROM moment WHERE ts_ns > 0 GROUP BY proc_id
        ),
        ending AS (
            SELECT proc_id,
                min(list_position(['proof', 'strong', 'indication'], strength) || result || ': ' || detail) AS words
            FROM outcome GROUP BY proc_id
        )
        SELECT p.attempt, p.host, p.rank, coalesce(p.start_ns, t.lo), coalesce(p.end_ns, t.hi), e.words
        FROM proc AS p
        LEFT JOIN span AS t ON t.proc_id = p.id
        LEFT JOIN ending AS e ON e.proc_id = p.id
        ORDER BY p.id LIMIT 5000
        """
    ).fetchall()
    return tuple(
        view.ProcessView(attempt, host or "", rank, mask(str(result or "0unknown"))[1:300], first, last)
        for attempt, host, rank, first, last, result in rows
    )


def timeline(con: duckdb.DuckDBPyConnection, citations: Citations, verdict: Verdict) -> tuple[view.Moment, ...]:
    rows = con.execute(
        """
        SELECT e.ts_ns, e.rank, coalesce(e.class, e.role),
            error_text(e.exception, coalesce(e.message, e.signature)), e.artifact_id, e.line, e.byte
        FROM log AS e JOIN artifact AS a ON a.id = e.artifact_id
        WHERE e.ts_ns IS NOT NULL AND e.role IN ('primary', 'symptom', 'secondary')
          -- One axis: times of clocks that cannot be compared with it would stand in an order that nobody knows.
          AND a.timeline IS NOT DISTINCT FROM (
              SELECT b.timeline FROM log_event AS f JOIN artifact AS b ON b.id = f.artifact_id
              WHERE f.ts_ns IS NOT NULL AND f.role IN ('primary', 'symptom', 'secondary')
              GROUP BY b.timeline ORDER BY count(*) DESC, b.timeline LIMIT 1
          )
        ORDER BY e.ts_ns, e.artifact_id, e.row LIMIT ?
        """,
        [MAX_TIMELINE],
    ).fetchall()
    moments, shown_on = [], {row[4] for row in rows}
    for members in told_once(rows):
        ts, rank, kind, label, artifact_id, line, byte = members[0]
        cited = citations.cite({"artifact_id": artifact_id, "line": line, "byte": byte, "text": label})
        shown = one_line(mask(str(label)), 240) + (f" (in {len(members)} places)" if len(members) > 1 else "")
        moments.append(view.Moment(ts, rank, kind, shown, evidence_view(cited) if cited else None))
    # The cause stands in its place, also where no log has a line of it.
    axis = con.execute("SELECT DISTINCT timeline FROM artifact WHERE id = ANY(?)", [list(shown_on)]).fetchall()
    for root in verdict.root_causes:
        if root.ts_ns is not None and root.evidence and (not axis or (root.timeline,) in axis):
            place = evidence_view(root.evidence[0])
            moments.append(view.Moment(root.ts_ns, root.rank, "root cause", one_line(mask(root.message), 240), place))
    return tuple(sorted(moments, key=lambda moment: moment.ts_ns))


def told_once(rows: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Rows (time, rank, kind, words, …) in groups that tell the same: of one error many files may, cut as they please.

    Launchers note whole seconds, so that what a rank said within one of them is one event.
    """
    groups: list[list[tuple[Any, ...]]] = []
    last: dict[tuple[Any, str], list[tuple[Any, ...]]] = {}
    for row in rows:
        key = row[1], str(row[3])[:_TELLING]
        if key in last and row[0] - last[key][0][0] <= _SECOND_NS:
            last[key].append(row)
        else:
            last[key] = [row]
            groups.append(last[key])
    return groups


def series(con: duckdb.DuckDBPyConnection) -> tuple[view.SeriesView, ...]:
    rows = con.execute(
        """
        WITH
        reading AS (
            SELECT name, rank, step, value, artifact_id, row FROM metric
            WHERE name IN ('loss', 'grad_norm', 'loss_scale') AND step IS NOT NULL
            UNION ALL
            SELECT 'health_score', rank, step, score, -1, -1 FROM health_score
            WHERE proc_id IN (SELECT proc_id FROM health_part WHERE score < 100)
        ),
        drawn AS (
            SELECT name, rank, count(*) AS n_points FROM reading
            GROUP BY name, rank HAVING count(DISTINCT step) > 1
            ORDER BY name = 'health_score', name DESC, rank LIMIT $n_series
        ),
        point AS (
            SELECT m.name, m.rank, m.step, m.value, m.artifact_id, m.row,
                row_number() OVER (PARTITION BY m.name, m.rank ORDER BY m.step, m.artifact_id, m.row)
                    // greatest(2 * d.n_points // $n_points, 1) AS bucket
            FROM reading AS m JOIN drawn AS d ON d.name = m.name AND d.rank IS NOT DISTINCT FROM m.rank
        )
        SELECT name, rank, step, value FROM point
        QUALIFY NOT isfinite(value)
            OR value = min(value) FILTER (WHERE isfinite(value)) OVER (PARTITION BY name, rank, bucket)
            OR value = max(value) FILTER (WHERE isfinite(value)) OVER (PARTITION BY name, rank, bucket)
        ORDER BY name = 'health_score', name DESC, rank, step, artifact_id, row
        """,
        {"n_series": MAX_SERIES, "n_points": MAX_POINTS},
    ).fetchall()
    grouped: dict[tuple[str, int | None], dict[float, float]] = {}
    for name, rank, step, value in rows:
        grouped.setdefault((name, rank), {})[float(step)] = value
    return tuple(view.SeriesView(name, "", rank, tuple(points.items())) for (name, rank), points in grouped.items())
