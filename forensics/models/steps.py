"""Steps of each process: adds those that metrics and logs number to those that profilers marked.

Reads sample and log_event; writes step.
"""

from __future__ import annotations

import duckdb


def derive_steps(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(
        """
        INSERT INTO step
        SELECT s.proc_id, s.step, NULL, max(s.ts_ns), CASE WHEN bool_and(s.source = 'log') THEN 'log' ELSE 'metrics' END
        FROM sample AS s
        WHERE s.step IS NOT NULL
          AND s.proc_id IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM step AS k WHERE k.proc_id = s.proc_id AND k.step = s.step)
        GROUP BY s.proc_id, s.step
        ORDER BY s.proc_id, s.step
        """
    )
