"""Statistics of tensors, step by step, as JSON lines in a format of our own: `forensics.tensor_stats/1`.

The first line is a header, every other line one tensor, in the order in which they were seen:

    {"format": "forensics.tensor_stats/1", "rank": 1, "world_size": 4, "local_rank": 1, "host": "node-3", "pid": 4242,
     "attempt": 0, "torch": "2.6.0"}
    {"step": 12, "phase": "forward", "order": 57, "op": "aten::softmax", "module": "layers.3.attn", "role": "output",
     "shape": [2, 8, 128, 128], "dtype": "float16", "n": 262144, "n_nan": 0, "n_inf": 3, "absmax": 65504.0,
     "norm": 912.5, "ts_ns": 1795952507123456789}

Header: only `format` is required; other keys than those above are kept as facts.
Line: `step` and `role` are required.

| key | |
|---|---|
| `phase` | forward, backward, gradient (a parameter's, after backward), parameter (before the optimizer's step), |
| | buffer, attribute |
| `order` | ordinal of the operator in its step, from 0; lines of one operator share it |
| `op` | operator; without it the line says something of a tensor, not of a graph's node |
| `module` | path of the module, or name of the parameter |
| `role` | input, output, gradient, parameter, buffer, bucket (a gradient before it is reduced over the ranks), |
| | reduced-bucket (one that was finite before and is not after the reduction), |
| | attribute (a tensor that a module holds and did not register), |
| | captured-gradient (where a gradient lay when the capture of a CUDA graph ended: `addr` alone) |
| `n`, `n_nan`, `n_inf` | elements, those that are NaN, those that are infinite |
| `absmax`, `norm` | largest finite absolute value; Euclidean norm (of finite values, or as it is: NaN, Infinity) |
| `ts_ns` | ns since the epoch |
| `name`, `device`, `std`, `zero_ratio`, `checksum`, `addr`, `version` | as in `tensor`; `name` goes before `module` |
| `subnormal_ratio` | of float16: share of elements that are not zero and below 2^-14 |
| `from` | of an input: `order` of the operator that last wrote its memory |
| `sequence`, `autograd` | of an operator: autograd's sequence number; backward only: the autograd node that ran it |
| `missing` | true for a parameter that had no gradient |
| `stack` | optional: frames, outermost first, as [function, file, line] |

A line may end anywhere when the job dies: it is skipped with a warning. Unknown keys are ignored. A reader that knows
version 1 refuses others: their statistics may mean something else.
"""

from __future__ import annotations

from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Frame, Head, Sink, Source, Stacks
from forensics.formats._bad_fields import BadFields
from forensics.formats._lenient_json import as_int
from forensics.formats._recorder_lines import check_version, describe_process, json_objects, sure_of_format
from forensics.formats._text_lines import BadLines

VERSION = 8
TITLE = "Statistics of tensors (forensics.tensor_stats)"
PROVIDES = ("tensor", "tensor.reduced", "node", "fact")

FORMAT = "forensics.tensor_stats/1"
_NODE_PHASES = {"forward": "forward", "backward": "backward", "gradient": "backward", "parameter": "optimizer"}
_ROLES = {"input", "output", "gradient", "captured-gradient", "parameter", "buffer", "attribute", "bucket"}
_ROLES |= {"reduced-bucket"}
_NUMBERS = ("absmax", "norm", "std", "zero_ratio", "subnormal_ratio")
_BATCH_ROWS = 32_768
_MAX_TEXT = 1000
_MAX_FRAMES = 500
_INT32_MAX = 2**31 - 1

_EVENT = {"row": pa.int64(), "step": pa.int64(), "ts_ns": pa.int64(), "node_id": pa.int64()}
_TENSOR = _EVENT | {
    **dict.fromkeys(("role", "name", "dtype", "shape"), pa.string()),
    **dict.fromkeys(("n_nan", "n_inf"), pa.int64()),
    **dict.fromkeys(_NUMBERS, pa.float64()),
    "device": pa.int32(),
    **dict.fromkeys(("checksum", "addr"), pa.uint64()),
    "version": pa.int64(),
}
_PLACE = {"table": pa.string(), "row": pa.int64(), "line": pa.int64()}
_NODE = _EVENT | {"graph_id": pa.int64(), "sequence": pa.int64(), "stack_id": pa.uint64()}
_NODE |= dict.fromkeys(("phase", "op", "module", "autograd"), pa.string())
_EDGE = dict.fromkeys(("graph_id", "from_node", "to_node", "tensor_row"), pa.int64()) | {"kind": pa.string()}


def recognise(head: Head) -> int:
    return sure_of_format(head, "forensics.tensor_stats")


def load(source: Source, sink: Sink) -> None:
    bad = BadLines(sink, "bad-json", "the tensors of that line")
    odd = BadFields()
    rows = _Rows(sink, odd)
    lines = json_objects(source, bad)
    _number, header = next(lines, (0, {}))
    check_version(source, header, FORMAT)
    describe_process(sink, header, odd, facts=True)
    for number, line in lines:
        odd.line = number
        if not rows.add(line, number):
            bad.add(number, "neither step nor role of a tensor; expected both")
    bad.close()
    is_odd = odd.tell(sink)
    rows.finish(n_bad=bad.count, complete=not is_odd and bad.count == 0 and source.damage is None)


class _Rows:
    """Tensors and, once per step and order, the node that has them."""

    def __init__(self, sink: Sink, odd: BadFields) -> None:
        self._sink = sink
        self._odd = odd
        self._stacks = Stacks()
        self._tensors: list[dict[str, Any]] = []
        self._places: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []
        self._edges: list[dict[str, Any]] = []
        self._n_tensors = self._n_nodes = self._n_reduced = 0
        self._seen: set[int] = set()
        self._step: int | None = None
        self._span: tuple[int, int] | None = None

    def add(self, line: dict[str, Any], number: int) -> bool:
        step, role = as_int(line.get("step"), 0), line.get("role")
        if step is None or not isinstance(role, str) or role not in _ROLES:
            return False
        whole, text = self._odd.whole, self._text
        order, op, phase = whole(line, "order"), line.get("op"), _NODE_PHASES.get(str(line.get("phase")))
        ts_ns = whole(line, "ts_ns")
        if ts_ns is not None:
            low, high = self._span or (ts_ns, ts_ns)
            self._span = (min(low, ts_ns), max(high, ts_ns))
        is_node = isinstance(op, str) and order is not None and phase is not None
        if is_node:
            self._add_node(line, step, order or 0, str(phase), ts_ns)
            self._add_edge(line, step, order or 0)
        row: dict[str, Any] = {key: self._odd.number(line, key) for key in _NUMBERS}
        row |= {key: whole(line, key) for key in ("n_nan", "n_inf")}
        row |= {
            "step": step,
            "ts_ns": ts_ns,
            "role": "missing-gradient" if line.get("missing") is True else role,
            "name": text(line, "name") or text(line, "module"),
        }
        row |= {
            "node_id": order if is_node else None,
            "dtype": text(line, "dtype"),
            "shape": self._shape(line.get("shape")),
        }
        row |= {"device": whole(line, "device", -1, 1023), "version": whole(line, "version")}
        row |= {key: whole(line, key, 0, 2**64 - 1) for key in ("checksum", "addr")}
        self._tensors.append({"row": self._n_tensors, **row})
        self._places.append({"table": "tensor", "row": self._n_tensors, "line": number})
        self._n_tensors += 1
        self._n_reduced += role == "reduced-bucket"
        if len(self._tensors) >= _BATCH_ROWS:
            self._flush()
        return True

    def _add_node(self, line: dict[str, Any], step: int, order: int, phase: str, ts_ns: int | None) -> None:
        if step != self._step:
            self._step, self._seen = step, set()
        if order in self._seen:
            return
        self._seen.add(order)
        node = {"row": self._n_nodes, "step": step, "ts_ns": ts_ns, "graph_id": step, "node_id": order, "phase": phase}
        node |= {key: self._text(line, key) for key in ("op", "module", "autograd")}
        frames, given = _frames(line.get("stack")), line.get("stack")
        if len(frames) != (min(len(given), _MAX_FRAMES) if isinstance(given, list) else 0):
            self._odd.count("stack", given)
        node |= {"sequence": self._odd.whole(line, "sequence", -(2**63)), "stack_id": self._stacks.add(frames)}
        self._nodes.append(node)
        self._n_nodes += 1

    def _add_edge(self, line: dict[str, Any], step: int, order: int) -> None:
        writer = self._odd.whole(line, "from")
        if writer is not None and writer < order:
            ends = {"graph_id": step, "from_node": writer, "to_node": order}
            self._edges.append(ends | {"tensor_row": self._n_tensors, "kind": "data"})

    def _text(self, line: dict[str, Any], key: str) -> str | None:
        value = self._odd.text(line, key)
        return value[:_MAX_TEXT] if value else None

    def _shape(self, value: object) -> str | None:
        shape = _shape(value)
        if shape is None:
            self._odd.count("shape", value)
        return shape

    def _flush(self) -> None:
        waiting = (("node", _NODE, self._nodes), ("tensor", _TENSOR, self._tensors), ("position", _PLACE, self._places))
        for table, types, rows in (*waiting, ("edge", _EDGE, self._edges)):
            if rows:
                columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}
                self._sink.emit(table, pa.table(columns))
                rows.clear()

    def finish(self, *, n_bad: int, complete: bool) -> None:
        self._flush()
        if self._stacks.table().num_rows:
            self._sink.emit("stack", self._stacks.table())
        low, high = self._span or (None, None)
        if self._span:
            self._sink.clock("epoch")
        for capability, kept in (("tensor", self._n_tensors), ("node", self._n_nodes)):
            if kept:
                read = self._n_tensors + n_bad
                self._sink.cover(capability, complete=complete, n_read=read, n_kept=kept, from_ns=low, to_ns=high)
        if self._n_reduced:  # only reductions that gave what is not finite are recorded
            n = self._n_reduced
            self._sink.cover("tensor.reduced", complete=False, n_read=n, n_kept=n, from_ns=low, to_ns=high)


def _shape(value: object) -> str | None:
    if not isinstance(value, list) or len(value) > 64 or any(as_int(size, 0) is None for size in value):
        return None
    return orjson.dumps(value).decode()


def _frames(value: object) -> list[Frame]:
    frames = []
    for frame in value[:_MAX_FRAMES] if isinstance(value, list) else []:
        if isinstance(frame, list) and len(frame) == 3 and isinstance(frame[0], str):
            file = frame[1][:_MAX_TEXT] if isinstance(frame[1], str) and frame[1] else None
            frames.append(Frame(frame[0][:_MAX_TEXT], file, as_int(frame[2], 0, _INT32_MAX)))
    return frames
