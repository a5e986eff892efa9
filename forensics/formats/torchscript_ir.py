"""TorchScript IR as text (`print(module.graph)`): its operators in their order, and which constants reach them.

A traced graph (its tensors have sizes) holds Python values of the one run as constants; a scripted one does not.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from forensics.artifact import Frame, Head, Sink, Source, Stacks
from forensics.errors import ArtifactError
from forensics.formats._columns import clean_text
from forensics.formats._text_lines import decode_text

VERSION = 1
TITLE = "TorchScript IR (printed graph)"
PROVIDES = ("compile_event",)

_MAX_BYTES = 1 << 27
_MAX_LINE = 20_000
_MAX_EVENTS = 500_000
_GRAPH = re.compile(r"\s*graph\(\s*(?:%[\w.]+ : [^\n]{1,2000}|\):)")
_SELF = re.compile(r"%self[\w.]* : (__torch__[\w.]*)")
_SIZED = re.compile(r"%[\w.]+ : \w+\(\d+(?:, \d+)*(?:,|\))")
_NODE = re.compile(
    r"\s+(?:%[\w.]+ : .{1,1000}? = )?(?P<op>[a-z_][\w]{0,60}::\w{1,200})(?:\[(?P<attributes>.{0,4000})\])?"
    r"\((?P<inputs>[^()]{0,8000})\)(?:, scope: (?P<scope>\S{1,1000}))?"
    r"(?:\s+# (?P<file>[^\n]{1,1000}?):(?P<line>\d{1,9}):\d{1,9})?\s*"
)
_OUTPUT = re.compile(r"\s+%([\w.]+) : (int|float|bool|str)\b")
_VALUE = re.compile(r'value=("(?:[^"\\]|\\.){0,200}"|[-+\w.]{1,60})')
_INPUT = re.compile(r"%([\w.]+)")
_END = re.compile(r"\s+return \(")


def recognise(head: Head) -> int:
    text = decode_text(head.data[:8192]).lstrip()
    if not _GRAPH.match(text):
        return 0
    return 90 if re.search(r" = (?:aten|prim)::\w+[\[(]", text) else 0


def load(source: Source, sink: Sink) -> None:
    with source.open() as stream:
        text = decode_text(stream.read(_MAX_BYTES))
    events = _Events(sink)
    graph: _Graph | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("graph("):
            if graph is not None:
                graph.close(whole=False)
            graph = _Graph(events, number)
        if graph is None:
            continue
        if _END.match(line):
            graph.close(whole=True)
            graph = None
        else:
            graph.read(line[:_MAX_LINE], number)
    if graph is not None:
        graph.close(whole=False)
    if not events.n_graphs:
        raise ArtifactError(f"{source.name}: no graph; expected the text of a TorchScript graph", byte=0)
    events.close()


class _Graph:
    def __init__(self, events: _Events, line: int) -> None:
        self._events = events
        self._line = line
        self._name = "graph"
        self._is_traced = False
        self._constants: dict[str, tuple[str, int, tuple[str, str] | None]] = {}
        self._lists: dict[str, list[str]] = {}
        self.n_operators = 0

    def read(self, line: str, number: int) -> None:
        if found := _SELF.search(line):
            self._name = found[1]
        self._is_traced = self._is_traced or _SIZED.search(line) is not None
        node = _NODE.fullmatch(line)
        if node is None:
            return
        self.n_operators += 1
        output = line.split(" : ", 1)[0].strip().removeprefix("%") if " = " in line else ""
        frame = (node["file"], node["line"]) if node["file"] else None
        if node["op"] == "prim::Constant":
            value, kind = _VALUE.search(node["attributes"] or ""), _OUTPUT.match(line)
            if value and kind:
                self._constants[output] = value[1], number, frame
            return
        inputs = _INPUT.findall(node["inputs"])
        if node["op"] in {"prim::ListConstruct", "prim::TupleConstruct"}:
            self._lists[output] = inputs
        elif self._is_traced:
            named = [name for given in inputs for name in self._lists.get(given, [given])]
            values = [self._constants[name][0] for name in named if name in self._constants]
            if values:
                reason = f"constants {', '.join(values[:20])} of the traced run are given to {node['op']}"
                self._events.add("specialization", self._name, reason, frame, number)

    def close(self, *, whole: bool) -> None:
        how = "traced with the sizes of one run" if self._is_traced else "scripted"
        rest = "" if whole else "; its end is missing"
        self._events.graph(
            self._name, f"TorchScript graph, {how}: {self.n_operators} operators{rest}", self._line, whole
        )


class _Events:
    def __init__(self, sink: Sink) -> None:
        self._sink, self._stacks = sink, Stacks()
        self._rows: list[dict[str, Any]] = []
        self.n_graphs = self.n_cut = self.n_dropped = 0

    def graph(self, name: str, reason: str, line: int, whole: bool) -> None:
        self.n_graphs += 1
        self.n_cut += not whole
        self.add("compile", name, reason, None, line)

    def add(self, kind: str, name: str, reason: str, frame: tuple[str, str] | None, line: int) -> None:
        if len(self._rows) >= _MAX_EVENTS:
            self.n_dropped += 1
            return
        stack = self._stacks.add([Frame("", clean_text(frame[0], 1000), int(frame[1]))]) if frame else None
        said = {"kind": kind, "name": clean_text(name, 500), "reason": clean_text(reason, 2000)}
        self._rows.append({**said, "stack_id": stack, "line": line})

    def close(self) -> None:
        rows, n = self._rows, len(self._rows)
        columns: dict[str, Any] = {"row": pa.array(range(n), pa.int64())}
        for name in ("kind", "name", "reason"):
            columns[name] = pa.array([row[name] for row in rows], pa.string())
        columns["stack_id"] = pa.array([row["stack_id"] for row in rows], pa.uint64())
        self._sink.emit("compile_event", pa.table(columns))
        if len(self._stacks):
            self._sink.emit("stack", self._stacks.table())
        lines = pa.array([row["line"] for row in rows], pa.int64())
        self._sink.emit("position", pa.table({"table": ["compile_event"] * n, "row": columns["row"], "line": lines}))
        whole = not self.n_cut and not self.n_dropped
        self._sink.cover("compile_event", complete=False, n_read=n + self.n_dropped, n_kept=n)
        if not whole:
            text = f"{self.n_cut} of {self.n_graphs} graphs are not closed; {self.n_dropped} rows were left out"
            self._sink.warn("truncated", text, "the operators behind that place")
            self._sink.damaged("partial")
