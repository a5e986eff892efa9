"""Opens a fleet for questions: the rows of all jobs as views of DuckDB, explained in `views.sql`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.case import MEMORY_LIMIT, connect
from forensics.errors import CaseError
from forensics.fleet.drift import SCHEMA as DRIFT
from forensics.fleet.layout import Fleet
from forensics.fleet.rows import SCHEMA
from forensics.redact import mask
from forensics.reviews import FILE, read_reviews

_LOOSE = 64  # row files that are not worth packing
_MOST_PARTS = 16
_BATCH_ROWS = 256
_REVIEW = pa.schema({"job": pa.string(), "fingerprint": pa.string(), "decision": pa.string(), "note": pa.string()})
_DRIFT_MEANING = "Metrics of each run against those of the run before in its series: two-sample Kolmogorov-Smirnov"
_DRIFT_COLUMNS = {
    "series": "job.series",
    "metric": "Name of the metric",
    "job": "job.job of the later run",
    "job_before": "job.job of the run before",
    "run": "job.run of the later one",
    "ended_ns": "job.ended_ns of the later one",
    "statistic": "Largest distance between the two distributions, 0 to 1",
    "p": "Probability of that distance without a difference, for the number of independent values",
    "n": "Independent values of the run that has fewer",
    "median": "Median in the later run, over the steps that both reached",
    "median_before": "Median in the run before",
    "drifted": "Whether the distance is at least 0.3 and p at most 0.001",
}


def open_fleet(fleet: Fleet, memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """A connection that reads the fleet's rows and nothing else; its settings are locked."""
    fleet.check()
    con = connect(memory_limit=memory_limit or MEMORY_LIMIT)
    files = [*sorted(fleet.packed.glob("*.parquet")), *sorted(fleet.rows.glob("*.parquet"))]
    if not files:
        empty = fleet.packed / "none.parquet"
        pq.write_table(SCHEMA.empty_table(), empty)
        files = [empty]
    names = ", ".join(_quoted(path) for path in files)
    con.execute(f"CREATE VIEW stored AS SELECT * FROM read_parquet([{names}], union_by_name = true)")
    _load_reviews(con, fleet)
    drift = fleet.derived / "drift.parquet"
    if drift.exists():
        con.execute(f"CREATE VIEW drift AS SELECT * FROM read_parquet({_quoted(drift)})")
    else:
        con.register("no_drift", DRIFT.empty_table())
        con.execute("CREATE TABLE drift AS SELECT * FROM no_drift")
        con.unregister("no_drift")
    con.execute((Path(__file__).with_name("views.sql")).read_text(encoding="utf-8"))
    con.execute("COMMENT ON " + ("VIEW" if drift.exists() else "TABLE") + f" drift IS {_DRIFT_MEANING!r}")
    for column, meaning in _DRIFT_COLUMNS.items():
        con.execute(f'COMMENT ON COLUMN drift."{column}" IS ' + "'" + meaning.replace("'", "''") + "'")
    folders = ", ".join(_quoted(folder) for folder in (fleet.packed, fleet.rows, fleet.derived))
    con.execute(f"SET allowed_directories = [{folders}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def ask(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """The answer to one SELECT. Raises CaseError for anything else: the folders may be read only."""
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise CaseError(f"query: {error}") from error
    kinds = {str(statement.type).rpartition(".")[2] for statement in statements}
    if len(statements) != 1 or not kinds <= {"SELECT", "EXPLAIN"}:
        raise CaseError(f"query: {', '.join(sorted(kinds)) or 'nothing'}; expected one SELECT")
    answer: duckdb.DuckDBPyRelation | None = con.sql(sql)
    if answer is None:
        raise CaseError("query: the statement gives no rows; expected a SELECT")
    return answer


def rows_of(con: duckdb.DuckDBPyConnection, sql: str, given: Sequence[Any] = ()) -> list[dict[str, Any]]:
    cursor = con.execute(sql, list(given))
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def pack(fleet: Fleet) -> None:
    """Joins row files into a part, and many parts into one; the newest row of a job counts, so a kill does no harm."""
    loose = sorted(fleet.rows.glob("*.parquet"))
    if len(loose) <= _LOOSE:
        return
    parts = sorted(fleet.packed.glob("*.parquet"))
    joined = [*parts, *loose] if len(parts) >= _MOST_PARTS else loose
    beside = fleet.packed / ".part.new"
    with pq.ParquetWriter(beside, SCHEMA, compression="zstd") as writer:
        tables: list[pa.Table] = []
        for path in joined:
            with contextlib.suppress(pa.ArrowInvalid):  # no row that a batch wrote
                tables.append(pq.read_table(path, schema=SCHEMA))
            if sum(table.num_rows for table in tables) >= _BATCH_ROWS:
                writer.write_table(pa.concat_tables(tables))
                tables = []
        if tables:
            writer.write_table(pa.concat_tables(tables))
    beside.replace(fleet.packed / f"part-{time.time_ns():020d}.parquet")
    for path in joined:
        path.unlink(missing_ok=True)


def _load_reviews(con: duckdb.DuckDBPyConnection, fleet: Fleet) -> None:
    """What reviewers decided, from reviews.jsonl beside each case."""
    decided = [
        {"job": path.parent.name, "fingerprint": said.fingerprint, "decision": said.state, "note": mask(said.note)}
        for path in sorted(fleet.jobs.glob(f"*/{FILE}"))
        for said in read_reviews(path.parent).values()
        if said.state != "open"
    ]
    con.register("given_reviews", pa.Table.from_pylist(decided, _REVIEW))
    con.execute("CREATE TABLE review AS SELECT * FROM given_reviews ORDER BY job, fingerprint")
    con.unregister("given_reviews")
