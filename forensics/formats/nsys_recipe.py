"""Results of `nsys recipe`: Parquet files of its output folder, and the description beside them.

A file's columns decide what it is; names only say that it is worth looking. `*-metadata.parquet` are what
NVIDIA's JAX toolbox keeps of an export's TARGET_INFO tables.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._nsys_sheets import Sheets, columns_of, is_sheet
from forensics.redact import masked_text

VERSION = 1
TITLE = "Nsight Systems recipe results (Parquet, .nsys-analysis)"
PROVIDES = ("slice", "sample", "fact")

_RESULT = re.compile(
    r"(?:files|trace|stats|all_stats|rank_stats|analysis|pace_\w+|\w+_by_device|\w+_stats|(?:device|system|thread)-metadata"
    r"|(?:cuda|nvtx|nccl|osrt|mpi|gpu|network)_\w+)\.parquet"
)
_DESCRIBED = (b'"RecipeName"', b'"DisplayName"')
_MAX_ROWS = 20_000_000
_MAX_FACTS = 2_000
_QUALIFIED = re.compile(r"\('(\w+)', '(\w+)'\)")  # columns of two levels, as pandas writes them


def recognise(head: Head) -> int:
    if head.data.startswith(b"PAR1"):
        return 30 if _RESULT.fullmatch(head.name.replace("!", "/").rpartition("/")[2]) else 0
    return 95 if head.data.lstrip().startswith(b"{") and all(mark in head.data for mark in _DESCRIBED) else 0


def load(source: Source, sink: Sink) -> None:
    if source.head(4).data == b"PAR1":
        _load_results(source, sink)
        return
    try:
        described = orjson.loads(source.head(1 << 20).data)
    except orjson.JSONDecodeError as error:
        raise ArtifactError(f"{source.name}: not a description of a recipe ({error}); expected JSON") from error
    for key, value in list(described.items())[:100] if isinstance(described, dict) else []:
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        sink.fact(f"nsys-recipe.{key}", masked_text(text), scope="profiler")
    sink.cover("fact", job=True, complete=False)


def _load_results(source: Source, sink: Sink) -> None:
    try:
        file = pq.ParquetFile(source.path)
        names = file.schema_arrow.names
        if file.metadata.num_rows > _MAX_ROWS:
            raise ArtifactError(f"{source.name}: {file.metadata.num_rows} rows; expected at most {_MAX_ROWS}")
        if is_sheet(names):
            _load_sheet(file, names, source, sink)
        elif {"name", "value"} <= set(names) or any(_QUALIFIED.fullmatch(name) for name in names):
            _load_facts(file, names, sink)
        elif names == ["File"]:
            for row in file.read().slice(0, _MAX_FACTS).to_pylist():
                sink.fact("nsys-recipe.file", str(row["File"]), scope="profiler")
            sink.cover("fact", job=True, complete=False)
        elif not {"Name", "PID", "TID"} <= set(names):  # names of threads say nothing of a failure
            sink.warn("unknown-columns", f"columns {', '.join(names)[:200]}", "what this table holds")
            sink.damaged("unknown")
    except (pa.ArrowException, OSError) as error:
        raise ArtifactError(f"{source.name}: cannot be read ({error}); expected a Parquet file") from error


def _load_sheet(file: pq.ParquetFile, names: list[str], source: Source, sink: Sink) -> None:
    sheets, columns = Sheets(sink), columns_of(names)
    folder = source.name.replace("!", "/").split("/")[-2:-1]  # RECIPE or RECIPE-N
    report = re.sub(r"-\d{1,4}$", "", folder[0]) if folder else "recipe"
    for batch in file.iter_batches(50_000):
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sheets.add(report, columns, values, None)
    sheets.finish()


def _load_facts(file: pq.ParquetFile, names: list[str], sink: Sink) -> None:
    for row in file.read().slice(0, _MAX_FACTS).to_pylist():
        if {"name", "value"} <= set(names):
            if row["name"] and row["value"]:
                sink.fact(str(row["name"]), masked_text(str(row["value"])), scope="host")
            continue
        for name, value in row.items():
            found = _QUALIFIED.fullmatch(name)
            if found and value not in (None, ""):
                number: Any = float(value) if isinstance(value, int | float) else None
                gpu = row.get(f"('{found[1]}', 'id')", "")
                key = f"gpu{gpu}.{found[2]}" if found[1] == "TARGET_INFO_GPU" else f"{found[1]}.{found[2]}"
                sink.fact(key, str(value), scope="device", number=number)
    sink.cover("fact", job=True, complete=False)
