"""The case file: creating it, loading cached tables into it, opening it for rules and for people."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from forensics import resources
from forensics.errors import CaseError
from forensics.memory import parse_size, spare_bytes
from forensics.states import CAPABILITIES

# Never reach for the network: DuckDB otherwise tries to download extensions.
_OFFLINE = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}

# Of DuckDB alone, where the user gives none: it takes four fifths of the machine's memory otherwise.
MEMORY_LIMIT = "1200MB"
BUILDING_LIMIT = "640MB"  # while tables are filled: pages that were written stay in memory up to it
PORTION_ROWS = 1_000_000  # loaded into a table at a time, some hundred bytes each while they are sorted
_PORTION_FILES = 512
_LEAST_MIB = 32  # DuckDB opens nothing with less

# Tables that formats fill, apart from what Sink has methods for.
EVENT_TABLES = (
    "step",
    "log_event",
    "sample",
    "slice",
    "span_detail",
    "memory_event",
    "memory_segment",
    "memory_block",
    "process_group",
    "collective",
    "thread_state",
    "node",
    "edge",
    "tensor",
    "checkpoint",
    "checkpoint_tensor",
    "adapter_module",
    "placement",
    "reference_link",
    "compile_event",
    "position",
)
# What models derive, and cases beside rules may give as well.
DERIVED_TABLES = (
    "memory_moment",
    "memory_owner",
    "memory_growth",
    "device_time",
    "device_idle",
    "device_gap",
    "critical_path",
    "launch_queue",
)
_TEXT_COLUMNS = {
    "name_id",
    "entity_id",
    "shapes_id",
    "shape_id",
    "request_id",
    "op_id",
    "holder_id",
    "module_id",
    "autograd_id",
    "reason_id",
} | {
    "exception_id",
    "message_id",
    "function_id",
    "file_id",
}
_MAX_KNOWN = 1_000_000
_FEW_PROCESSES = 64  # told apart row by row
_LARGE_BYTES = 1 << 20  # of the Parquet parts of one artifact
_CREATE_TABLE = re.compile(r"^CREATE TABLE (\w+) \((.*?)^\);", re.DOTALL | re.MULTILINE)
_ARROW = {
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UBIGINT": pa.uint64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "JSON": pa.string(),
    "INTEGER[]": pa.list_(pa.int32()),
    "DOUBLE[]": pa.list_(pa.float64()),
}


def connect(path: Path | None = None, *, read_only: bool = False, **config: Any) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that never touches the network. `path` None: in memory.

    Where the process itself has a bound on its memory, the database takes at most half of what is left of it.
    """
    options: dict[str, Any] = {**_OFFLINE, **{k: v for k, v in config.items() if v is not None}}
    if (limit := affordable(options.get("memory_limit"))) is not None:
        options["memory_limit"] = limit
    try:
        return duckdb.connect(str(path) if path else ":memory:", read_only=read_only, config=options)
    except duckdb.Error as error:
        raise CaseError(
            f"{path}: cannot be opened ({error}); expected a case written by `forensics analyze`"
        ) from error


def affordable(limit: str | None) -> str | None:
    """The memory limit for a database as asked for, or what the bound of the process itself leaves for one."""
    spare = spare_bytes()
    if spare is None:
        return limit
    return f"{max(min(parse_size(str(limit)) or spare, spare // 2) >> 20, _LEAST_MIB)}MiB"


@lru_cache(maxsize=1)
def _declared() -> dict[str, dict[str, tuple[str, bool]]]:
    """Table → column → (SQL type, may be NULL), read off schema.sql: asking DuckDB would cost a tenth of a second."""
    tables: dict[str, dict[str, tuple[str, bool]]] = {}
    for name, body in _CREATE_TABLE.findall(resources.schema_sql()):
        columns = (definition.split() for definition in body.split(","))
        tables[name] = {
            words[0].strip('"'): (words[1], not {"NULL", "PRIMARY"} & set(words[2:])) for words in columns if words
        }
    return tables


def arrow_type(kind: str) -> pa.DataType:
    """The Arrow type of an SQL type of schema.sql."""
    return _ARROW[kind]


def case_columns() -> dict[str, dict[str, str]]:
    """Columns and SQL types of every table of schema.sql."""
    return {table: {name: kind for name, (kind, _) in columns.items()} for table, columns in _declared().items()}


@lru_cache(maxsize=64)
def sink_schema(table: str) -> pa.Schema:
    """The columns in which formats give rows of a table: texts for interned texts, `proc` for `proc_id`."""
    if table not in (*EVENT_TABLES, *DERIVED_TABLES, "stack"):
        raise ValueError(f"{table}: not a table that formats fill; expected one of {', '.join(EVENT_TABLES)}, stack")
    fields = []
    for column, (kind, nullable) in _declared()[table].items():
        if column in {"artifact_id", "rank"}:
            continue
        if column == "proc_id":
            fields.append(pa.field("proc", pa.int32()))
            continue
        if column in _TEXT_COLUMNS:
            fields.append(pa.field(column.removesuffix("_id"), pa.string(), nullable))
        else:
            fields.append(pa.field(column, _ARROW[kind], nullable))
    return pa.schema(fields)


def conform(table: str, data: pa.Table | pa.RecordBatch) -> pa.Table:
    """Casts rows of a format to the table's columns; missing ones become NULL, `proc` 0.

    Raises ValueError for an unknown column and for NULL where the table needs a value.
    """
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    schema = sink_schema(table)
    unknown = set(data.column_names) - set(schema.names)
    if unknown:
        raise ValueError(f"{table}: unknown columns {sorted(unknown)}; expected {schema.names}")
    columns: list[Any] = []
    for field in schema:
        if field.name in data.column_names:
            columns.append(_cast(data.column(field.name), field.type))
        elif field.name == "proc":
            columns.append(pa.repeat(pa.scalar(0, pa.int32()), data.num_rows))
        else:
            columns.append(pa.nulls(data.num_rows, field.type))
        if not field.nullable and columns[-1].null_count:
            raise ValueError(f"{table}.{field.name}: {columns[-1].null_count} rows have no value; every row needs one")
    return pa.table(dict(zip(schema.names, columns, strict=True)))


def _cast(column: Any, kind: pa.DataType) -> Any:
    """The column as `kind`. Texts that come as a dictionary stay one: millions of rows share a few hundred names."""
    given = column.type
    if kind == pa.string() and pa.types.is_dictionary(given) and given.value_type == kind:
        return column.cast(pa.dictionary(pa.int32(), kind))
    return column.cast(kind)


def joined(batches: Sequence[pa.Table]) -> pa.Table:
    """Conformed rows of one table as one; texts as such where some batches have them as dictionaries and some not."""
    if any(batch.schema != batches[0].schema for batch in batches):
        fields = [
            pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in batches[0].schema
        ]
        batches = [batch.cast(pa.schema(fields)) for batch in batches]
    return pa.concat_tables(batches)


_empty: list[bytes] = []  # what the first case of this process was before it got rows


def create_case(path: Path) -> duckdb.DuckDBPyConnection:
    """A new, empty case file with the schema, written so that DuckDB 1.5 can open it too.

    The first of a process takes 0.15 s; each further one is a copy of it, which takes a tenth.
    """
    if _empty:
        path.write_bytes(_empty[0])
        return _attached(path)
    con = _attached(path)
    # One transaction: each statement alone would reach the disk.
    con.execute(f"BEGIN; {resources.schema_sql()}; COMMIT")
    con.executemany(
        "INSERT INTO capability VALUES (?, ?, ?)", [(n, c.meaning, c.capture) for n, c in CAPABILITIES.items()]
    )
    con.close()
    _empty.append(path.read_bytes())
    return _attached(path)


@contextmanager
def first_case_aside(folder: Path) -> Iterator[None]:
    """Makes the first case of this process on a thread of its own, below `folder`, while other work is done."""
    with ThreadPoolExecutor(1) as aside:
        if not _empty:
            aside.submit(lambda: create_case(folder / "empty.duckdb").close())
        yield


def _attached(path: Path) -> duckdb.DuckDBPyConnection:
    con = connect(memory_limit=BUILDING_LIMIT, temp_directory=f"{path}.tmp")
    con.execute(f"ATTACH '{_quoted(path)}' AS investigation (STORAGE_VERSION 'v1.5.0')")
    con.execute("USE investigation")
    return con


def text_id(text: str) -> int:
    """What `string.id` is: the low 64 bits of the text's MD5 (DuckDB's md5_number_lower)."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[8:], "little")


def intern(table: str, batches: Sequence[pa.Table], known: set[int]) -> tuple[pa.Table, pa.Table]:
    """Rows as the case stores them: ids in place of texts, in the order of `row`; and the texts that are not `known`.

    `batches`: out of `conform`. The columns of the texts are those of `string`. Distinct texts alone are hashed.
    """
    rows = joined(batches)
    texts: dict[int, str] = {}
    for column in case_columns()[table]:
        name = column.removesuffix("_id")
        if column in _TEXT_COLUMNS:
            place = rows.schema.get_field_index(name)
            chunks = [_interned(chunk, texts) for chunk in rows.column(place).chunks]
            rows = rows.set_column(place, column, pa.chunked_array(chunks, pa.uint64()))
    if len(known) > _MAX_KNOWN:
        known.clear()  # a text that is stored twice does no harm
    fresh = {number: text for number, text in texts.items() if number not in known}
    known.update(fresh)
    if "row" in rows.column_names and not _ascends(rows.column("row")):
        rows = rows.take(pc.sort_indices(rows, sort_keys=[("row", "ascending")]))
    return rows, pa.table({"id": pa.array(fresh, pa.uint64()), "text": pa.array(fresh.values(), pa.string())})


def _interned(chunk: pa.Array, texts: dict[int, str]) -> pa.Array:
    encoded = chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    ids = [None if text is None else text_id(text) for text in distinct]
    texts.update((number, text) for number, text in zip(ids, distinct, strict=True) if number is not None)
    return pa.array(ids, pa.uint64()).take(encoded.indices)


def _ascends(values: pa.ChunkedArray) -> bool:
    ordered = values.combine_chunks()
    later, earlier = ordered[1:], ordered[:-1]
    return bool(pc.all(pc.greater_equal(later, earlier)).as_py()) if len(ordered) > 1 else True


def has_rows(con: duckdb.DuckDBPyConnection, table: str) -> bool:
    """Whether there is anything to ask for: planning a long query costs milliseconds also over nothing."""
    return con.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is not None


def load_table(con: duckdb.DuckDBPyConnection, table: str, parts: Iterable[tuple[int, Path]]) -> None:
    """Appends Parquet parts of artifacts, written after `intern`, to a table, in the order given.

    Expects the temporary tables `process_of(artifact_id, proc, proc_id, rank)`; rows of unknown processes keep NULL.
    """
    small: list[tuple[int, Path]] = []
    for artifact_id, of_artifact in groupby(parts, key=lambda part: part[0]):
        listed = list(of_artifact)
        if sum(path.stat().st_size for _, path in listed) < _LARGE_BYTES:
            small += listed
            continue
        for some in _portions(small):
            _append_small(con, table, some)
        small = []
        if not _append_large(con, table, artifact_id, [path for _, path in listed]):
            small = listed
    for some in _portions(small):
        _append_small(con, table, some)


def _portions(parts: Iterable[tuple[int, Path]]) -> Iterator[list[tuple[int, Path]]]:
    """Parts in order, so many at a time that their rows can be sorted in memory."""
    portion: list[tuple[int, Path]] = []
    n_rows = 0
    for aid, path in parts:
        n_rows += pq.read_metadata(path).num_rows
        portion.append((aid, path))
        if n_rows >= PORTION_ROWS or len(portion) >= _PORTION_FILES:
            yield portion
            portion, n_rows = [], 0
    if portion:
        yield portion


def _append_small(con: duckdb.DuckDBPyConnection, table: str, parts: Sequence[tuple[int, Path]]) -> None:
    """Many artifacts in one statement: each statement costs more than their rows."""
    con.execute("CREATE OR REPLACE TEMP TABLE part (filename VARCHAR, artifact_id INTEGER, ordinal INTEGER)")
    con.executemany("INSERT INTO part VALUES (?, ?, ?)", [(str(path), aid, n) for n, (aid, path) in enumerate(parts)])
    columns = case_columns()[table]
    joins = "JOIN part AS f ON f.filename = p.filename"
    if "proc_id" in columns:
        joins += " LEFT JOIN process_of AS o ON o.artifact_id = f.artifact_id AND o.proc = p.proc"
    order = "ORDER BY f.ordinal, p.row" if "row" in columns else "ORDER BY f.ordinal"
    values = _selected(table, "f.artifact_id", {"proc_id": "o.proc_id", "rank": "o.rank"})
    # Artifacts of one content share their parts: each is read once, and the join gives every one its rows.
    _insert_parts(con, table, values, list(dict.fromkeys(path for _, path in parts)), f"{joins} {order}")


def _append_large(con: duckdb.DuckDBPyConnection, table: str, artifact_id: int, parts: Sequence[Path]) -> bool:
    """One artifact alone: its rows are in order already, so they are neither joined nor sorted.

    False, and nothing is done, where it has many processes.
    """
    query = "SELECT proc, proc_id, rank FROM process_of WHERE artifact_id = ? ORDER BY proc"
    processes = con.execute(query, [artifact_id]).fetchall()
    if len(processes) > _FEW_PROCESSES:
        return False
    cases = {}
    for place, name in enumerate(("proc_id", "rank"), 1):
        whens = " ".join(f"WHEN {row[0]} THEN {row[place]}" for row in processes if row[place] is not None)
        cases[name] = f"CAST(CASE p.proc {whens} END AS INTEGER)" if whens else "CAST(NULL AS INTEGER)"
    _insert_parts(con, table, _selected(table, str(artifact_id), cases), parts, "")
    return True


def _selected(table: str, artifact_id: str, processes: Mapping[str, str]) -> str:
    select = []
    for column, kind in case_columns()[table].items():
        if column == "artifact_id":
            select.append(artifact_id)
        elif column in processes and "proc_id" in case_columns()[table]:
            select.append(processes[column])
        elif kind == "JSON":  # one invalid text would otherwise fail the whole table
            select.append(f'CASE WHEN json_valid(p."{column}") THEN p."{column}" END')
        else:
            select.append(f'p."{column}"')
    return ", ".join(select)


def _insert_parts(con: duckdb.DuckDBPyConnection, table: str, values: str, parts: Sequence[Path], rest: str) -> None:
    files = ", ".join(f"'{_quoted(path)}'" for path in parts)
    source = f"SELECT {values} FROM read_parquet([{files}], filename = true) AS p {rest}"
    if table == "string":
        source = f"SELECT id, min(text) FROM ({source}) AS given (id, text) GROUP BY id ORDER BY id"
    conflict = "OR IGNORE " if table in {"stack", "string"} else ""
    con.execute(f"INSERT {conflict}INTO {table} {source}")


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


def open_for_rules(path: Path, memory_limit: str | None = None) -> duckdb.DuckDBPyConnection:
    """The case read-only, without access to files or network, its settings locked.

    One thread: sums of doubles would otherwise depend on how rows were split.
    """
    con = connect(
        path, read_only=True, enable_external_access="false", threads=1, memory_limit=memory_limit or MEMORY_LIMIT
    )
    con.execute("SET lock_configuration = true")
    return con
