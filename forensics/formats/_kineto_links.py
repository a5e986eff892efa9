"""Finds what belongs together in a trace: launches, forward operators, durations of begun slices.

The narrow columns that this needs lie in tables of an in-memory database, which moves to disk what does not fit.
Correlation and flow ids are unique within one document of one file only.
"""

from __future__ import annotations

import itertools

import duckdb
import pyarrow as pa

from forensics.formats._kineto_rows import open_cursor

_BATCH_ROWS = 500_000  # every append costs, whatever its size
_NUMBERS = itertools.count()
_KEYS = "row BIGINT, document INTEGER, thread_key UBIGINT, ts_ns BIGINT"

_TABLES = f"""
CREATE TABLE host ({_KEYS}, end_ns BIGINT, innermost BOOLEAN, external BIGINT, frame INTEGER);
CREATE TABLE launch_event (row BIGINT, document INTEGER, correlation BIGINT, ts_ns BIGINT);
CREATE TABLE op ({_KEYS}, dur_ns BIGINT, sequence BIGINT, forward_thread BIGINT);
CREATE TABLE flow_event ({_KEYS}, ph VARCHAR, id VARCHAR);
CREATE TABLE begun ({_KEYS}, ph VARCHAR);
CREATE TABLE nested (row BIGINT, parent BIGINT, stack UBIGINT);
CREATE TABLE forward (row BIGINT, forward_row BIGINT);
CREATE TABLE launch (document INTEGER, correlation BIGINT, row BIGINT, ts_ns BIGINT);
CREATE TABLE paired (row BIGINT, dur_ns BIGINT);
"""
_INTO = {"host": "host", "launch": "launch_event", "op": "op", "flow": "flow_event", "begun": "begun"}

_LAUNCHES = """
INSERT INTO launch SELECT document, correlation, min(row), arg_min(ts_ns, row)
FROM launch_event GROUP BY document, correlation
"""

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
_FORWARD = f"""
INSERT INTO forward SELECT row, coalesce(f.forward_row, s.forward_row) AS forward_row
FROM ({_BY_FLOW}) AS f FULL JOIN ({_BY_SEQUENCE}) AS s USING (row)
"""

# Device work belongs to the step that launched it.
_ATTACH = """
WITH launched AS (
    SELECT p.row, p.document, l.row AS launch_row, coalesce(l.ts_ns, p.ts_ns) AS ts_ns
    FROM part AS p LEFT JOIN launch AS l ON p.on_device AND p.document = l.document
        AND p.correlation = l.correlation AND p.row <> l.row
)
SELECT x.row, x.launch_row, f.forward_row, {step} AS step, nullif(n.parent, 0) - 1 AS parent_row,
    nullif(n.stack, 0) AS stack_id, d.dur_ns AS paired_ns
FROM launched AS x
LEFT JOIN (SELECT * FROM forward WHERE row BETWEEN {first} AND {last}) AS f ON f.row = x.row
LEFT JOIN (SELECT * FROM nested WHERE row BETWEEN {first} AND {last}) AS n ON n.row = x.row
LEFT JOIN (SELECT * FROM paired WHERE row BETWEEN {first} AND {last}) AS d ON d.row = x.row
{join_step}
ORDER BY x.row
"""
_JOIN_STEP = "ASOF LEFT JOIN step AS s ON x.document = s.document AND x.ts_ns >= s.start_ns"


class LinkTables:
    """The tables of one trace; close it to drop them."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self.con = open_cursor(threads)
        self._schema = f"trace_{next(_NUMBERS)}"
        self.con.execute(f"CREATE SCHEMA {self._schema}; USE {self._schema}; {_TABLES}")
        self._waiting: dict[str, list[pa.Table]] = {}
        self._seen: set[str] = set()
        self.has_steps = False

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """Another connection to the same tables, for another thread."""
        con = open_cursor(self._threads)
        con.execute(f"USE {self._schema}")
        return con

    def close(self) -> None:
        self.con.execute("USE memory.main")
        self.con.execute(f"DROP SCHEMA {self._schema} CASCADE")
        self.con.close()

    def add(self, name: str, rows: pa.Table) -> None:
        if rows.num_rows:
            waiting = self._waiting.setdefault(name, [])
            waiting.append(rows)
            if sum(table.num_rows for table in waiting) >= _BATCH_ROWS:
                self._append(name)

    def finish(self) -> None:
        for name in list(self._waiting):
            self._append(name)

    def _append(self, name: str) -> None:
        rows = pa.concat_tables(self._waiting.pop(name))
        self._seen.add(name)
        insert(self.con, _INTO[name], rows)

    def has(self, name: str) -> bool:
        return name in self._seen

    def set_steps(self, steps: pa.Table) -> None:
        """`steps`: document, step, start_ns, end_ns."""
        self.has_steps = steps.num_rows > 0
        self.con.register("given", steps)
        self.con.execute("CREATE TABLE step AS SELECT * FROM given")
        self.con.unregister("given")

    def link(self, con: duckdb.DuckDBPyConnection) -> None:
        """Fills `launch` and `forward`. What is not in the trace is not looked for."""
        if self.has("launch"):
            con.execute(_LAUNCHES)
        ((numbered,),) = con.execute("SELECT bool_or(sequence >= 0 AND forward_thread > 0) FROM op").fetchall()
        if self.has("flow") or numbered:
            con.execute(_FORWARD)

    def attach(self, part: pa.Table) -> pa.Table:
        """row, launch_row, forward_row, step, parent_row, stack_id, paired_ns for each row of `part`, in its order.

        `part`: row (ascending), document, ts_ns, correlation, on_device.
        """
        if not part.num_rows:
            first = last = 0
        else:
            first, last = part.column("row")[0].as_py(), part.column("row")[-1].as_py()
        self.con.register("part", part)
        query = _ATTACH.format(
            first=first,
            last=last,
            step="CASE WHEN x.ts_ns < s.end_ns THEN s.step END" if self.has_steps else "CAST(NULL AS BIGINT)",
            join_step=_JOIN_STEP if self.has_steps else "",
        )
        found = self.con.sql(query).to_arrow_table()
        self.con.unregister("part")
        return found

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
            insert(
                self.con,
                "paired",
                pa.table({"row": [row for row, _ in durations], "dur_ns": [dur for _, dur in durations]}),
            )
            self.con.execute(
                "UPDATE host SET end_ns = ts_ns + greatest(p.dur_ns, 0) FROM paired AS p WHERE host.row = p.row"
            )
            self.con.execute("UPDATE op SET dur_ns = p.dur_ns FROM paired AS p WHERE op.row = p.row")


def insert(con: duckdb.DuckDBPyConnection, table: str, rows: pa.Table) -> None:
    con.register("given", rows)
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")
    con.unregister("given")
