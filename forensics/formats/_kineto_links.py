"""Finds what belongs together in a trace: launches, forward operators, durations of begun slices.

The narrow columns that this needs lie in tables of an in-memory database, which moves to disk what does not fit. What
is found for a row lies in columns that its number leads into: joining them would cost more than finding it.
Correlation and flow ids are unique within one document of one file only.
"""

from __future__ import annotations

import itertools

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._kineto_rows import open_cursor
from forensics.formats._row_column import Numbers, RowColumn

BATCH_ROWS = 500_000  # every append costs, whatever its size
_NUMBERS = itertools.count()
_KEYS = "row BIGINT, document INTEGER, thread_key UBIGINT, ts_ns BIGINT"

# Made when they get their first rows: to make all of them costs as much as the rest of a small trace.
_TABLES = {
    "host": f"{_KEYS}, end_ns BIGINT, innermost BOOLEAN, external BIGINT, frame INTEGER",
    "launch_event": "row BIGINT, document INTEGER, correlation BIGINT, ts_ns BIGINT",
    "op": f"{_KEYS}, dur_ns BIGINT, sequence BIGINT, forward_thread BIGINT",
    "flow_event": f"{_KEYS}, ph VARCHAR, id VARCHAR",
    "begun": f"{_KEYS}, ph VARCHAR",
    "launch": "document INTEGER, correlation BIGINT, row BIGINT, ts_ns BIGINT",
    "paired": "row BIGINT, dur_ns BIGINT",
}

_INTO = {"launch": "launch_event", "flow": "flow_event"}

# In order, so that a group of rows reads only the part of the table where its ids lie.
_LAUNCHES = """
INSERT INTO launch SELECT document, correlation, min(row), arg_min(ts_ns, row)
FROM launch_event GROUP BY document, correlation ORDER BY document, correlation
"""
_NO_FLOWS = "SELECT CAST(NULL AS BIGINT) AS row, CAST(NULL AS BIGINT) AS forward_row WHERE false"

# A flow starts at the innermost forward operator and ends at the inner of the two rows of a backward node.
_BY_FLOW = """
WITH flow AS (
    SELECT document, id,
        arg_min(thread_key, row) FILTER (ph = 's') AS from_thread, arg_min(ts_ns, row) FILTER (ph = 's') AS from_ns,
        arg_min(thread_key, row) FILTER (ph = 'f') AS to_thread, arg_min(ts_ns, row) FILTER (ph = 'f') AS to_ns
    FROM flow_event GROUP BY document, id
), point AS (
    SELECT document, from_thread AS thread_key, from_ns AS ts_ns FROM flow
    UNION SELECT document, to_thread, to_ns FROM flow
), near AS (
    SELECT o.* FROM op AS o SEMI JOIN point USING (document, thread_key, ts_ns)
), forward_op AS (
    SELECT document, thread_key, ts_ns, arg_min(
        {'row': row, 'sequence': sequence}, {'unnumbered': sequence IS NULL, 'dur_ns': dur_ns, 'row': -row}) AS op
    FROM near GROUP BY document, thread_key, ts_ns
)
SELECT b.row, min(f.op.row) AS forward_row
FROM flow JOIN forward_op AS f
    ON f.document = flow.document AND f.thread_key = flow.from_thread AND f.ts_ns = flow.from_ns
JOIN near AS b ON b.document = flow.document AND b.thread_key = flow.to_thread AND b.ts_ns = flow.to_ns
WHERE b.row <> f.op.row AND (f.op.sequence IS NULL OR b.sequence = f.op.sequence)
GROUP BY b.row
"""

# Numbers restart on every thread, and backward rows name the forward thread by a number of their own: the thread that
# shares most numbers with it is taken. The operator that made the node is the last started with its number.
_BY_SEQUENCE = """
WITH backward AS (
    SELECT document, forward_thread, sequence, row, ts_ns FROM op WHERE sequence >= 0 AND forward_thread > 0
), wanted AS (
    SELECT DISTINCT document, forward_thread, sequence FROM backward
), forward_op AS (
    SELECT document, thread_key, sequence, arg_max(
        {'row': row, 'ts_ns': ts_ns}, {'ts_ns': ts_ns, 'dur_ns': -dur_ns, 'row': row}) AS op
    FROM op WHERE forward_thread = 0 AND sequence >= 0
        AND (document, sequence) IN (SELECT document, sequence FROM wanted)
    GROUP BY document, thread_key, sequence
), shared AS (
    SELECT w.document, w.forward_thread, f.thread_key, count(*) AS n
    FROM wanted AS w JOIN forward_op AS f USING (document, sequence) GROUP BY w.document, w.forward_thread, f.thread_key
), same AS (
    SELECT document, forward_thread, arg_max(thread_key, {'n': n, 'thread': thread_key}) AS thread_key
    FROM shared GROUP BY document, forward_thread
)
SELECT b.row, f.op.row AS forward_row
FROM backward AS b JOIN same AS s USING (document, forward_thread)
JOIN forward_op AS f ON f.document = b.document AND f.thread_key = s.thread_key AND f.sequence = b.sequence
WHERE f.op.ts_ns <= b.ts_ns AND f.op.row <> b.row
"""
_FORWARD = """
SELECT row, 1 + coalesce(f.forward_row, s.forward_row) AS forward_row
FROM ({by_flow}) AS f FULL JOIN ({by_sequence}) AS s USING (row)
"""
_LAUNCHED = """
SELECT p.row, l.row AS launch_row, l.ts_ns FROM part AS p
JOIN (SELECT * FROM launch WHERE correlation BETWEEN {low} AND {high}) AS l
    ON p.document = l.document AND p.correlation = l.correlation AND p.row <> l.row
"""


class LinkTables:
    """The tables of one trace; close it to drop them."""

    def __init__(self, threads: int, batch_rows: int = BATCH_ROWS) -> None:
        self._threads, self._batch_rows = threads, batch_rows
        self.con = open_cursor(threads)
        self._schema = f"trace_{next(_NUMBERS)}"
        self.con.execute(f"CREATE SCHEMA {self._schema}; USE {self._schema}")
        self._waiting: dict[str, list[pa.Table]] = {}
        self._made: set[str] = set()
        self._n_rows = 0
        self._found: dict[str, RowColumn] = {}
        self._steps: dict[int, pa.Table] = {}  # of each document

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Another connection to the same tables, for another thread."""
        con = open_cursor(self._threads)
        con.execute(f"USE {self._schema}")
        return con

    def close(self) -> None:
        self.con.execute("USE memory.main")
        self.con.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self.con.close()
        for column in self._found.values():
            column.close()

    def drop(self) -> None:
        """Gives up all links but steps and paired durations."""
        for table in self._made - {"paired", "begun"}:
            self.con.execute(f"DROP TABLE IF EXISTS {table}")
            self._made.discard(table)
        for name in self._found.keys() - {"paired"}:
            self._found.pop(name).close()

    def add(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            waiting = self._waiting.setdefault(name, [])
            waiting.append(rows)
            if sum(table.num_rows for table in waiting) >= self._batch_rows:
                self._append(name)

    def finish(self, n_rows: int) -> None:
        """All rows were added; `n_rows`: of the trace."""
        self._n_rows = n_rows
        for name in list(self._waiting):
            self._append(name)

    def put(self, name: str, rows: Numbers, values: Numbers) -> None:
        """What was found for rows, numbers above 0: `parent` and `forward` (1 + row), `stack`, `paired` (1 + ns)."""
        if name not in self._found:
            wide = name == "paired" or self._n_rows >= (1 << 31) - 1
            kind = np.uint64 if name == "stack" else np.int64 if wide else np.int32
            self._found[name] = RowColumn(self._n_rows, kind)
        self._found[name].put(rows, values)

    def _append(self, name: str) -> None:
        self.insert(_INTO.get(name, name), pa.concat_tables(self._waiting.pop(name)))

    def insert(self, table: str, rows: pa.Table) -> None:
        """Appends rows to a table. One that is not of `_TABLES` has the columns of its first rows."""
        self.con.register("given", rows)
        if table in _TABLES:
            self._make(self.con, table)
        if table in self._made:
            self.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")
        else:
            self.con.execute(f"CREATE TABLE {table} AS SELECT * FROM given")
            self._made.add(table)
        self.con.unregister("given")

    def _make(self, con: duckdb.DuckDBPyConnection, table: str) -> None:
        if table not in self._made:
            con.execute(f"CREATE TABLE {table} ({_TABLES[table]})")
            self._made.add(table)

    def has(self, name: str) -> bool:
        """Whether there are rows: of what `add` got, by its name, or in a table."""
        return _INTO.get(name, name) in self._made

    def set_steps(self, steps: pa.Table) -> None:
        """`steps`: document, step, start_ns, end_ns, by document and start."""
        for document in steps.column("document").unique().to_pylist():
            of_document = pa.array(np.equal(steps.column("document").to_numpy(), document))
            self._steps[document] = steps.filter(of_document)

    def link(self, con: duckdb.DuckDBPyConnection) -> None:
        """Fills `launch` and `forward`. What is not in the trace is not looked for."""
        if "launch_event" in self._made:
            self._make(con, "launch")
            con.execute(_LAUNCHES)
        if not self.has("op"):
            return
        ((numbered,),) = con.execute("SELECT bool_or(sequence >= 0 AND forward_thread > 0) FROM op").fetchall()
        if self.has("flow") or numbered:
            by_flow = _BY_FLOW if self.has("flow") else _NO_FLOWS
            found = con.sql(_FORWARD.format(by_flow=by_flow, by_sequence=_BY_SEQUENCE))
            for batch in found.to_arrow_reader(BATCH_ROWS):
                self.put("forward", batch.column("row").to_numpy(), batch.column("forward_row").to_numpy())

    def attach(self, part: pa.Table) -> pa.Table:
        """launch_row, forward_row, step, parent_row, stack_id, paired_ns for each row of `part`, in its order.

        `part`: row (ascending), document, ts_ns, correlation, on_device. Device work belongs to the step of its launch.
        """
        rows, launch_rows = part.column("row").to_numpy(), np.zeros(part.num_rows, np.int64)
        ts_ns, known = part.column("ts_ns").fill_null(0).to_numpy(), part.column("ts_ns").is_valid().to_numpy()
        launched = self._launched(part)
        if launched is not None and launched.num_rows:
            at = np.searchsorted(rows, launched.column("row").to_numpy())
            launch_rows[at] = launched.column("launch_row").to_numpy() + 1
            ts_ns, known = ts_ns.copy(), known.copy()
            ts_ns[at], known[at] = launched.column("ts_ns").to_numpy(), True
        return pa.table(
            {
                "launch_row": _less_one(launch_rows),
                "forward_row": _less_one(self._of("forward", rows)),
                "step": self._step(part.column("document").to_numpy(), ts_ns, known),
                "parent_row": _less_one(self._of("parent", rows)),
                "stack_id": _present(self._of("stack", rows).astype(np.uint64), 0),
                "paired_ns": _less_one(self._of("paired", rows)),
            }
        )

    def _launched(self, part: pa.Table) -> pa.Table | None:
        """row, launch_row and the launch's ts_ns of device work whose launch is in the trace."""
        if "launch" not in self._made:
            return None
        part = part.filter(pc.and_(part.column("on_device"), pc.is_valid(part.column("correlation"))))
        if not part.num_rows:
            return None
        named = pc.min_max(part.column("correlation")).as_py()
        self.con.register("part", part)
        found = self.con.sql(_LAUNCHED.format(low=named["min"], high=named["max"])).to_arrow_table()
        self.con.unregister("part")
        return found

    def _of(self, name: str, rows: Numbers) -> Numbers:
        return self._found[name].take(rows) if name in self._found else np.zeros(len(rows), np.int64)

    def _step(self, documents: Numbers, ts_ns: Numbers, known: Numbers) -> pa.Array:
        """The step that a time lies in: of those of its document the last that had begun."""
        numbers, inside = np.zeros(len(ts_ns), np.int64), np.zeros(len(ts_ns), np.bool_)
        for document, steps in self._steps.items():
            own = np.flatnonzero(known & (documents == document))
            at = np.searchsorted(steps.column("start_ns").to_numpy(), ts_ns[own], side="right") - 1
            lies = (at >= 0) & (ts_ns[own] < steps.column("end_ns").to_numpy()[at])
            numbers[own], inside[own] = steps.column("step").to_numpy()[at], lies
        return pa.array(numbers, mask=~inside)

    def pair_begins(self) -> None:
        """Gives slices that were written as a begin and an end (merged traces) their durations."""
        rows = self.con.execute(
            "SELECT row, ph, thread_key, ts_ns FROM begun WHERE ts_ns IS NOT NULL ORDER BY thread_key, ts_ns, row"
        )
        begun: list[tuple[int, int]] = []
        durations: list[tuple[int, int]] = []
        thread = None
        while batch := rows.fetchmany(100_000):
            for row, phase, key, ts_ns in batch:
                if key != thread:
                    thread = key
                    begun.clear()
                if phase == "B":
                    begun.append((row, ts_ns))
                elif begun:
                    start, start_ns = begun.pop()
                    durations.append((start, ts_ns - start_ns))
        if durations:
            rows_of, lasted = zip(*durations, strict=True)
            self.insert("paired", pa.table({"row": rows_of, "dur_ns": lasted}))
            self.put("paired", np.array(rows_of), np.maximum(lasted, 0) + 1)
            for table, change in (("host", "end_ns = ts_ns + greatest(p.dur_ns, 0)"), ("op", "dur_ns = p.dur_ns")):
                if table in self._made:
                    self.con.execute(f"UPDATE {table} SET {change} FROM paired AS p WHERE {table}.row = p.row")


def _less_one(numbers: Numbers) -> pa.Array:
    """Numbers from 1, as numbers from 0; NULL where there was none."""
    return _present(numbers.astype(np.int64) - 1, -1)


def _present(numbers: Numbers, none: int) -> pa.Array:
    """The numbers as a column, NULL where they are `none`."""
    return pa.array(numbers, mask=numbers == none)
