"""Nsight Systems exports: calls and kernels of many launches, as SQLite in NVIDIA's layout, to Parquet.

The yardsticks read the same columns of the same rows without doing anything with them: through the standard library's
tuples, and through the ADBC driver (`ADBC_PYTHON`: the interpreter of an environment with adbc-driver-sqlite).
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benchmarks.ingest import Bound, Comparison, Peer, build_case

_PID = (1 << 48) | (4242 << 24)
_CALLS = ("cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "cudaEventRecord_v3020", "cudaStreamWaitEvent_v3020")
_KERNELS = [f"void at::native::elementwise_kernel<{n}, 128>(int, Functor{n}, float*, float const*)" for n in range(300)]
_SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
    category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER,
    domainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
    globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL,
    callchainId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
    contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
    globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER,
    launchType INTEGER, cacheConfig INTEGER, registersPerThread INTEGER NOT NULL, gridX INTEGER NOT NULL,
    gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL, blockY INTEGER NOT NULL,
    blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL, dynamicSharedMemory INTEGER NOT NULL,
    localMemoryPerThread INTEGER NOT NULL, localMemoryTotal INTEGER NOT NULL, gridId INTEGER NOT NULL,
    sharedMemoryExecuted INTEGER, graphNodeId INTEGER, sharedMemoryLimitConfig INTEGER);
"""
_READ = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, demangledName",
}


def export(folder: Path, *, kernels: int, calls: int, steps: int = 0) -> Path:
    """An export of so many rows, the same bytes at every call."""
    path = folder / f"nsys-{kernels}-{calls}-{steps}.sqlite"
    if path.exists():
        return path
    con = sqlite3.connect(path, isolation_level=None)
    con.execute("PRAGMA journal_mode = off")
    con.executescript(_SCHEMA)
    con.execute("BEGIN")
    con.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '')")
    con.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate((*_CALLS, *_KERNELS)))
    span = calls * 6000 // max(steps, 1)
    ranges = ((n * span, n * span + span - 9, 59, f"iteration {n}", _PID | 4243) for n in range(steps))
    con.executemany("INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, ?, ?, ?)", ranges)
    con.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, NULL)", _runtime(calls))
    values = ", ".join(["?"] * 11 + ["1, 1, 32, 50, 4, 1, 256, 1, 1, 0, 0, 0, 250871808, ?, 32768, NULL, 0"])
    con.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({values})", _kernels(kernels, calls // kernels))
    con.execute("COMMIT")
    con.close()
    return path


def _runtime(n: int) -> Iterator[tuple[int, ...]]:
    for i in range(n):
        yield i * 6000, i * 6000 + 3000 + i * 7919 % 977, _PID | 4243, i + 1, i % len(_CALLS)


def _kernels(n: int, every: int) -> Iterator[tuple[int | None, ...]]:
    for i in range(n):
        start, name = i * every * 6000 + 5000, len(_CALLS) + i * 31 % len(_KERNELS)
        yield start, start + 8000 + i * 7919 % 977, i % 2, 1, 0, 7 + i % 3, i * every + 1, _PID, name, name, None, i


def ingest_only(path: Path) -> int:
    """Recognises, hashes and loads the export into the Parquet cache; returns its slices."""
    from forensics.discovery import discover
    from forensics.ingest import ingest

    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        (loaded,) = ingest(discover(path, Path(place) / "work"), Path(place) / "cache")
        return sum(c["n_kept"] for c in loaded.meta["coverage"] if c["capability"] == "slice")


def _tuples(path: Path) -> int:
    import pyarrow as pa

    con = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    n = 0
    for table, columns in _READ.items():
        cursor = con.execute(f"SELECT {columns} FROM {table}")
        while rows := cursor.fetchmany(50_000):
            n += pa.table(
                [pa.array(c, pa.int64()) for c in zip(*rows, strict=True)], names=columns.split(", ")
            ).num_rows
    return n


_ADBC = f"""
import json, sys, time
import adbc_driver_sqlite.dbapi as driver
began, cpu, n = time.perf_counter(), time.process_time(), 0
with driver.connect(f"file:{{sys.argv[1]}}?mode=ro&immutable=1") as con, con.cursor() as cursor:
    for table, columns in {_READ!r}.items():
        cursor.adbc_statement.set_options(**{{"adbc.sqlite.query.batch_rows": "65536"}})
        cursor.execute(f'SELECT {{columns.replace(" end", chr(32) + chr(34) + "end" + chr(34))}} FROM {{table}}')
        n += sum(batch.num_rows for batch in cursor.fetch_record_batch())
print(json.dumps({{"wall": time.perf_counter() - began, "cpu": time.process_time() - cpu, "n": n}}))
"""

JOBS: dict[str, Callable[[Path], int] | Peer] = {
    "ingest": ingest_only,
    "case": build_case,
    "sqlite3, tuples": _tuples,
    "ADBC, read only": Peer("ADBC_PYTHON", _ADBC),
}
_JOBS = ("ingest", "case", "sqlite3, tuples", "ADBC, read only")
# 15 M rows at 1.5 M rows/s.
_LARGE = (Bound("ingest", "", 10.0), Bound("ingest", "", 1024, "rss"))

COMPARISONS = (
    Comparison("1 M rows", partial(export, kernels=333_000, calls=666_000), _JOBS,
               [Bound("ingest", "sqlite3, tuples", 1)]),
    Comparison("1 M rows in 500 steps", partial(export, kernels=333_000, calls=666_000, steps=500), _JOBS),
    Comparison("15 M rows", partial(export, kernels=5_000_000, calls=10_000_000), ("ingest", "sqlite3, tuples",
               "ADBC, read only"), _LARGE, runs=3, large=True),
)  # fmt: skip
