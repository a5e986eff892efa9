"""The norm of each parameter's gradient by step: where it vanishes, explodes or stops being finite."""

from __future__ import annotations

import duckdb

from forensics.pictures.grids import cells, columns
from forensics.redact import mask
from forensics.report.pictures import GridView

MAX_PARAMETERS = 40


def read(con: duckdb.DuckDBPyConnection) -> list[GridView]:
    """Of the rank with most readings: parameters in the order in which the recording has them."""
    rows = con.execute(
        """
        WITH
        reading AS (
            SELECT coalesce(t.rank, -1) AS rank, n.text AS name, t.step,
                CASE WHEN coalesce(t.n_nan, 0) + coalesce(t.n_inf, 0) > 0 THEN 'nan'::DOUBLE ELSE t.norm END AS norm,
                t.artifact_id, t.row
            FROM tensor AS t JOIN string AS n ON n.id = t.name_id
            WHERE t.role = 'gradient' AND t.step IS NOT NULL AND (t.norm IS NOT NULL OR t.n_nan + t.n_inf > 0)
        ),
        chosen AS (
            SELECT rank FROM reading GROUP BY rank
            ORDER BY count(*) FILTER (WHERE NOT isfinite(norm)) DESC, count(*) DESC, rank LIMIT 1
        )
        SELECT rank, name, step, max(norm), min((artifact_id, row)) FROM reading
        WHERE rank = (SELECT rank FROM chosen)
        GROUP BY rank, name, step ORDER BY 5, step
        """
    ).fetchall()
    steps = sorted({row[2] for row in rows})
    names = list(dict.fromkeys(row[1] for row in rows))
    if len(steps) < 2 or len(names) < 2:
        return []
    shown = names[:MAX_PARAMETERS]
    firsts, every = columns(steps)
    rank = rows[0][0]
    return [
        GridView(
            name="Gradient norm by parameter" + (f", rank {rank}" if rank >= 0 else ""),
            unit="",
            row_word="parameter",
            rows=tuple(mask(name) for name in shown),
            columns=tuple(firsts),
            cells=cells(((name, step, norm) for _, name, step, norm, _ in rows), shown, steps, every),
            n_rows_hidden=len(names) - len(shown),
            per_column=every,
            log=True,
        )
    ]
