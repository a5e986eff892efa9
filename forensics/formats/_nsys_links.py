"""Links between rows of an export: launches, enclosing NVTX ranges, steps.

Correlation ids are unique within one process, not within one file. nsys writes calls and kernels nearly in the order of
time, so the calls that a block of kernels can have come from are a few neighbouring blocks.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from forensics.case import connect

_PROCESS_BITS = 40
_BATCH_ROWS = 200_000
_MEMORY_LIMIT = "400MB"  # beyond, DuckDB uses the folder for temporary files
# Ranges that number steps: ProfilerStep#12, iteration 12, step_12, train_step: 12.
_STEP = re.compile(
    r"(?P<family>(?:[\w./:-]{0,60}[\W_])?(?:ProfilerStep|iteration|iter|step))"
    r"\s{0,3}[#:=_ ]?\s{0,3}(?P<number>\d{1,15})",
    re.IGNORECASE,
)

_WITHIN = """
SELECT p.row AS parent_row, CASE WHEN b.ts_ns < s.end_ns THEN s.step END AS step
FROM block AS b
ASOF LEFT JOIN (SELECT * FROM point WHERE ts_ns <= $high AND ts_ns >= $low) AS p
    ON b.proc = p.proc AND b.thread = p.thread AND b.ts_ns >= p.ts_ns
ASOF LEFT JOIN numbered_step AS s ON b.proc = s.proc AND b.ts_ns >= s.start_ns
ORDER BY b.n
"""
_STEP_ONLY = """
SELECT CAST(NULL AS BIGINT) AS parent_row, CASE WHEN b.ts_ns < s.end_ns THEN s.step END AS step
FROM block AS b ASOF LEFT JOIN numbered_step AS s ON b.proc = s.proc AND b.ts_ns >= s.start_ns
ORDER BY b.n
"""
# The last point of each thread before the block, so that ranges that opened long ago are found.
_ENCLOSED = """
SELECT CASE WHEN e.row IS NULL THEN b.parent_row ELSE e.parent_row END AS parent_row
FROM block AS b LEFT JOIN enclosed AS e ON e.row = b.row ORDER BY b.n
"""
_LOW = """
SELECT coalesce(min(last), $low) FROM (
    SELECT max(ts_ns) AS last FROM point WHERE ts_ns <= $low GROUP BY proc, thread)
"""
# Outer before inner; where both start and end together, the one recorded first is the outer.
_ORDERED = """
SELECT row, proc, thread, ts_ns, ts_ns + dur_ns AS end_ns FROM range
ORDER BY proc, thread, ts_ns, end_ns DESC NULLS FIRST, row
"""


@dataclass(frozen=True)
class _Calls:
    low: int
    high: int
    keys: pa.Array
    rows: pa.Array
    steps: pa.Array | None


@dataclass
class Links:
    """Learns ranges, steps and calls as they are loaded, and gives later rows what they belong to."""

    _calls: list[_Calls] = field(default_factory=list)
    _con: duckdb.DuckDBPyConnection | None = None
    n_ranges: int = 0
    has_steps: bool = False

    def close(self) -> None:
        if self._con is not None:
            self._con.close()

    def add_ranges(self, rows: pa.Table) -> None:
        """Ranges that were pushed and popped; rows of `slice`."""
        self._fill("range", rows.select(["row", "proc", "thread", "ts_ns", "dur_ns"]))
        self.n_ranges += rows.num_rows

    def add_steps(self, steps: pa.Table) -> None:
        """`proc`, `step`, `start_ns`, `end_ns`: one family of ranges that number steps."""
        if steps.num_rows:
            self._fill("numbered_step", steps.select(["proc", "step", "start_ns", "end_ns"]))
            self.has_steps = True

    def nest(self) -> None:
        """Works out what encloses each range, and which range is the innermost at each moment of each thread."""
        if not self.n_ranges:
            return
        nesting = _Nesting()
        for batch in self._ordered():
            nesting.add(batch)
            self._fill("point", nesting.moments(keep_last=True))
            self._fill("enclosed", nesting.enclosed())
        nesting.close_all()
        self._fill("point", nesting.moments(keep_last=False))
        self._database().execute("DROP TABLE range")

    def _ordered(self) -> Iterator[pa.RecordBatch]:
        """The ranges sorted into a table first: one connection cannot write while it hands out rows."""
        con = self._database()
        con.execute(f"CREATE TEMP TABLE ordered AS {_ORDERED}")
        for first in range(0, self.n_ranges, _BATCH_ROWS):
            query = f"SELECT * FROM ordered WHERE rowid >= {first} AND rowid < {first + _BATCH_ROWS} ORDER BY rowid"
            yield from con.sql(query).to_arrow_table().to_batches()
        con.execute("DROP TABLE ordered")

    def enclosing(self, rows: pa.Table) -> pa.Table:
        """`rows` of ranges and marks with the enclosing range and the step of each."""
        rows = self.within(rows)
        if not self.n_ranges:
            return rows
        con = self._database()
        found = rows.select(["row", "parent_row"]).append_column("n", pa.array(range(rows.num_rows), pa.int64()))
        con.register("block", found)
        outer = con.sql(_ENCLOSED).to_arrow_table()
        con.unregister("block")
        return rows.set_column(rows.column_names.index("parent_row"), "parent_row", outer.column(0))

    def within(self, rows: pa.Table) -> pa.Table:
        """`rows` with the enclosing range and the step of each."""
        if not rows.num_rows or not (self.has_steps or (self.n_ranges and "thread" in rows.column_names)):
            return rows
        nested = self.n_ranges > 0 and "thread" in rows.column_names
        block = rows.select(["proc", "ts_ns", *(["thread"] if nested else [])])
        block = block.append_column("n", pa.array(range(rows.num_rows), pa.int64()))
        con = self._database()
        con.register("block", block)
        if nested:
            ends = pc.min_max(rows.column("ts_ns")).as_py()
            low = con.execute(_LOW, {"low": ends["min"] or 0}).fetchall()[0][0]
            found = con.sql(_WITHIN, params={"low": low, "high": ends["max"] or 0}).to_arrow_table()
        else:
            found = con.sql(_STEP_ONLY).to_arrow_table()
        con.unregister("block")
        for name in found.column_names if nested else ["step"]:
            if name not in rows.column_names:
                rows = rows.append_column(name, found.column(name))
        return rows

    def add_calls(self, rows: pa.Table) -> None:
        """Runtime and driver calls that later rows may have been launched by."""
        keys = _key(rows)
        known = pc.is_valid(keys)
        if keys.null_count:
            rows, keys = rows.filter(known), keys.filter(known)
        if len(keys):
            ends = pc.min_max(keys).as_py()
            steps = rows.column("step").combine_chunks() if "step" in rows.column_names else None
            self._calls.append(_Calls(ends["min"], ends["max"], keys, rows.column("row").combine_chunks(), steps))

    def launched(self, rows: pa.Table) -> pa.Table:
        """`rows` of device work with the call that started each, and that call's step."""
        keys = _key(rows)
        ends = pc.min_max(keys).as_py()
        near = [c for c in self._calls if ends["min"] is not None and c.low <= ends["max"] and c.high >= ends["min"]]
        if near:
            at = pc.index_in(keys, pa.chunked_array([c.keys for c in near]))
            rows = rows.append_column("launch_row", pc.take(pa.chunked_array([c.rows for c in near]), at))
            if all(c.steps is not None for c in near):
                rows = rows.append_column("step", pc.take(pa.chunked_array([c.steps for c in near]), at))
        return rows

    def _fill(self, table: str, rows: pa.Table) -> None:
        con = self._database()
        con.register("given", rows)
        con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM given")
        con.unregister("given")

    def _database(self) -> duckdb.DuckDBPyConnection:
        if self._con is None:
            self._con = _database().cursor()
            self._con.execute(
                "CREATE TEMP TABLE range (row BIGINT, proc INTEGER, thread BIGINT, ts_ns BIGINT, dur_ns BIGINT);"
                "CREATE TEMP TABLE point (proc INTEGER, thread BIGINT, ts_ns BIGINT, row BIGINT);"
                "CREATE TEMP TABLE enclosed (row BIGINT, parent_row BIGINT);"
                "CREATE TEMP TABLE numbered_step (proc INTEGER, step BIGINT, start_ns BIGINT, end_ns BIGINT)"
            )
        return self._con


@lru_cache(maxsize=1)
def _database() -> duckdb.DuckDBPyConnection:
    """One for all loads of this process: to open one takes as long as to load a small export."""
    spill = Path(tempfile.gettempdir()) / f"forensics-nsys-{os.getpid()}"
    return connect(temp_directory=str(spill), memory_limit=_MEMORY_LIMIT)


_NEVER = 2**63 - 1
_ENCLOSED_KINDS = (("row", pa.int64()), ("parent_row", pa.int64()))
_MOMENT_KINDS = (("proc", pa.int32()), ("thread", pa.int64()), ("ts_ns", pa.int64()), ("row", pa.int64()))


@dataclass
class _Nesting:
    """Walks ranges in the order of thread and time. A moment: from here on this range is the innermost, or none."""

    _moments: list[tuple[int, int, int, int | None]] = field(default_factory=list)
    _enclosed: list[tuple[int, int | None]] = field(default_factory=list)
    _place: tuple[int, int] = (-1, -1)
    _open: list[tuple[int, int]] = field(default_factory=list)  # row, end

    def add(self, batch: pa.RecordBatch) -> None:
        for row, proc, thread, start, end in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if (proc, thread) != self._place:
                self.close_all()
                self._place = (proc, thread)
            self._close_until(start)
            self._enclosed.append((row, self._open[-1][0] if self._open else None))
            self._open.append((row, _NEVER if end is None else end))
            self._mark(start, row)

    def close_all(self) -> None:
        self._close_until(_NEVER - 1)
        self._open.clear()

    def _close_until(self, ts_ns: int) -> None:
        while self._open and self._open[-1][1] <= ts_ns:
            _, end = self._open.pop()
            self._mark(end, self._open[-1][0] if self._open else None)

    def _mark(self, ts_ns: int, row: int | None) -> None:
        moment = (*self._place, ts_ns, row)
        if self._moments and self._moments[-1][:3] == moment[:3]:
            self._moments[-1] = moment  # one moment has one innermost range
        else:
            self._moments.append(moment)

    def moments(self, *, keep_last: bool) -> pa.Table:
        """The moments since the last call; the last one can still be replaced."""
        kept = self._moments[-1:] if keep_last else []
        given = self._moments[: len(self._moments) - len(kept)]
        self._moments = kept
        return _columns_of(given, _MOMENT_KINDS)

    def enclosed(self) -> pa.Table:
        given, self._enclosed = self._enclosed, []
        return _columns_of(given, _ENCLOSED_KINDS)


def _columns_of(rows: Sequence[tuple[int | None, ...]], kinds: Sequence[tuple[str, pa.DataType]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return pa.table({name: pa.array(values, kind) for (name, kind), values in zip(kinds, columns, strict=True)})


def _key(rows: pa.Table) -> pa.Array:
    """Process and correlation as one number, NULL where there is no correlation."""
    process = pc.shift_left(pc.cast(rows.column("proc"), pa.int64()), pa.scalar(_PROCESS_BITS, pa.int64()))
    low = pc.bit_wise_and(rows.column("correlation"), pa.scalar((1 << _PROCESS_BITS) - 1, pa.int64()))
    return pc.add(process, low).combine_chunks()


@dataclass
class StepNames:
    """Collects ranges that number steps; one family of names is taken for each process."""

    _seen: dict[tuple[int, str], list[tuple[int, int, int]]] = field(default_factory=dict)
    _n: int = 0

    def add(self, rows: pa.Table) -> None:
        like = pc.match_substring_regex(rows.column("name"), r"(?i)(step|iter)[\w#:= ]*\d$")
        wanted = rows.filter(pc.and_(like, pc.is_valid(rows.column("dur_ns"))))
        for row in wanted.select(["proc", "name", "ts_ns", "dur_ns"]).to_pylist():
            found = _STEP.fullmatch(row["name"])
            if found and row["proc"] is not None and self._n < 1_000_000:
                self._n += 1
                key = (row["proc"], found["family"].casefold())
                self._seen.setdefault(key, []).append(
                    (int(found["number"]), row["ts_ns"], row["ts_ns"] + row["dur_ns"])
                )

    def table(self) -> pa.Table:
        """`proc`, `step`, `start_ns`, `end_ns` of the family with most ranges, the longer ones where two are equal."""
        size = Counter({key: len(found) for key, found in self._seen.items()})
        chosen: dict[int, tuple[int, str]] = {}
        for proc, family in sorted(self._seen):
            best = chosen.get(proc)
            if best is None or (size[proc, family], self._length(proc, family)) > (size[best], self._length(*best)):
                chosen[proc] = (proc, family)
        rows = [
            {"proc": proc, "step": step, "start_ns": start, "end_ns": end}
            for proc, key in chosen.items()
            for step, start, end in sorted(self._seen[key], key=lambda found: found[1])
        ]
        kinds = {"proc": pa.int32(), "step": pa.int64(), "start_ns": pa.int64(), "end_ns": pa.int64()}
        return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})

    def _length(self, proc: int, family: str) -> int:
        return sum(end - start for _, start, end in self._seen[proc, family])
