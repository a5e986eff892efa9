"""Nodes of an execution trace as rows of `node`, `tensor` and `edge`.

Ids are given when an operator begins, and nodes are written when it ends, so that a caller has a smaller id than what
it calls and comes behind it in the file. A tensor keeps its id for as long as it lives; views have their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Sink
from forensics.formats._columns import clean_text
from forensics.formats._lenient_json import as_int

MAX_NODES = 5_000_000
MAX_TENSORS = 20_000_000
MAX_EDGES = 20_000_000
_MAX_OF_NODE = 4096  # tensors of one node
_MAX_LISTS = 3  # nesting of lists of tensors
_MAX_PRODUCERS = 16  # of one tensor, kept to find the last that is no caller
_MAX_CALLERS = 200  # of one node; deep models nest some dozens
_BATCH_ROWS = 32_768
_BACKWARD_SCOPE = 1
_FORWARD, _BACKWARD, _OPTIMIZER = 0, 1, 2
_PHASES = ("forward", "backward", "optimizer")
_TENSOR = {
    "row": pa.int64(), "role": pa.string(), "node_id": pa.int64(), "dtype": pa.string(), "shape": pa.string(),
    "device": pa.int32(), "tensor_id": pa.int64(), "storage_id": pa.int64(), "size_bytes": pa.int64(),
}  # fmt: skip
_EDGE = {
    "graph_id": pa.int64(), "from_node": pa.int64(), "to_node": pa.int64(), "kind": pa.string(),
    "tensor_row": pa.int64(),
}  # fmt: skip


class Graph:
    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._ids, self._callers = array("q"), array("q")
        self._phases = bytearray()  # own phase, or 255 for that of the caller
        self._sequences, self._threads = array("q"), array("q")
        self._ops: list[str] = []
        self._names: dict[str, str] = {}
        # Tensors of each node: ids, rows and where those of a node end. Inputs first.
        self._used, self._used_rows, self._used_ends = array("q"), array("q"), array("q")
        self._made, self._made_ends = array("q"), array("q")
        self._tensors: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self.n_tensors = self.n_edges = self.n_dropped = self.n_bad = 0

    @property
    def n_nodes(self) -> int:
        return len(self._ids)

    def add(self, node: dict[str, Any]) -> None:
        node_id = as_int(node.get("id"), 0)
        name = node.get("name")
        if node_id is None or not isinstance(name, str):
            self.n_bad += 1
            return
        if len(self._ids) >= MAX_NODES:
            self.n_dropped += 1
            return
        told = _attributes(node)
        callers = _numbers(node.get("ctrl_deps", node.get("parent")))
        name = clean_text(name, 500)
        self._ids.append(node_id)
        self._callers.append(callers[0] if callers else -1)
        self._ops.append(self._names.setdefault(name, name))
        self._phases.append(_own_phase(name, told))
        self._sequences.append(_or_none(told.get("seq_id")))
        self._threads.append(_or_none(told.get("tid")))
        for found in _tensors_of(node, "input"):
            self._used.append(found["tensor_id"])
            self._used_rows.append(self._add_tensor("input", node_id, found))
        for found in _tensors_of(node, "output"):
            self._made.append(found["tensor_id"])
            self._add_tensor("output", node_id, found)
        self._used_ends.append(len(self._used))
        self._made_ends.append(len(self._made))
        for source in _numbers(node.get("data_deps")):
            self._add_edge(source, node_id, "data", None)

    def close(self) -> None:
        self._emit("tensor", _TENSOR, self._tensors)
        order = sorted(range(len(self._ids)), key=self._ids.__getitem__)
        place = {self._ids[index]: index for index in order}
        self._inherit_phases(order, place)
        self._join(order, place)
        self._emit("edge", _EDGE, self._edges)
        for at in range(0, len(self._ids), _BATCH_ROWS):
            end = min(at + _BATCH_ROWS, len(self._ids))
            self._sink.emit(
                "node",
                pa.table(
                    {
                        "row": pa.array(range(at, end), pa.int64()),
                        "graph_id": pa.array([0] * (end - at), pa.int64()),
                        "node_id": pa.array(self._ids[at:end], pa.int64()),
                        "phase": [_PHASES[phase] for phase in self._phases[at:end]],
                        "op": pa.array(self._ops[at:end], pa.string()),
                        "sequence": pa.array([None if n < 0 else n for n in self._sequences[at:end]], pa.int64()),
                        "thread": pa.array([None if n < 0 else n for n in self._threads[at:end]], pa.int64()),
                    }
                ),
            )

    def _inherit_phases(self, order: list[int], place: dict[int, int]) -> None:
        for index in order:
            if self._phases[index] == 255:
                caller = place.get(self._callers[index])
                known = caller is not None and self._callers[index] < self._ids[index]
                self._phases[index] = self._phases[caller] if known and caller is not None else _FORWARD

    def _join(self, order: list[int], place: dict[int, int]) -> None:
        """Edges from callers and from the last node before that made a tensor, its own callers left out."""
        makers: dict[int, list[int]] = {}
        for index in order:
            node_id, caller = self._ids[index], self._callers[index]
            if caller >= 0 and caller != node_id:
                self._add_edge(caller, node_id, "control", None)
            begin = self._used_ends[index - 1] if index else 0
            seen: set[int] = set()
            callers: set[int] | None = None
            for at in range(begin, self._used_ends[index]):
                made = makers.get(self._used[at])
                if not made or self._used[at] in seen:
                    continue
                callers = self._callers_of(index, place) if callers is None else callers
                maker = next((maker for maker in reversed(made) if maker not in callers), None)
                if maker is not None:
                    seen.add(self._used[at])
                    self._add_edge(maker, node_id, "data", self._used_rows[at])
            begin = self._made_ends[index - 1] if index else 0
            for tensor in set(self._made[begin : self._made_ends[index]]):
                made = makers.setdefault(tensor, [])
                made.append(node_id)
                if len(made) > _MAX_PRODUCERS:
                    del made[0]

    def _callers_of(self, index: int, place: dict[int, int]) -> set[int]:
        callers: set[int] = set()
        node_id, caller = self._ids[index], self._callers[index]
        while 0 <= caller < node_id and len(callers) < _MAX_CALLERS:
            callers.add(caller)
            node_id, at = caller, place.get(caller)
            caller = self._callers[at] if at is not None else -1
        return callers

    def _add_tensor(self, role: str, node_id: int, found: dict[str, Any]) -> int:
        if self.n_tensors >= MAX_TENSORS:
            self.n_dropped += 1
            return -1
        row = self.n_tensors
        self.n_tensors += 1
        self._tensors.append({"row": row, "role": role, "node_id": node_id, **found})
        if len(self._tensors) >= _BATCH_ROWS:
            self._emit("tensor", _TENSOR, self._tensors)
        return row

    def _add_edge(self, source: int, target: int, kind: str, tensor_row: int | None) -> None:
        if self.n_edges >= MAX_EDGES:
            self.n_dropped += 1
            return
        self.n_edges += 1
        row = None if tensor_row is None or tensor_row < 0 else tensor_row
        self._edges.append({"graph_id": 0, "from_node": source, "to_node": target, "kind": kind, "tensor_row": row})
        if len(self._edges) >= _BATCH_ROWS:
            self._emit("edge", _EDGE, self._edges)

    def _emit(self, table: str, types: dict[str, pa.DataType], rows: list[dict[str, Any]]) -> None:
        if rows:
            self._sink.emit(table, pa.table({n: pa.array([r.get(n) for r in rows], t) for n, t in types.items()}))
            rows.clear()


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    """The attributes by name; up to schema 1.0.1 they are keys of the node."""
    attrs = node.get("attrs")
    if not isinstance(attrs, list):
        return node
    return {a["name"]: a.get("value") for a in attrs[:200] if isinstance(a, dict) and isinstance(a.get("name"), str)}


def _own_phase(name: str, told: dict[str, Any]) -> int:
    if name.startswith(("Optimizer.step", "## optimizer")):
        return _OPTIMIZER
    if name.startswith("autograd::engine::evaluate_function") or as_int(told.get("scope")) == _BACKWARD_SCOPE:
        return _BACKWARD
    return _BACKWARD if (as_int(told.get("fw_parent")) or 0) > 0 else 255


def _or_none(value: Any) -> int:
    number = as_int(value, 0)
    return -1 if number is None else number


def _numbers(value: Any) -> list[int]:
    values = value[:1000] if isinstance(value, list) else [value]
    return [number for one in values if (number := as_int(one, 0)) is not None]


def _tensors_of(node: dict[str, Any], side: str) -> Iterator[dict[str, Any]]:
    """Every tensor among the inputs or outputs, lists of tensors included."""
    whole = node.get(f"{side}s")
    if isinstance(whole, dict):
        values, shapes, types = whole.get("values"), whole.get("shapes"), whole.get("types")
    else:  # up to schema 1.0.1
        values, shapes, types = whole, node.get(f"{side}_shapes"), node.get(f"{side}_types")
    if not isinstance(values, list) or not isinstance(types, list):
        return
    shapes = shapes if isinstance(shapes, list) else []
    left = _MAX_OF_NODE
    for at, (value, kind) in enumerate(zip(values, types, strict=False)):
        if isinstance(kind, str) and "Tensor(" in kind:
            shape = shapes[at] if at < len(shapes) else None
            dtypes = iter([part.partition(")")[0] for part in kind.split("Tensor(")[1:_MAX_OF_NODE]])
            for found in _walk(value, shape, dtypes, 0):
                yield found
                left -= 1
                if left <= 0:
                    return


def _walk(value: Any, shape: Any, dtypes: Iterator[str], depth: int) -> Iterator[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        return
    if as_int(value[0]) is not None:
        # [tensor id, storage id, offset, elements, bytes an element, device]
        numbers = [as_int(part, 0) for part in value[:5]] + [None] * (5 - len(value[:5]))
        dtype = next(dtypes, None)
        if numbers[0] is None or len(value) < 5:
            return
        device = value[5].partition(":")[2] if len(value) > 5 and isinstance(value[5], str) else ""
        size = None if numbers[3] is None or numbers[4] is None else numbers[3] * numbers[4]
        yield {
            "tensor_id": numbers[0],
            "storage_id": numbers[1],
            "size_bytes": size if size is not None and size < 1 << 63 else None,
            "dtype": clean_text(dtype, 60) if dtype else None,
            "shape": _shape(shape),
            "device": as_int(device, 0, 1023) if device else None,
        }
    elif depth < _MAX_LISTS:
        shapes = shape if isinstance(shape, list) else []
        for at, one in enumerate(value[:_MAX_OF_NODE]):
            yield from _walk(one, shapes[at] if at < len(shapes) else None, dtypes, depth + 1)


def _shape(shape: Any) -> str | None:
    if not isinstance(shape, list) or len(shape) > 64 or any(as_int(size, 0) is None for size in shape):
        return None
    return orjson.dumps(shape).decode()
