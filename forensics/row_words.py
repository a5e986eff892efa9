"""Says what a row of the case holds, for places of artifacts that have no text, or one that nobody reads at a glance.

Pickles and traces have rows and no lines; recorders write a line of JSON for each tensor.
"""

from __future__ import annotations

from functools import lru_cache

import duckdb

MOST_FRAMES = 3  # of a stack: the innermost in the job's own code and its callers

# One SELECT a table, in the order in which a row is looked for where its table is not named: `said` and `stack_id`.
_QUESTIONS = {
    "memory_event": """
        SELECT concat_ws(
            ', ',
            CASE action
                WHEN 'oom' THEN 'an allocation of ' || format_bytes(size_bytes) || ' failed'
                WHEN 'alloc' THEN format_bytes(size_bytes) || ' allocated'
                ELSE replace(action, '_', ' ') || ' ' || format_bytes(size_bytes)
            END,
            'with ' || format_bytes(device_free_bytes) || ' free on the device',
            'device ' || device,
            'step ' || step
        ) AS said, stack_id
        FROM memory_event
    """,
    "collective": """
        SELECT concat_ws(
            ', ',
            'rank ' || rank,
            operation || coalesce(' number ' || sequence, ''),
            in_bytes || ' bytes' || coalesce(' of ' || dtype, ''),
            state
        ) AS said, stack_id
        FROM collective
    """,
    "thread_state": """
        SELECT concat_ws(', ', thread, state, 'waits for ' || coalesce(wait_on, wait_kind)) AS said, stack_id
        FROM thread_state
    """,
    "reference_link": """
        SELECT concat_ws(
            ' ',
            format_bytes(r.size_bytes),
            s.text,
            'kept by ' || (
                SELECT string_agg(h.text, ' ← ' ORDER BY o.place)
                FROM reference_link AS o JOIN string AS h ON h.id = o.holder_id
                WHERE o.artifact_id = r.artifact_id AND o.tensor = r.tensor
            )
        ) AS said, NULL AS stack_id
        FROM reference_link AS r LEFT JOIN string AS s ON s.id = r.shape_id
    """,
    "placement": """
        SELECT concat_ws(
            ', ',
            p.kind || ' ' || n.text || ' on ' || p.device,
            'declared on ' || p.declared,
            format_bytes(p.size_bytes)
        ) AS said, NULL AS stack_id
        FROM placement AS p JOIN string AS n ON n.id = p.name_id
    """,
    "tensor": """
        SELECT concat_ws(
            ', ',
            t.role || coalesce(' of ' || coalesce(g.text || ' (' || o.text || ')', o.text), '')
                || coalesce(' ' || n.text, ''),
            t.dtype,
            'step ' || t.step,
            CASE WHEN t.n_nan > 0 THEN t.n_nan || ' NaN' END,
            CASE WHEN t.n_inf > 0 THEN t.n_inf || ' infinite' END,
            'largest value ' || printf('%.6g', t.absmax),
            'norm ' || printf('%.6g', t.norm),
            CASE WHEN t.zero_ratio = 1 THEN 'all zero' END,
            'checksum ' || printf('%x', t.checksum),
            'version ' || t.version
        ) AS said, k.stack_id
        FROM tensor AS t
        LEFT JOIN string AS n ON n.id = t.name_id
        LEFT JOIN node AS k
            ON k.artifact_id = t.artifact_id AND k.node_id = t.node_id AND k.step IS NOT DISTINCT FROM t.step
        LEFT JOIN string AS o ON o.id = k.op_id
        LEFT JOIN string AS g ON g.id = k.autograd_id
    """,
    "checkpoint_tensor": """
        SELECT concat_ws(
            ', ',
            n.text,
            c.dtype || coalesce(' ' || s.text, ''),
            c.fault,
            CASE WHEN c.n_nan > 0 THEN c.n_nan || ' NaN' END,
            CASE WHEN c.n_inf > 0 THEN c.n_inf || ' infinite' END,
            CASE WHEN c.n_zero = c.n_elements THEN 'all zero' END,
            'largest value ' || printf('%.6g', c.absmax),
            'norm ' || printf('%.6g', c.norm)
        ) AS said, NULL AS stack_id
        FROM checkpoint_tensor AS c
        JOIN string AS n ON n.id = c.name_id
        LEFT JOIN string AS s ON s.id = c.shape_id
    """,
    "slice": """
        SELECT concat_ws(
            ', ',
            n.text,
            round(s.dur_ns / 1e6, 3) || ' ms',
            'returned ' || s.return_code,
            'stream ' || s.stream,
            'thread ' || s.thread,
            'step ' || s.step
        ) AS said, s.stack_id
        FROM slice AS s JOIN string AS n ON n.id = s.name_id
    """,
    "sample": """
        SELECT concat_ws(', ', n.text || ' = ' || printf('%.6g', s.value), 'step ' || s.step) AS said, NULL AS stack_id
        FROM sample AS s JOIN string AS n ON n.id = s.name_id
    """,
}


class RowWords:
    """Words for rows of one case."""

    def __init__(self, con: duckdb.DuckDBPyConnection) -> None:
        self._con = con
        self._tables_of = lru_cache(maxsize=256)(self._read_tables)

    def of(self, artifact_id: int, row: int, table: str | None = None, *, metrics: bool = True) -> str:
        """What the row says, and below it where in the job's own code it was made; "" where nothing is known.

        Without `table` it is that of the first table in which the artifact has such a row, `metrics` apart.
        """
        for name in [table] if table else self._tables_of(artifact_id):
            if name not in _QUESTIONS or (name == "sample" and not metrics):
                continue
            asked = f"SELECT said, stack_id FROM ({_rows_of(name)}) WHERE said <> '' LIMIT 1"
            found = self._con.execute(asked, [artifact_id, row]).fetchone()
            if found:
                return "\n".join(part for part in (found[0], self.way_to(found[1])) if part)
        return ""

    def way_to(self, stack_id: int | None) -> str:
        """The innermost frames of the job's own code, of any where none is its own: "f (a.py:3) < main (a.py:9)"."""
        if stack_id is None:
            return ""
        frames = self.frames(stack_id)
        own = [frame for frame in frames if frame[3]] or frames
        return " < ".join(
            f"{function} ({file}:{line})" if file else function for function, file, line, _ in own[:MOST_FRAMES]
        )

    def frames(self, stack_id: int) -> list[tuple[str, str | None, int | None, bool]]:
        """Function, file, line and whether it is the job's own code, the innermost first."""
        return self._con.execute(
            """
            WITH RECURSIVE walk AS (
                SELECT k.*, 0 AS n FROM frame AS k WHERE k.id = ?
                UNION ALL
                SELECT k.*, w.n + 1 FROM walk AS w JOIN frame AS k ON k.id = w.parent_id WHERE w.n < 200
            )
            SELECT function, file, line, coalesce(user_stack_id = id, FALSE) FROM walk ORDER BY n
            """,
            [stack_id],
        ).fetchall()

    def _read_tables(self, artifact_id: int) -> list[str]:
        exists = "SELECT 1 FROM {} WHERE artifact_id = ? LIMIT 1"
        return [name for name in _QUESTIONS if self._con.execute(exists.format(name), [artifact_id]).fetchone()]


def _rows_of(table: str) -> str:
    """The question for one row: its first parameter is the artifact, the second the row."""
    question = _QUESTIONS[table]
    alias = "" if table in {"memory_event", "collective", "thread_state"} else f"{table[0]}."
    return f"{question} WHERE {alias}artifact_id = ? AND {alias}row = ?"
