"""PyTorch execution traces (ExecutionTraceObserver, the host side of Chakra), schemas 1.0.0 to 1.1.

Operators in the order in which they began, with their tensors; no times. A killed job leaves a trace without its
end; every whole node of it is kept. Data flow follows from tensor ids, callers are recorded.
"""

from __future__ import annotations

import re
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._columns import clean_text
from forensics.formats._execution_graph import Graph
from forensics.formats._execution_nodes import NodeStream
from forensics.formats._lenient_json import JsonError, as_int, parse_json
from forensics.formats._pickle import gc_paused
from forensics.formats._rank_ranges import ranges_of

VERSION = 2
TITLE = "PyTorch execution trace (Chakra host trace)"
PROVIDES = ("node.execution", "edge", "fact")

MAX_GROUPS = 10_000
_MAX_RANKS = 1 << 20
_SCHEMA = re.compile(rb'"schema"\s{0,100}:\s{0,100}"(\d{1,3}\.\d{1,3}(?:\.\d{1,3})?[^"\n]{0,40})"')
_NODES = re.compile(rb'"nodes"\s{0,100}:\s{0,100}\[')
_NODE_KEYS = (b'"ctrl_deps"', b'"rf_id"', b'"fw_parent"', b"[pytorch|profiler|execution")
_FIELD = re.compile(rb'"(pid|time|start_ts|finish_ts)"\s{0,100}:\s{0,100}(?:"([^"\n]{0,100})"|(\d{1,19}))')
_NAMED_RANK = re.compile(r"(?:^|[_.\-])et[_.\-](\d{1,6})(?=[_.\-]|$)")
_GROUPS_NODE = "## process_group:init ##"


def recognise(head: Head) -> int:
    data = head.data.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not data.startswith(b"{") or not _NODES.search(data):
        return 0
    marks = sum(key in data for key in _NODE_KEYS)
    return 95 if _SCHEMA.search(data) and marks else 80 if marks >= 2 else 0


def load(source: Source, sink: Sink) -> None:
    graph = Graph(sink)
    groups: dict[str, dict[str, Any]] = {}
    n_read = 0
    with source.open() as stream, gc_paused():
        nodes = NodeStream(stream)
        for _byte, node in nodes.nodes():
            n_read += 1
            graph.add(node)
            if node.get("name") == _GROUPS_NODE:
                _read_groups(node, groups)
    if not nodes.found or not (n_read or nodes.closed):
        raise ArtifactError(f"{source.name}: no nodes; expected the key nodes of an execution trace", byte=0)
    graph.close()
    if groups:
        sink.emit("process_group", _group_table(groups))
    whole = nodes.closed and not nodes.n_bad and not graph.n_bad and not graph.n_dropped and source.damage is None
    for capability, kept in (
        ("node.execution", graph.n_nodes),
        ("edge", graph.n_edges),
        ("process_group", len(groups)),
    ):
        if kept:
            sink.cover(capability, complete=whole, n_read=n_read, n_kept=kept)
    _describe(source, sink, nodes)
    _warn(sink, nodes, graph)


def _describe(source: Source, sink: Sink, nodes: NodeStream) -> None:
    schema = _SCHEMA.search(nodes.header) or _SCHEMA.search(nodes.tail)
    if schema:
        sink.fact("execution-trace-schema", schema[1].decode("utf-8", "replace"), scope="version", proc=0)
    told = {m[1]: (m[2] or m[3] or b"").decode("utf-8", "replace") for m in _FIELD.finditer(nodes.header[-100_000:])}
    told |= {m[1]: (m[2] or m[3] or b"").decode("utf-8", "replace") for m in _FIELD.finditer(nodes.tail[:100_000])}
    for key, value in sorted(told.items()):
        if key != b"pid":
            sink.fact(f"execution-trace.{key.decode()}", value, scope="profiler", proc=0)
    named = _NAMED_RANK.search(source.own_name)
    sink.proc(
        0,
        pid=as_int(told.get(b"pid"), 0),
        rank=int(named[1]) if named else None,
        rank_origin="file-name" if named else "none",
    )


def _warn(sink: Sink, nodes: NodeStream, graph: Graph) -> None:
    for byte in nodes.bad:
        text = f"a node near byte {byte} is no JSON; it was left out"
        sink.warn("bad-json", text, "that operator and the tensors that flow through it", byte=byte)
    if nodes.n_bad > len(nodes.bad):
        sink.warn("bad-json", f"{nodes.n_bad - len(nodes.bad)} more nodes are no JSON", "these operators")
    if graph.n_bad:
        sink.warn("bad-values", f"{graph.n_bad} nodes have no id or name", "these operators")
    if graph.n_dropped:
        text = f"{graph.n_dropped} nodes, tensors or edges were counted, not kept: there are too many"
        sink.warn("too-many-nodes", text, "operators and data flow later on")
    if not nodes.closed:
        text = f"the trace ends inside its nodes; {nodes.lost_bytes} bytes of an unfinished one were left out"
        sink.warn("truncated", text, "operators that ended later, and all callers still open", byte=nodes.cut_byte)
        sink.damaged("partial", byte=nodes.cut_byte, lost_bytes=nodes.lost_bytes)
    elif nodes.n_bad or graph.n_bad:
        sink.damaged("partial", byte=nodes.bad[0] if nodes.bad else None)


def _read_groups(node: dict[str, Any], groups: dict[str, dict[str, Any]]) -> None:
    """Process groups out of the JSON text that this node has as its input."""
    inputs = node.get("inputs")
    values = inputs.get("values") if isinstance(inputs, dict) else inputs
    for value in values[:10] if isinstance(values, list) else ():
        try:
            listed = parse_json(value) if isinstance(value, str) else None
        except JsonError:
            continue
        for group in listed if isinstance(listed, list) else ():
            if isinstance(group, dict) and len(groups) < MAX_GROUPS:
                name = clean_text(str(group.get("pg_name", "")), 200)
                groups[name] = group if name else {}
    groups.pop("", None)


def _group_table(groups: dict[str, dict[str, Any]]) -> pa.Table:
    def text(value: Any) -> str | None:
        return clean_text(value, 200) if isinstance(value, str) and value else None

    return pa.table(
        {
            "id": pa.array(range(len(groups)), pa.int32()),
            "name": pa.array(list(groups), pa.string()),
            "description": pa.array([text(g.get("pg_desc")) for g in groups.values()], pa.string()),
            "backend": pa.array([text(g.get("backend_config")) for g in groups.values()], pa.string()),
            "ranks": pa.array([ranges_of(_ranks(g)) for g in groups.values()], pa.string()),
        }
    )


def _ranks(group: dict[str, Any]) -> list[int] | None:
    ranks, size = group.get("ranks"), as_int(group.get("group_size"), 1, _MAX_RANKS)
    if isinstance(ranks, str):  # a dict's or list's text in some releases
        try:
            ranks = orjson.loads(ranks)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(ranks, list) or len(ranks) > _MAX_RANKS:
        return None
    if not ranks:  # the group of all ranks is written as none
        return list(range(size)) if size is not None and group.get("pg_name") == "0" else None
    numbers = [as_int(rank, 0, 2**31 - 1) for rank in ranks]
    return None if None in numbers else [rank for rank in numbers if rank is not None]
