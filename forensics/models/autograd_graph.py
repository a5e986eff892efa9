"""The operators of one recorded step as a networkx graph: what each read and wrote, and whose output it read.

Edges are the data flow that the recording holds. Where a recording has none, a non-finite input is joined to the last
operator before it whose output has the same shape and the same numbers of NaN and infinities, else to the last one
that gave something non-finite (`inferred`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import duckdb
import orjson

if TYPE_CHECKING:
    import networkx as nx

# Most operators of one graph that are walked; a recording of more is cut there, and its births are those before.
MAX_NODES = 200_000


@dataclass(slots=True)
class Operand:
    """Statistics of one tensor that an operator read or wrote; `n` elements, None where the shape is unknown."""

    row: int
    name: str | None
    dtype: str | None
    shape: tuple[int, ...] | None
    n_nan: int
    n_inf: int
    absmax: float | None
    source: int | None = None  # node that wrote it; None: made outside of the recording
    inferred: bool = False

    @property
    def is_bad(self) -> bool:
        return self.n_nan + self.n_inf > 0

    @property
    def n(self) -> int | None:
        if self.shape is None:
            return None
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(slots=True)
class Operator:
    """One recorded operator; `base` is its name without namespace, overload and the underscore of in-place forms."""

    node_id: int
    phase: str
    op: str
    autograd: str | None
    module: str | None
    label: str | None  # what the recording has as module
    sequence: int | None
    stack_id: int | None
    ts_ns: int | None
    inputs: list[Operand] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)

    @property
    def base(self) -> str:
        return self.op.rpartition("::")[2].partition(".")[0].rstrip("_")

    @property
    def n_nan(self) -> int:
        return sum(tensor.n_nan for tensor in self.outputs)

    @property
    def n_inf(self) -> int:
        return sum(tensor.n_inf for tensor in self.outputs)

    @property
    def is_bad(self) -> bool:
        return any(tensor.is_bad for tensor in self.outputs)


@dataclass(frozen=True)
class RecordedGraph:
    """`operators` in the order of execution; `graph` joins their ids, with `tensor` as the operand that flows."""

    artifact_id: int
    graph_id: int
    proc_id: int | None
    rank: int | None
    step: int | None
    operators: dict[int, Operator]
    graph: nx.DiGraph


def forward_of(recorded: RecordedGraph, node: Operator) -> Operator | None:
    """The forward operator of a backward one: that with its sequence number; the last of them made the node."""
    if node.phase != "backward" or node.sequence is None:
        return None
    fitting = [o for o in recorded.operators.values() if o.phase == "forward" and o.sequence == node.sequence]
    return fitting[-1] if fitting else None


def graphs_with_nonfinite_values(con: duckdb.DuckDBPyConnection) -> list[RecordedGraph]:
    """Every recorded step of which some operator read or wrote a NaN or an infinity, in order of artifact and step."""
    found = con.execute(
        """
        SELECT n.artifact_id, n.graph_id, n.proc_id, n.rank, n.step
        FROM node AS n
        JOIN tensor AS t
            ON t.artifact_id = n.artifact_id AND t.node_id = n.node_id AND t.step IS NOT DISTINCT FROM n.step
        WHERE t.role IN ('input', 'output') AND t.n_nan + t.n_inf > 0
        GROUP BY ALL
        ORDER BY n.artifact_id, n.step, n.graph_id
        """
    ).fetchall()
    return [load_graph(con, *key) for key in found]


def load_graph(
    con: duckdb.DuckDBPyConnection,
    artifact_id: int,
    graph_id: int,
    proc_id: int | None,
    rank: int | None,
    step: int | None,
) -> RecordedGraph:
    """One recorded step, whatever its values."""
    import networkx as nx

    operators = _operators(con, artifact_id, graph_id)
    sources = _sources(con, artifact_id, graph_id)
    rows = con.execute(
        """
        SELECT t.node_id, t.role, t.row, m.text, t.dtype, s.text, coalesce(t.n_nan, 0), coalesce(t.n_inf, 0), t.absmax
        FROM tensor AS t
        LEFT JOIN string AS m ON m.id = t.name_id
        LEFT JOIN string AS s ON s.id = t.shape_id
        WHERE t.artifact_id = ? AND t.step IS NOT DISTINCT FROM ? AND t.role IN ('input', 'output')
          AND t.node_id IS NOT NULL
        ORDER BY t.node_id, t.row
        """,
        [artifact_id, step],
    ).fetchall()
    for node_id, role, row, name, dtype, shape, n_nan, n_inf, absmax in rows:
        operator = operators.get(node_id)
        if operator is not None:
            sizes = tuple(orjson.loads(shape)) if shape else None
            # Readers name a tensor after its module where it has no name of its own: no name of a parameter.
            named = name if name != operator.label else None
            operand = Operand(row, named, dtype, sizes, n_nan, n_inf, absmax, sources.get(row))
            (operator.inputs if role == "input" else operator.outputs).append(operand)
    if not sources:
        _infer_sources(operators)
    graph = nx.DiGraph()
    graph.add_nodes_from(operators)
    for node_id, operator in operators.items():
        for operand in operator.inputs:
            if operand.source in operators:
                kept = graph.get_edge_data(operand.source, node_id, {}).get("tensor")
                if kept is None or operand.is_bad:
                    graph.add_edge(operand.source, node_id, tensor=operand)
    return RecordedGraph(artifact_id, graph_id, proc_id, rank, step, operators, graph)


def _operators(con: duckdb.DuckDBPyConnection, artifact_id: int, graph_id: int) -> dict[int, Operator]:
    rows = con.execute(
        """
        SELECT n.node_id, n.phase, coalesce(o.text, ''), a.text, m.text, n.sequence, n.stack_id, n.ts_ns
        FROM node AS n
        LEFT JOIN string AS o ON o.id = n.op_id
        LEFT JOIN string AS a ON a.id = n.autograd_id
        LEFT JOIN string AS m ON m.id = n.module_id
        WHERE n.artifact_id = ? AND n.graph_id = ?
        ORDER BY n.node_id
        LIMIT ?
        """,
        [artifact_id, graph_id, MAX_NODES],
    ).fetchall()
    return {row[0]: Operator(*_named(row)) for row in rows}


def _named(row: tuple[Any, ...]) -> list[Any]:
    """Early recordings keep the autograd node of a backward operator as its module."""
    node_id, phase, op, autograd, module, *rest = row
    label = module
    if phase == "backward" and autograd is None and module and "Backward" in module and "." not in module:
        autograd, module = module, None
    return [node_id, phase, op, autograd, module, label, *rest]


def _sources(con: duckdb.DuckDBPyConnection, artifact_id: int, graph_id: int) -> dict[int, int]:
    rows = con.execute(
        """
        SELECT tensor_row, from_node FROM edge
        WHERE artifact_id = ? AND graph_id = ? AND kind = 'data' AND tensor_row IS NOT NULL
        ORDER BY tensor_row, from_node
        """,
        [artifact_id, graph_id],
    ).fetchall()
    return {row[0]: row[1] for row in rows}


def _infer_sources(operators: dict[int, Operator]) -> None:
    last: dict[tuple[Any, ...], int] = {}
    nearest: int | None = None
    for node_id, operator in operators.items():
        for operand in operator.inputs:
            if operand.is_bad:  # views and expansions have another shape than what was written
                operand.source = last.get((operand.shape, operand.n_nan, operand.n_inf), nearest)
                operand.inferred = operand.source is not None
        for operand in operator.outputs:
            if operand.is_bad:
                last[operand.shape, operand.n_nan, operand.n_inf] = nearest = node_id
