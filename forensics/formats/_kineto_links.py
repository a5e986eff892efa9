"""Finds what belongs together in a trace: launches, forward operators, durations of begun slices.

The narrow columns that this needs lie in tables of an in-memory database, which moves to disk what does not fit.
Correlation and flow ids are unique within one document of one file only.
"""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from forensics.formats._kineto_rows import open_cursor

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
    "nested": "row BIGINT, parent BIGINT, stack UBIGINT",
    "forward": "row BIGINT, forward_row BIGINT",
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
INSERT INTO forward SELECT row, coalesce(f.forward_row, s.forward_row) AS forward_row
FROM ({by_flow}) AS f FULL JOIN ({by_sequence}) AS s USING (row)
"""

# Device work belongs to the step that launched it. What a trace has nothing of is not joined.
_ATTACH = """
WITH launched AS (
    SELECT p.row, p.document, {launch_row} AS launch_row, {ts_ns} AS ts_ns FROM part AS p {join_launch}
)
SELECT x.row, x.launch_row, {forward} AS forward_row, {step} AS step, {parent} AS parent_row, {stack} AS stack_id,
    {paired} AS paired_ns
FROM launched AS x {joins}
ORDER BY x.row
"""
_JOIN_LAUNCH = """
LEFT JOIN (SELECT * FROM launch WHERE correlation BETWEEN {low} AND {high}) AS l ON p.on_device
    AND p.document = l.document AND p.correlation = l.correlation AND p.row <> l.row
"""
_JOIN = "LEFT JOIN (SELECT * FROM {table} WHERE row BETWEEN {first} AND {last}) AS {table} ON {table}.row = x.row"
_JOIN_STEP = "ASOF LEFT JOIN step AS s ON x.document = s.document AND x.ts_ns >= s.start_ns"
_NONE = "CAST(NULL AS BIGINT)"


class LinkTables:
    """The tables of one trace; close it to drop them."""

    def __init__(self, threads: int, batch_rows: int = BATCH_ROWS) -> None:
        self._threads, self._batch_rows = threads, batch_rows
        self.con = open_cursor(threads)
        self._schema = f"trace_{next(_NUMBERS)}"
        self.con.execute(f"CREATE SCHEMA {self._schema}; USE {self._schema}")
        self._waiting: dict[str, list[pa.Table]] = {}
        self._made: set[str] = set()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Another connection to the same tables, for another thread."""
        con = open_cursor(self._threads)
        con.execute(f"USE {self._schema}")
        return con

    def close(self) -> None:
        self.con.execute("USE memory.main")
        self.con.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self.con.close()

    def drop(self) -> None:
        """Gives up all links but steps and paired durations."""
        for table in self._made - {"step", "paired", "begun"}:
            self.con.execute(f"DROP TABLE IF EXISTS {table}")
            self._made.discard(table)

    def add(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            waiting = self._waiting.setdefault(name, [])
            waiting.append(rows)
            if sum(table.num_rows for table in waiting) >= self._batch_rows:
                self._append(name)

    def finish(self) -> None:
        for name in list(self._waiting):
            self._append(name)

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
        """`steps`: document, step, start_ns, end_ns."""
        if steps.num_rows:
            self.insert("step", steps)

    def link(self, con: duckdb.DuckDBPyConnection) -> None:
        """Fills `launch` and `forward`. What is not in the trace is not looked for."""
        if "launch_event" in self._made:
            self._make(con, "launch")
            con.execute(_LAUNCHES)
        if not self.has("op"):
            return
        ((numbered,),) = con.execute("SELECT bool_or(sequence >= 0 AND forward_thread > 0) FROM op").fetchall()
        if self.has("flow") or numbered:
            self._make(con, "forward")
            by_flow = _BY_FLOW if self.has("flow") else _NO_FLOWS
            con.execute(_FORWARD.format(by_flow=by_flow, by_sequence=_BY_SEQUENCE))

    def attach(self, part: pa.Table) -> pa.Table:
        """row, launch_row, forward_row, step, parent_row, stack_id, paired_ns for each row of `part`, in its order.

        `part`: row (ascending), document, ts_ns, correlation, on_device.
        """
        self.con.register("part", part)
        found = self.con.sql(self._attaching(part)).to_arrow_table()
        self.con.unregister("part")
        return found

    def _attaching(self, part: pa.Table) -> str:
        rows = part.column("row")
        span = {"first": rows[0].as_py(), "last": rows[-1].as_py()} if len(rows) else {"first": 0, "last": 0}
        named = pc.min_max(part.column("correlation").filter(part.column("on_device"))).as_py()
        launched = "launch" in self._made and named["min"] is not None
        joins = [_JOIN.format(table=table, **span) for table in ("forward", "nested", "paired") if table in self._made]

        def taken(table: str, value: str, kind: str = "BIGINT") -> str:
            return value if table in self._made else f"CAST(NULL AS {kind})"

        return _ATTACH.format(
            launch_row="l.row" if launched else _NONE,
            ts_ns="coalesce(l.ts_ns, p.ts_ns)" if launched else "p.ts_ns",
            join_launch=_JOIN_LAUNCH.format(low=named["min"], high=named["max"]) if launched else "",
            forward=taken("forward", "forward.forward_row"),
            step=taken("step", "CASE WHEN x.ts_ns < s.end_ns THEN s.step END"),
            parent=taken("nested", "nullif(nested.parent, 0) - 1"),
            stack=taken("nested", "nullif(nested.stack, 0)", "UBIGINT"),
            paired=taken("paired", "paired.dur_ns"),
            joins=" ".join([*joins, _JOIN_STEP if "step" in self._made else ""]),
        )

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
            for table, change in (("host", "end_ns = ts_ns + greatest(p.dur_ns, 0)"), ("op", "dur_ns = p.dur_ns")):
                if table in self._made:
                    self.con.execute(f"UPDATE {table} SET {change} FROM paired AS p WHERE {table}.row = p.row")
