"""Which members of trace events are read, and the query that reads a file of events with DuckDB's JSON reader.

All members of all eras are asked for: to look for their names in the text first would cost more than they do.
"""

from __future__ import annotations

from functools import lru_cache

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

# Member of an event's args: column, type. Addresses can use all 64 bits; the others never exceed 63.
ARGS = {
    "External id": ("external", "BIGINT"),
    "correlation": ("correlation", "BIGINT"),
    "Sequence number": ("sequence", "BIGINT"),
    "Fwd thread id": ("forward_thread", "BIGINT"),
    "device": ("device", "BIGINT"),
    "stream": ("stream", "BIGINT"),
    "bytes": ("bytes", "BIGINT"),
    "size": ("size", "BIGINT"),
    "Input Dims": ("shapes", "JSON"),
    "wait_on_stream": ("wait_stream", "BIGINT"),
    "graph id": ("graph_id", "BIGINT"),
    "Call stack": ("calls", "VARCHAR"),
    "labels": ("label", "VARCHAR"),
    "name": ("label_name", "VARCHAR"),
    "Addr": ("addr", "UBIGINT"),
    "Bytez": ("changed_bytes", "BIGINT"),
    "Total Allocated": ("allocated", "BIGINT"),
    "Total Reserved": ("reserved", "BIGINT"),
    "Device Type": ("device_type", "BIGINT"),
    "Device Id": ("device_id", "BIGINT"),
    "Collective name": ("operation", "VARCHAR"),
    "dtype": ("dtype", "VARCHAR"),
    "In msg nelems": ("in_elements", "BIGINT"),
    "Out msg nelems": ("out_elements", "BIGINT"),
    "Process Group Name": ("group_name", "VARCHAR"),
    "Process Group Ranks": ("group_ranks", "VARCHAR"),
    "Seq": ("group_sequence", "BIGINT"),
    "Src Rank": ("source_rank", "BIGINT"),
    "Dst Rank": ("target_rank", "BIGINT"),
}
# DuckDB's structs do not tell upper from lower case: "Bytes" of [memory] from "bytes" of copies.
BYTES, BYTEZ = b'"Bytes":', b'"Bytez":'  # same length, so that no offset changes
_BEFORE_2022 = {"External id": "external id", "Input Dims": "Input dims"}
NAMES = {"Bytes": "Bytez", **{old: new for new, old in _BEFORE_2022.items()}}
TEXTS = ("ph", "cat", "name", "pid", "tid", "id")
_COUNTERS = {"ph": "VARCHAR", "name": "VARCHAR", "ts": "DECIMAL(20,3)", "args": "JSON"}


def _any(column: str, names: tuple[str, ...]) -> str:
    # Not IN: long lists become joins, and the order of the file is lost.
    return "(" + " OR ".join(f"{column} = '{name}'" for name in names) + ")"


# Not rows of their own: metadata, flows, counters, the ends of begun slices, events that were lost.
_KIND = (
    "CASE WHEN ph = 'X' OR ph = 'B' THEN CASE "
    + " ".join(f"WHEN {_any('cat', cats)} THEN '{kind}'" for kind, cats in KINDS.items())
    + " WHEN cat LIKE '%\\_runtime' ESCAPE '\\' THEN 'runtime' WHEN cat LIKE '%\\_driver' ESCAPE '\\' THEN 'driver'"
    + " ELSE coalesce(cat, 'uncategorised') END"
    + f" WHEN ph IN ('M', 's', 't', 'f', 'C', 'E', 'e', 'c') THEN NULL WHEN {_any('name', _MEMORY)} THEN 'memory'"
    + " WHEN ph IS NOT NULL THEN 'instant' END"
)
# Other backends' device work tells its device or stream.
_DEVICE = (
    "CASE kind "
    + " ".join(f"WHEN '{kind}' THEN {value}" for kind, value in _ON_DEVICE.items())
    + " ELSE device IS NOT NULL OR stream IS NOT NULL END"
)
# The legacy autograd profiler gives no categories.
_EVENTS = f"""
SELECT row_number() OVER () - 1 AS row, ph, cat, coalesce(name, '') AS name, kind, on_device, pid, tid,
    hash(pid, tid, {{document}}) AS thread_key, id, ts_ns, dur_ns, external, correlation, sequence,
    coalesce(forward_thread, 0) AS forward_thread, TRY_CAST(tid AS BIGINT) AS tid_number,
    TRY_CAST(CASE WHEN on_device THEN coalesce(device, TRY_CAST(pid AS BIGINT)) END AS INTEGER) AS device,
    CASE WHEN on_device THEN coalesce(nullif(stream, -1), wait_stream,
        TRY_CAST(regexp_extract(tid, '[0-9]{{{{1,18}}}}$') AS BIGINT)) END AS stream,
    CASE WHEN kind = 'memcpy' OR kind = 'memset' OR (kind = 'runtime' AND regexp_matches(name, '[Mm]em(cpy|set)'))
        THEN coalesce(bytes, size) END AS bytes,
    nullif(graph_id, 0) AS graph_id, CASE WHEN length(shapes) > 2 THEN CAST(shapes AS VARCHAR) END AS shapes,
    nullif(calls, '') AS calls, label, label_name, addr, changed_bytes, allocated, reserved, device_type, device_id,
    operation, dtype, in_elements, out_elements, group_name, group_ranks, group_sequence,
    source_rank, target_rank
FROM (
    SELECT *, {_DEVICE} AS on_device FROM (
        SELECT *, {_KIND} AS kind FROM (
            SELECT ph, name,
                CASE WHEN cat IS NULL AND pid IN ('CPU functions', 'CUDA functions') THEN pid ELSE cat END AS cat,
                 pid, tid, id, TRY_CAST(ts * 1000 AS BIGINT) AS ts_ns, TRY_CAST(dur * 1000 AS BIGINT) AS dur_ns,
                {{args}}
            FROM read_json('{{path}}', format = 'array', columns = {{columns}}, maximum_object_size = {{size}})
        )
    )
)
"""
_COUNTER_EVENTS = """
SELECT row, name, TRY_CAST(ts * 1000 AS BIGINT) AS ts_ns, CAST(args AS VARCHAR) AS args
FROM (SELECT *, row_number() OVER () - 1 AS row
      FROM read_json('{path}', format = 'array', columns = {columns}, maximum_object_size = {size}))
WHERE ph = 'C'
"""


NEW_ERA = frozenset[str]()


def old_members(data: bytes) -> frozenset[str]:
    """Members of args that a trace spells as before 2022; one release wrote all of it."""
    return frozenset(new for new, old in _BEFORE_2022.items() if f'"{old}":'.encode() in data)


@lru_cache(maxsize=8)
def _parts(old: frozenset[str]) -> tuple[str, str]:
    spelt = {_BEFORE_2022[key] if key in old else key: key for key in ARGS}
    struct = "STRUCT(" + ", ".join(f'"{written}" {ARGS[key][1]}' for written, key in spelt.items()) + ")"
    # Microseconds with three decimals need more digits than a double has.
    columns = {**dict.fromkeys(TEXTS, "VARCHAR"), "ts": "DECIMAL(20,3)", "dur": "DECIMAL(20,3)", "args": struct}
    return _columns_sql(columns), ", ".join(f'args."{written}" AS {ARGS[key][0]}' for written, key in spelt.items())


def _columns_sql(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items()) + "}"


def select_events(path: str, size: int, document: int, old: frozenset[str] = NEW_ERA) -> str:
    columns, args = _parts(old)
    return _EVENTS.format(path=path.replace("'", "''"), size=size, document=document, columns=columns, args=args)


def select_counters(path: str, size: int) -> str:
    return _COUNTER_EVENTS.format(path=path.replace("'", "''"), size=size, columns=_columns_sql(_COUNTERS))
