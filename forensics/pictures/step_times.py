"""How long each rank took for each step: a straggler is a row, a stall of all is a column."""

from __future__ import annotations

from statistics import fmean, median, median_low

import duckdb

from forensics.pictures.grids import cells, columns
from forensics.report.pictures import GridView

MAX_RANKS = 64
# Of a step that one rank spends more than its peers on one thing: what makes a straggler a finding of severity high.
_MIN_SHARE = 0.1
_PARTS = {"input": "Time on input", "gc": "Time of the garbage collector", "host": "Time waiting for a processor"}


def read(con: duckdb.DuckDBPyConnection) -> list[GridView]:
    """What one rank spends more time on than its peers, where it is on record; then the whole steps.

    Whole steps are read from the source that knows most; of two that know as many, the one that measures most directly.
    """
    sources = ((_PRINTED, "as the job measured it"), (_MARKED, "as its marks tell"), (_BETWEEN, "between its metrics"))
    known = [(con.execute(sql).fetchall(), how) for sql, how in sources]
    rows, how = max(known, key=lambda source: len(source[0]))
    if len({step for _, step, _ in rows}) < 3:
        return []
    return [*_uneven_part(con, median(value for _, _, value in rows)), _grid("Step time", rows, how)]


def _uneven_part(con: duckdb.DuckDBPyConnection, step_seconds: float) -> list[GridView]:
    """The part of the step on which one rank's mean stands out most from the middle of all."""
    found: dict[str, list[tuple[int, int, float]]] = {}
    for part, rank, step, value in con.execute(_SPENT).fetchall():
        found.setdefault(part, []).append((rank, step, value))
    uneven = []
    for part, rows in found.items():
        means = [fmean(v for r, _, v in rows if r == rank) for rank in sorted({rank for rank, _, _ in rows})]
        more = max(means) - median_low(means)
        if len(means) > 1 and len({step for _, step, _ in rows}) > 2 and more >= _MIN_SHARE * step_seconds:
            uneven.append((more, part))
    return [_grid(_PARTS[max(uneven)[1]], found[max(uneven)[1]], "as metrics and traces tell")] if uneven else []


def _grid(name: str, rows: list[tuple[int, int, float]], how: str) -> GridView:
    steps = sorted({step for _, step, _ in rows})
    ranks = sorted({rank for rank, _, _ in rows})
    shown = ranks[:MAX_RANKS]
    firsts, every = columns(steps)
    return GridView(
        name=name,
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
# The names are those that distributed-straggler reads; of two for one part, the larger.
_SPENT = """
    SELECT part, rank, step, max(spent) FROM (
        SELECT
            CASE m.name WHEN 'gc_seconds' THEN 'gc' WHEN 'run_delay_seconds' THEN 'host' ELSE 'input' END AS part,
            m.rank, m.step, m.value AS spent
        FROM metric AS m
        WHERE m.source = 'metrics' AND m.step IS NOT NULL AND m.rank IS NOT NULL AND isfinite(m.value)
          AND m.name IN (
            'data_seconds', 'data_time', 'dataloader_time', 'data_loading_time', 'outside_seconds', 'gc_seconds',
            'run_delay_seconds'
        )
        UNION ALL
        SELECT 'input', c.rank, c.step, sum(c.dur_ns) / 1e9
        FROM slice AS c JOIN string AS n ON n.id = c.name_id
        WHERE c.step IS NOT NULL AND c.rank IS NOT NULL AND n.text LIKE 'enumerate(DataLoader)%'
        GROUP BY c.rank, c.step
    )
    GROUP BY part, rank, step ORDER BY part, rank, step
"""
