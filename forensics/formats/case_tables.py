"""Tables of a case as the recipe of `forensics/nsys_recipes` leaves them: slice.parquet, sample.parquet, fact.parquet.

`File` names the report that a row comes from. Stacks and processes are ids of that case and are left out; findings and
warnings are conclusions, not evidence, and are not read back.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Head, Sink, Source
from forensics.case import sink_schema
from forensics.errors import ArtifactError
from forensics.redact import masked_value

VERSION = 1
TITLE = "Tables of cases, written by the recipe for nsys recipe (Parquet)"
PROVIDES = ("slice", "sample", "fact")

_TABLES = {"slice.parquet": "slice", "sample.parquet": "sample", "fact.parquet": "fact"}
_MARKS = {"slice": {"kind", "name", "dur_ns"}, "sample": {"name", "value", "source"}, "fact": {"scope", "key", "value"}}
_OF_THE_CASE = {"stack_id", "proc_id", "artifact_id", "parent_row", "launch_row", "forward_row"}
_MAX_ROWS = 20_000_000
_MAX_FACTS = 2_000


def recognise(head: Head) -> int:
    named = head.name.replace("!", "/").rpartition("/")[2] in _TABLES
    return 40 if head.data.startswith(b"PAR1") and named else 0


def load(source: Source, sink: Sink) -> None:
    table = _TABLES[source.name.replace("!", "/").rpartition("/")[2]]
    try:
        file = pq.ParquetFile(source.path)
        names = set(file.schema_arrow.names)
        if not {"artifact_id", "File"} | _MARKS[table] <= names:
            raise ArtifactError(f"{source.name}: columns {sorted(names)[:20]}; expected the {table} table of a case")
        if file.metadata.num_rows > _MAX_ROWS:
            raise ArtifactError(f"{source.name}: {file.metadata.num_rows} rows; expected at most {_MAX_ROWS}")
        if table == "fact":
            _load_facts(file, sink)
        else:
            _load_events(file, table, source.name, sink)
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{source.name}: cannot be read ({error}); expected a Parquet file") from error


def _load_events(file: pq.ParquetFile, table: str, name: str, sink: Sink) -> None:
    wanted = {field.name: field.type for field in sink_schema(table)}
    n_rows = 0
    for batch in file.iter_batches(50_000):
        given = pa.Table.from_batches([batch])
        kept = [c for c in given.column_names if c in wanted and c not in _OF_THE_CASE and c != "row"]
        try:
            rows = given.select(kept).cast(pa.schema([(c, wanted[c]) for c in kept]), safe=False)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ArtifactError(f"{name}: {error}; expected the types of a case's {table} table") from error
        # Rows of several reports follow each other here, so they are counted anew.
        sink.emit(table, rows.append_column("row", pa.array(range(n_rows, n_rows + len(rows)), pa.int64())))
        n_rows += len(rows)
    sink.cover(table, complete=False, n_read=n_rows, n_kept=n_rows)
    if table == "slice":
        sink.clock("epoch")


def _load_facts(file: pq.ParquetFile, sink: Sink) -> None:
    for row in file.read(["scope", "key", "value"]).slice(0, _MAX_FACTS).to_pylist():
        key, value = str(row["key"]), str(row["value"])
        sink.fact(key, masked_value(key, value), scope=str(row["scope"]))
    sink.cover("fact", job=True, complete=False)
