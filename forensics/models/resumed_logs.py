"""Tells that one log goes on where another broke off: the job was started again, and each log holds one life of it.

Reads sample, log_event, proc, attempt_told; adds to proc and attempt_told, moves what later logs say to processes of
the next attempts. A log goes on where another broke off when it loads a checkpoint before its first step, begins inside
the steps of the other or right behind them, and comes further or is later by its times; the other ends in a failure or
was stopped. Of several that could be the next life of one log none is taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import duckdb

from forensics.models.attempt_times import give

_LOGS = """
WITH
series AS (
    SELECT s.artifact_id, min(s.proc_id) AS proc_id, min(s.step) AS first_step, max(s.step) AS last_step,
        count(DISTINCT s.step) AS n_steps, min(s.line) AS line, min(s.ts_ns) AS from_ns, max(s.ts_ns) AS to_ns
    FROM sample AS s
    WHERE s.step IS NOT NULL AND s.line IS NOT NULL AND s.source IN ('log', 'metrics')
      AND s.artifact_id NOT IN (SELECT artifact_id FROM attempt_told)
    GROUP BY s.artifact_id HAVING count(DISTINCT s.proc_id) = 1
),
ends AS (
    SELECT artifact_id,
        max(line) FILTER (class = 'outcome.completed') AS completed,
        max(line) FILTER (
            role IN ('primary', 'symptom', 'secondary') AND coalesce(fields ->> 'handled', 'false') <> 'true'
            AND (exception IS NOT NULL OR level = 'fatal' OR class SIMILAR TO '(sched|crash|process|mem\\.host)\\..*')
            OR class = 'process.signal'
        ) AS failed,
        min(line) FILTER (class = 'ckpt.loaded') AS loaded
    FROM log WHERE role <> 'noise' GROUP BY artifact_id
)
SELECT x.artifact_id, x.proc_id, p.rank, p.host, x.first_step, x.last_step, x.n_steps, x.from_ns, x.to_ns,
    coalesce(e.loaded <= x.line, false), coalesce(e.failed > coalesce(e.completed, 0), false)
FROM series AS x
JOIN proc AS p ON p.id = x.proc_id
LEFT JOIN ends AS e ON e.artifact_id = x.artifact_id
WHERE p.attempt = 0 AND p.attempt_origin IS NULL
ORDER BY x.artifact_id
"""
_MAX_LOGS = 20_000
_MOST_LIVES = 200  # logs of one rank, or of none: more are no lives of one job


@dataclass(frozen=True)
class _Log:
    artifact_id: int
    proc_id: int
    rank: int | None
    host: str | None
    first_step: int
    last_step: int
    n_steps: int
    from_ns: int | None
    to_ns: int | None
    resumes: bool
    broke_off: bool

    def goes_on_after(self, other: _Log) -> bool:
        if self.rank != other.rank or not (self.resumes and other.broke_off):
            return False
        between = (other.last_step - other.first_step) // max(1, other.n_steps - 1)  # steps from one line to the next
        if not other.first_step < self.first_step <= other.last_step + between + 1:
            return False
        if self.from_ns is None or other.to_ns is None:
            return self.last_step > other.last_step
        return self.from_ns > other.to_ns


def follow_resumed_logs(con: duckdb.DuckDBPyConnection) -> None:
    logs = [_Log(*row) for row in con.execute(_LOGS).fetchmany(_MAX_LOGS)]
    before = _before(logs)
    for log in sorted(before, key=lambda log: log.first_step):
        earlier, attempt = before[log], 1
        while earlier in before:
            earlier, attempt = before[earlier], attempt + 1
        give(con, log.artifact_id, log.proc_id, attempt, "TRUE", [], whole=True)
        con.executemany("INSERT INTO attempt_told VALUES (?)", [[log.artifact_id], [earlier.artifact_id]])
        con.execute("UPDATE proc SET attempt_origin = 'content' WHERE id = ?", [earlier.proc_id])


def _before(logs: list[_Log]) -> dict[_Log, _Log]:
    """For each log that goes on where others broke off, the last of them."""
    by_rank: dict[int | None, list[_Log]] = {}
    for log in logs:
        by_rank.setdefault(log.rank, []).append(log)
    found = {}
    for of_rank in by_rank.values():
        if len(of_rank) > _MOST_LIVES:
            continue
        ended = [log for log in of_rank if log.broke_off]
        for log in of_rank:
            if log.resumes:
                earlier = [other for other in ended if other is not log and log.goes_on_after(other)]
                if earlier:
                    found[log] = max(earlier, key=lambda other: (other.first_step, other.from_ns or 0))
    taken = Counter(found.values())
    return {log: other for log, other in found.items() if taken[other] == 1}
