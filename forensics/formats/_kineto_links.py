"""Finds what belongs together in the table `event`: kinds, launches, forward operators, steps.

All of it is SQL over `work`, the narrow copy of the events that become rows of `slice` or `memory_event`, in the
order of the file. Correlation and flow ids are unique within one document of one file only.
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

# Category names of all eras; those before 2022 start with capitals.
KINDS = {
    "cpu_op": ("cpu_op", "Operator", "CPU functions"),
    "python_function": ("python_function",),
    "runtime": ("cuda_runtime", "Runtime"),
    "kernel": ("kernel", "Kernel", "CUDA functions"),
    "annotation": ("user_annotation",),
    "gpu_annotation": ("gpu_user_annotation",),
    "memcpy": ("gpu_memcpy", "Memcpy"),
    "memset": ("gpu_memset", "Memset"),
    "driver": ("cuda_driver",),
    "sync": ("cuda_sync", "xpu_sync"),
}
_MEMORY = ("[memory]", "[OutOfMemory]")


_ON_DEVICE = {
    **dict.fromkeys(("kernel", "memcpy", "memset", "gpu_annotation", "sync"), "true"),
    **dict.fromkeys(("cpu_op", "python_function", "runtime", "driver", "annotation", "instant", "overhead"), "false"),
    "memory": "false",
}


def _any(column: str, names: tuple[str, ...]) -> str:
    # Not IN: long lists become joins, and the order of the file is lost.
    return "(" + " OR ".join(f"{column} = '{name}'" for name in names) + ")"


KIND_SQL = (
    f"CASE WHEN ph <> 'X' AND {_any('name', _MEMORY)} THEN 'memory' WHEN ph <> 'X' AND ph <> 'B' THEN 'instant' "
    + " ".join(f"WHEN {_any('cat', cats)} THEN '{kind}'" for kind, cats in KINDS.items())
    + " WHEN cat LIKE '%\\_runtime' ESCAPE '\\' THEN 'runtime' WHEN cat LIKE '%\\_driver' ESCAPE '\\' THEN 'driver'"
    + " ELSE coalesce(cat, 'uncategorised') END"
)
# Other backends' device work tells its device or stream.
DEVICE_SQL = (
    "CASE kind "
    + " ".join(f"WHEN '{kind}' THEN {value}" for kind, value in _ON_DEVICE.items())
    + " ELSE device IS NOT NULL OR stream IS NOT NULL END"
)
# Not rows of their own: metadata, flows, counters, the ends of begun slices, events that were lost.
KEPT_SQL = "ph NOT IN ('M', 's', 't', 'f', 'C', 'E', 'e', 'c')"

_WORK = f"""
CREATE TEMP TABLE work AS
SELECT row, document, kind, {DEVICE_SQL} AS on_device, ts_ns, dur_ns, thread, external, correlation, sequence,
    coalesce(forward_thread, 0) AS forward_thread,
    CASE WHEN kind = 'python_function' THEN name END AS frame,
    CASE WHEN name LIKE 'ProfilerStep#%' AND kind IN ('annotation', 'cpu_op', 'uncategorised')
        THEN TRY_CAST(substr(name, 14) AS BIGINT) END AS step
FROM (SELECT *, rowid AS row, {KIND_SQL} AS kind FROM event WHERE {KEPT_SQL})
ORDER BY row
"""

_STEPS = """
SELECT document, step, min(ts_ns) AS start_ns, max(ts_ns + greatest(dur_ns, 0)) AS end_ns
FROM work WHERE step IS NOT NULL AND ts_ns IS NOT NULL AND dur_ns IS NOT NULL
GROUP BY document, step ORDER BY document, start_ns, step
"""

_LAUNCHES = """
CREATE TEMP TABLE launch AS
SELECT document, correlation, min(row) AS row, arg_min(ts_ns, row) AS ts_ns
FROM work WHERE kind IN ('runtime', 'driver') AND correlation > 0
GROUP BY document, correlation
"""

# A flow starts at the innermost forward operator and ends at the inner of the two rows of a backward node.
_BY_FLOW = """
CREATE TEMP TABLE by_flow AS
WITH flow AS (
    SELECT document, id,
        arg_min(thread, rowid) FILTER (ph = 's') AS from_thread, arg_min(ts_ns, rowid) FILTER (ph = 's') AS from_ns,
        arg_min(thread, rowid) FILTER (ph = 'f') AS to_thread, arg_min(ts_ns, rowid) FILTER (ph = 'f') AS to_ns
    FROM event WHERE ph IN ('s', 'f') AND cat IN ('fwdbwd', 'forward_backward') GROUP BY document, id
), point AS (
    SELECT document, from_thread AS thread, from_ns AS ts_ns FROM flow
    UNION SELECT document, to_thread, to_ns FROM flow
), op AS (
    SELECT w.* FROM work AS w SEMI JOIN point USING (document, thread, ts_ns) WHERE w.kind = 'cpu_op'
), forward AS (
    SELECT document, thread, ts_ns, arg_min(
        {'row': row, 'sequence': sequence}, {'unnumbered': sequence IS NULL, 'dur_ns': dur_ns, 'row': -row}) AS op
    FROM op GROUP BY document, thread, ts_ns
)
SELECT b.row, min(f.op.row) AS forward_row
FROM flow JOIN forward AS f ON f.document = flow.document AND f.thread = flow.from_thread AND f.ts_ns = flow.from_ns
JOIN op AS b ON b.document = flow.document AND b.thread = flow.to_thread AND b.ts_ns = flow.to_ns
WHERE b.row <> f.op.row AND (f.op.sequence IS NULL OR b.sequence = f.op.sequence)
GROUP BY b.row
"""

# Numbers restart on every thread, and backward rows name the forward thread by a number of their own: the thread that
# shares most numbers with it is taken. The operator that made the node is the last started with its number.
_BY_SEQUENCE = """
CREATE TEMP TABLE by_sequence AS
WITH backward AS (
    SELECT document, forward_thread, sequence, row, ts_ns
    FROM work WHERE kind = 'cpu_op' AND sequence >= 0 AND forward_thread > 0
), wanted AS (
    SELECT DISTINCT document, forward_thread, sequence FROM backward
), forward AS (
    SELECT document, thread, sequence, arg_max(
        {'row': row, 'ts_ns': ts_ns}, {'ts_ns': ts_ns, 'dur_ns': -dur_ns, 'row': row}) AS op
    FROM work WHERE kind = 'cpu_op' AND forward_thread = 0 AND sequence >= 0
        AND (document, sequence) IN (SELECT document, sequence FROM wanted)
    GROUP BY document, thread, sequence
), shared AS (
    SELECT w.document, w.forward_thread, f.thread, count(*) AS n
    FROM wanted AS w JOIN forward AS f USING (document, sequence) GROUP BY w.document, w.forward_thread, f.thread
), same AS (
    SELECT document, forward_thread, arg_max(thread, {'n': n, 'thread': thread}) AS thread
    FROM shared GROUP BY document, forward_thread
)
SELECT b.row, f.op.row AS forward_row
FROM backward AS b JOIN same AS s USING (document, forward_thread)
JOIN forward AS f ON f.document = b.document AND f.thread = s.thread AND f.sequence = b.sequence
WHERE f.op.ts_ns <= b.ts_ns AND f.op.row <> b.row
"""

# Device work belongs to the step that launched it.
_LINKS = """
WITH launched AS ({launched}), forward AS ({forward})
SELECT x.row, x.launch_row, f.forward_row, {step} AS step
FROM launched AS x LEFT JOIN forward AS f ON f.row = x.row {join_step}
ORDER BY x.row
"""
_LAUNCHED = """
    SELECT w.row, w.document, l.row AS launch_row, coalesce(l.ts_ns, w.ts_ns) AS ts_ns
    FROM work AS w LEFT JOIN launch AS l
        ON w.on_device AND w.document = l.document AND w.correlation = l.correlation AND w.row <> l.row
"""
_NOT_LAUNCHED = "SELECT row, document, CAST(NULL AS BIGINT) AS launch_row, ts_ns FROM work"
_FORWARD = """
    SELECT row, coalesce(f.forward_row, s.forward_row) AS forward_row
    FROM by_flow AS f FULL JOIN by_sequence AS s USING (row)
"""
_NO_ROWS = "SELECT CAST(NULL AS BIGINT) AS row, CAST(NULL AS BIGINT) AS forward_row WHERE false"
_JOIN_STEP = "ASOF LEFT JOIN step AS s ON x.document = s.document AND x.ts_ns >= s.start_ns"


@dataclass(frozen=True)
class Links:
    """What SQL finds, in the order of `work`."""

    table: pa.Table  # row, launch_row, forward_row, step
    steps: pa.Table  # document, step, start_ns, end_ns


def find_links(con: duckdb.DuckDBPyConnection, *, correlated: bool, flows: bool, numbered: bool) -> Links:
    """What is not in the trace is not looked for: on small traces each query costs more than its rows."""
    con.execute(_WORK)
    con.execute(f"CREATE TEMP TABLE step AS {_STEPS}")
    steps = con.sql("SELECT * FROM step ORDER BY document, start_ns, step").to_arrow_table()
    if correlated:
        con.execute(_LAUNCHES)
    if flows or numbered:
        con.execute(_BY_FLOW if flows else f"CREATE TEMP TABLE by_flow AS {_NO_ROWS}")
        con.execute(_BY_SEQUENCE if numbered else f"CREATE TEMP TABLE by_sequence AS {_NO_ROWS}")
    query = _LINKS.format(
        launched=_LAUNCHED if correlated else _NOT_LAUNCHED,
        forward=_FORWARD if flows or numbered else _NO_ROWS,
        step="CASE WHEN x.ts_ns < s.end_ns THEN s.step END" if steps.num_rows else "CAST(NULL AS BIGINT)",
        join_step=_JOIN_STEP if steps.num_rows else "",
    )
    return Links(con.sql(query).to_arrow_table(), steps)


def pair_begins(con: duckdb.DuckDBPyConnection) -> None:
    """Gives slices that were written as a begin and an end (merged traces) their durations."""
    rows = con.execute(
        "SELECT rowid, ph, document, pid, tid, ts_ns FROM event WHERE ph IN ('B', 'E') AND ts_ns IS NOT NULL "
        "ORDER BY document, pid, tid, ts_ns, rowid"
    ).fetchall()
    begun: list[tuple[int, int]] = []
    durations: list[tuple[int, int]] = []
    thread = None
    for row, phase, *key, ts_ns in rows:
        if key != thread:
            thread = key
            begun.clear()
        if phase == "B":
            begun.append((row, ts_ns))
        elif begun:
            start, start_ns = begun.pop()
            durations.append((start, ts_ns - start_ns))
    if durations:
        found = pa.table({"row": [row for row, _ in durations], "dur_ns": [dur for _, dur in durations]})
        con.register("paired", found)
        con.execute("UPDATE event SET dur_ns = paired.dur_ns FROM paired WHERE event.rowid = paired.row")
        con.unregister("paired")
