"""The recorded step in which a non-finite value was born: the birth, its way, what it reached and what fed it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import duckdb

from forensics.models.autograd_graph import Operator, RecordedGraph, load_graph
from forensics.pictures import process_name
from forensics.redact import mask
from forensics.report.pictures import Operation, Provenance

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_OPERATIONS = 120
_OTHERS = 3  # other births of the step that are shown
_UPSTREAM = 2  # operators before the birth that are shown


def read(con: duckdb.DuckDBPyConnection) -> list[Provenance]:
    """The first harmful birth of all processes; None where no birth is of a recorded operator."""
    row = con.execute(
        """
        SELECT b.artifact_id, b.graph_id, b.node_id, b.proc_id, b.rank, b.step, b.why, b.reaches_loss,
            coalesce(p.text, ''), a.path
        FROM birth AS b
        JOIN artifact AS a ON a.id = b.artifact_id
        LEFT JOIN string AS p ON p.id = b.first_parameter_id
        WHERE EXISTS (
            SELECT 1 FROM spread AS s
            WHERE s.artifact_id = b.artifact_id AND s.graph_id = b.graph_id AND s.birth_node = b.node_id
        )
        ORDER BY NOT b.is_harmful, b.step, b.ts_ns, b.ordinal, b.rank, b.artifact_id LIMIT 1
        """
    ).fetchone()
    if row is None:
        return []
    artifact_id, graph_id, node_id, proc_id, rank, step, why, reaches_loss, parameter, path = row
    graph = load_graph(con, artifact_id, graph_id, proc_id, rank, step)
    spread = dict(
        con.execute(
            "SELECT node_id, bool_or(is_on_path) FROM spread"
            " WHERE artifact_id = ? AND graph_id = ? AND birth_node = ? GROUP BY node_id",
            [artifact_id, graph_id, node_id],
        ).fetchall()
    )
    found = con.execute(
        "SELECT node_id, is_harmful FROM birth WHERE artifact_id = ? AND graph_id = ? ORDER BY ordinal",
        [artifact_id, graph_id],
    ).fetchall()
    births = {node for node, _ in found}
    harmful = [node for node, is_harmful in found if is_harmful and node != node_id]
    shown = _chosen(graph, [node_id, *harmful[:_OTHERS]], spread)
    n = con.execute("SELECT count(DISTINCT proc_id) FROM node").fetchone()
    return [
        Provenance(
            artifact=mask(path),
            process=process_name(rank, n[0] if n else 0),
            step=step,
            why=mask(why),
            operations=tuple(_operation(graph, i, spread, births, shown) for i in shown if i in graph.operators),
            n_hidden=len(graph.operators) - len(shown),
            reaches_loss=reaches_loss,
            parameter=mask(parameter),
            inferred=any(data["tensor"].inferred for _, _, data in graph.graph.edges(data=True)),
        )
    ]


def _chosen(graph: RecordedGraph, births: list[int], spread: dict[int, bool]) -> list[int]:
    """The births with the operators whose outputs they read, and what the first reached; in the order of execution."""
    kept = set(births)
    before: Iterable[int] = births
    for _ in range(_UPSTREAM):
        before = [source for node in before if node in graph.graph for source in graph.graph.predecessors(node)]
        kept.update(before)
    for node, on_path in sorted(spread.items(), key=lambda item: (not item[1], item[0])):
        if len(kept) >= MAX_OPERATIONS:
            break
        kept.add(node)
        del on_path
    return sorted(kept)


def _operation(
    graph: RecordedGraph, node: int, spread: dict[int, bool], births: set[int], shown: list[int]
) -> Operation:
    operator = graph.operators[node]
    role = "birth" if node in births else "path" if spread.get(node) else "victim" if operator.is_bad else "healthy"
    sources = sorted(set(graph.graph.predecessors(node)) & set(shown)) if node in graph.graph else []
    return Operation(
        id=node,
        label=mask(operator.op or operator.autograd or "operator"),
        role=role,
        phase=operator.phase,
        module=mask(operator.module or operator.autograd or ""),
        values=_values(operator),
        sources=tuple(sources),
    )


def _values(operator: Operator) -> str:
    n = sum(tensor.n or 0 for tensor in operator.outputs)
    parts = [f"{count:,} {word}" for count, word in ((operator.n_nan, "NaN"), (operator.n_inf, "inf")) if count]
    if parts:
        return " and ".join(parts) + (f" of {n:,}" if n else "")
    largest = [tensor.absmax for tensor in operator.outputs if tensor.absmax is not None]
    return f"largest {max(largest):.3g}" if largest and math.isfinite(max(largest)) else ""
