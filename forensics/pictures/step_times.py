"""How long each rank took for each step: a straggler is a row, a stall of all is a column."""

from __future__ import annotations

import duckdb

from forensics.pictures.grids import cells, columns
from forensics.report.pictures import GridView

MAX_RANKS = 64


def read(con: duckdb.DuckDBPyConnection) -> list[GridView]:
    """By the source that knows most steps; of two that know as many, the one that measures most directly."""
    sources = ((_PRINTED, "as the job measured it"), (_MARKED, "as its marks tell"), (_BETWEEN, "between its metrics"))
    known = [(con.execute(sql).fetchall(), how) for sql, how in sources]
    rows, how = max(known, key=lambda source: len(source[0]))
    steps = sorted({step for _, step, _ in rows})
    return [_grid(rows, steps, how)] if len(steps) > 2 else []


def _grid(rows: list[tuple[int, int, float]], steps: list[int], how: str) -> GridView:
    ranks = sorted({rank for rank, _, _ in rows})
    shown = ranks[:MAX_RANKS]
    firsts, every = columns(steps)
    return GridView(
        name="Step time",
        unit="seconds",
        row_word="rank",
        rows=tuple("job" if rank < 0 else f"rank {rank}" for rank in shown),
        columns=tuple(firsts),
        cells=cells(rows, shown, steps, every),
        n_rows_hidden=len(ranks) - len(shown),
        per_column=every,
        log=True,
        how=how,
    )


_PRINTED = """
    SELECT coalesce(rank, -1), step, max(value) FROM metric
    WHERE name = 'step_seconds' AND step IS NOT NULL AND isfinite(value) AND value >= 0
    GROUP BY ALL ORDER BY ALL
"""
_MARKED = """
    SELECT coalesce(p.rank, -1), s.step, max(s.end_ns - s.start_ns) / 1e9
    FROM step AS s JOIN proc AS p ON p.id = s.proc_id
    WHERE s.start_ns IS NOT NULL AND s.end_ns >= s.start_ns
    GROUP BY ALL ORDER BY ALL
"""
# From the first value of a step to the first of the next.
_BETWEEN = """
    WITH begun AS (
        SELECT coalesce(rank, -1) AS rank, step, max(ts_ns) AS ts_ns FROM metric
        WHERE step IS NOT NULL AND ts_ns IS NOT NULL AND name IN ('loss', 'grad_norm')
        GROUP BY ALL
    ),
    passed AS (
        SELECT rank, step, ts_ns - lag(ts_ns) OVER w AS dur_ns, step - lag(step) OVER w AS n
        FROM begun WINDOW w AS (PARTITION BY rank ORDER BY step)
    )
    SELECT rank, step, dur_ns / 1e9 FROM passed WHERE n = 1 AND dur_ns >= 0 ORDER BY ALL
"""
