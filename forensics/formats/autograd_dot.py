"""Autograd graphs as DOT text, as torchviz's make_dot writes them.

Boxes are grad_fn objects by their class, and tensors: parameters (light blue), saved tensors (orange) and outputs
(green). Arrows go the way data flows in forward. Neither times nor an order of execution are recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson
import pyarrow as pa

from forensics.artifact import Head, Sink, Source
from forensics.errors import ArtifactError
from forensics.formats._columns import clean_text
from forensics.formats._text_lines import LineCounter, read_text

VERSION = 1
TITLE = "Autograd graph as DOT text (torchviz)"
PROVIDES = ("node.autograd",)

MAX_BYTES = 128 << 20
MAX_NODES = 1_000_000
MAX_EDGES = 4_000_000
_MAX_STATEMENT = 1 << 16  # characters
_MAX_SKIPPED = 1000
_OPENING = re.compile(r"\s*(?:strict\s+)?digraph\b[^{\n]{0,200}\{")
_GRAD_FN = re.compile(r"label=\"?(?:\w+Backward\d*|AccumulateGrad)\b")
_ID = r'(?:[A-Za-z0-9_.\-]++|"(?:[^"\\\n]|\\.){0,200}+")'
_ATTRIBUTES = r'\[((?:[^\]"]|"(?:[^"\\]|\\.)*+")*+)\]'
_STATEMENT = re.compile(rf"({_ID})[ \t]*+(?:->[ \t]*+({_ID})[ \t]*+)?(?:{_ATTRIBUTES})?[ \t]*+;?(?=[ \t]*(?:\n|$|\}}))")
_LABEL = re.compile(r'label=(?:"((?:[^"\\]|\\.)*+)"|([\w.:]{1,300}))')
_COLOUR = re.compile(r'fillcolor="?(\w{1,40})')
_SHAPE = re.compile(r"\(\s*+((?:\d{1,18}+\s*+,\s*+){0,64}+(?:\d{1,18}+)?+)\s*+\)\s*+$")
_ROLES = {"lightblue": "parameter", "orange": "saved", "darkolivegreen1": "output", "darkolivegreen3": "output"}
_DEFAULTS = {"graph", "node", "edge", "subgraph"}


def recognise(head: Head) -> int:
    text = head.text.lstrip("\ufeff")
    return 90 if _OPENING.match(text) and _GRAD_FN.search(text) else 0


def load(source: Source, sink: Sink) -> None:
    text, more = read_text(source, MAX_BYTES)
    opening = _OPENING.match(text.lstrip("\ufeff"))
    if opening is None:
        raise ArtifactError(f"{source.name}: no digraph; expected an autograd graph as DOT text", byte=0)
    body = text[text.index("{") + 1 :]
    graph = _DotGraph(LineCounter(text), len(text) - len(body))
    for statement in _statements(body):
        graph.add(statement)
    if not graph.n_nodes:
        raise ArtifactError(f"{source.name}: no box of the graph is whole; expected nodes with labels", byte=0)
    graph.emit(sink)
    whole = not more and body.rstrip().endswith("}") and source.damage is None
    sink.cover("node.autograd", complete=whole and not graph.n_dropped, n_read=graph.n_nodes, n_kept=graph.n_nodes)
    if graph.n_dropped:
        text = f"{graph.n_dropped} boxes or arrows were counted, not kept: there are too many"
        sink.warn("too-many-nodes", text, "that part of the graph")
    if not whole:
        sink.warn("truncated", "the graph is not closed: the text ends early", "the boxes and arrows behind that place")
        sink.damaged("partial")


def _statements(body: str) -> Iterator[re.Match[str]]:
    """Nodes and arrows; what is no statement is skipped to the end of its line, a bounded number of times."""
    at, n_skipped = 0, 0
    while n_skipped < _MAX_SKIPPED:
        while at < len(body) and body[at] in " \t\r\n;{}":
            at += 1
        if at >= len(body):
            return
        end = min(len(body), at + _MAX_STATEMENT)
        found = _STATEMENT.match(body, at, end)
        if found is not None and found.end() < end:  # what ends with the text may be cut: 12 of 123
            yield found
            at = found.end()
        else:
            n_skipped += 1
            line_end = body.find("\n", at)
            at = line_end + 1 if line_end >= 0 else len(body)


class _DotGraph:
    def __init__(self, lines: LineCounter, offset: int) -> None:
        self._lines = lines
        self._offset = offset
        self._numbers: dict[str, int] = {}
        self._boxes: dict[int, dict[str, Any]] = {}
        self._edges: list[tuple[int, int]] = []
        self.n_dropped = 0

    @property
    def n_nodes(self) -> int:
        return len(self._boxes)

    def add(self, statement: re.Match[str]) -> None:
        name, other, attributes = statement[1].strip('"'), statement[2], statement[3]
        if other is not None:
            number, to = self._number(name), self._number(other.strip('"'))
            if number is None or to is None or len(self._edges) >= MAX_EDGES:
                self.n_dropped += 1
            else:
                self._edges.append((number, to))
            return
        label = _LABEL.search(attributes) if attributes is not None and name not in _DEFAULTS else None
        number = self._number(name) if label is not None else None
        if label is None or number is None:
            self.n_dropped += label is not None
            return
        colour = _COLOUR.search(attributes)
        text = label[2] if label[1] is None else label[1].replace("\\n", "\n").replace('\\"', '"')
        role = _ROLES.get(colour[1]) if colour else None
        line = self._lines.at(self._offset + statement.start())
        self._boxes[number] = {"node_id": number, "line": line, **_described(text, role)}

    def _number(self, name: str) -> int | None:
        if name not in self._numbers and len(self._numbers) >= MAX_NODES:
            return None
        return self._numbers.setdefault(name, len(self._numbers))

    def emit(self, sink: Sink) -> None:
        boxes = [self._boxes[number] for number in sorted(self._boxes)]
        tensors = [box for box in boxes if box["role"] is not None]
        sink.emit(
            "node",
            pa.table(
                {
                    "row": pa.array(range(len(boxes)), pa.int64()),
                    "graph_id": pa.array([0] * len(boxes), pa.int64()),
                    "node_id": pa.array([box["node_id"] for box in boxes], pa.int64()),
                    "phase": ["forward" if box["op"] is None else "backward" for box in boxes],
                    "op": pa.array([box["op"] for box in boxes], pa.string()),
                }
            ),
        )
        if tensors:
            sink.emit(
                "tensor",
                pa.table(
                    {
                        "row": pa.array(range(len(tensors)), pa.int64()),
                        **{k: pa.array([t[k] for t in tensors], pa.string()) for k in ("role", "name", "shape")},
                        "node_id": pa.array([tensor["node_id"] for tensor in tensors], pa.int64()),
                    }
                ),
            )
        if self._edges:
            sink.emit(
                "edge",
                pa.table(
                    {
                        "graph_id": pa.array([0] * len(self._edges), pa.int64()),
                        "from_node": pa.array([edge[0] for edge in self._edges], pa.int64()),
                        "to_node": pa.array([edge[1] for edge in self._edges], pa.int64()),
                        "kind": ["data"] * len(self._edges),
                    }
                ),
            )
        places = [("node", row, box["line"]) for row, box in enumerate(boxes)]
        places += [("tensor", row, box["line"]) for row, box in enumerate(tensors)]
        names, rows, lines = zip(*places, strict=True)
        sink.emit(
            "position",
            pa.table({"table": names, "row": pa.array(rows, pa.int64()), "line": pa.array(lines, pa.int64())}),
        )


def _described(label: str, role: str | None) -> dict[str, Any]:
    """A grad_fn by its class, on the first line; a tensor by its name and, on the last line, its shape."""
    first, _, rest = label.strip("\n").partition("\n")
    if role is None:
        return {"op": clean_text(first.strip(), 300) or None, "role": None, "name": None, "shape": None}
    shape = _SHAPE.search(label)
    name = first.strip() if rest else ""
    sizes = [int(size) for size in re.findall(r"\d+", shape[1])] if shape else None
    return {
        "op": None,
        "role": role,
        "name": clean_text(name, 1000) or None,
        "shape": None if sizes is None else orjson.dumps(sizes).decode(),
    }
