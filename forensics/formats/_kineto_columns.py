"""Which members of trace events are read, and the query that reads a file of events with DuckDB's JSON reader.

Members of all eras are asked for: to look for their names in the text first would cost more than they do. Only those of
memory events and of collectives, which go together, are left out where there are none.
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
# Members that stand in the same events, by a word that each of these has; long words are found fast.
_TOGETHER = {
    b'"Device Type"': ("Addr", "Bytez", "Total Allocated", "Total Reserved", "Device Type", "Device Id"),
    b'"Collective name"': (
        *("Collective name", "In msg nelems", "Out msg nelems", "Process Group Name", "Process Group Ranks"),
        *("Seq", "Src Rank", "Dst Rank"),
    ),
}
# DuckDB's structs do not tell upper from lower case: "Bytes" of [memory] from "bytes" of copies.
BYTES, BYTEZ = b'"Bytes":', b'"Bytez":'  # same length, so that no offset changes
_BEFORE_2022 = {"External id": "external id", "Input Dims": "Input dims"}
NAMES = {"Bytes": "Bytez", **{old: new for new, old in _BEFORE_2022.items()}}
NUMBERS = tuple(key for key, (_, kind) in ARGS.items() if kind.endswith("BIGINT"))
TEXTS = ("ph", "cat", "name", "pid", "tid", "id")
TIMES = ("ts", "dur")
# Microseconds with three decimals need more digits than a double has.
_MICROSECONDS = "DECIMAL(20,3)"
_COUNTERS = {"ph": "VARCHAR", "name": "VARCHAR", "ts": _MICROSECONDS, "args": "JSON"}


# As they are read: whatever an expression over them would find out is found once for each distinct text, in
# `_kineto_typing`; in the query it costs as much as to parse the JSON.
_EVENTS = """
SELECT {names}, {args} FROM read_json('{path}', format = 'array', columns = {columns}, maximum_object_size = {size})
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
def _parts(old: frozenset[str], absent: frozenset[str]) -> tuple[str, str]:
    asked = [key for key in ARGS if key not in absent]
    spelt = {_BEFORE_2022[key] if key in old else key: key for key in asked}
    struct = "STRUCT(" + ", ".join(f'"{written}" {ARGS[key][1]}' for written, key in spelt.items()) + ")"
    columns = {**dict.fromkeys(TEXTS, "VARCHAR"), **dict.fromkeys(TIMES, _MICROSECONDS), "args": struct}
    return _columns_sql(columns), ", ".join(f'args."{written}" AS {ARGS[key][0]}' for written, key in spelt.items())


def _columns_sql(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items()) + "}"


def absent_members(data: bytes) -> frozenset[str]:
    """Members that no event of this text has, as far as that is cheap to say."""
    return frozenset(key for word, keys in _TOGETHER.items() if word not in data for key in keys)


def select_events(path: str, size: int, old: frozenset[str] = NEW_ERA, absent: frozenset[str] = frozenset()) -> str:
    """`absent`: members that are not asked for."""
    columns, args = _parts(old, absent)
    names = ", ".join((*TEXTS, *TIMES))
    return _EVENTS.format(path=path.replace("'", "''"), size=size, names=names, columns=columns, args=args)


def select_counters(path: str, size: int) -> str:
    return _COUNTER_EVENTS.format(path=path.replace("'", "''"), size=size, columns=_columns_sql(_COUNTERS))
