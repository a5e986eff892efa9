"""Where the backward function that anomaly mode named stands in traces and graphs that hold no values.

Reads log_event, slice, node, edge and tensor; writes suspect. A profiler's trace joins a backward function to its
forward operator by autograd's sequence number, and so does an execution trace, over all that it recorded; a DOT graph
tells which parameters get their gradients through it, and what ran before it that can give an infinity. None of them
tells whether what the function read was finite: no birth follows from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb

from forensics.case import text_id
from forensics.models.nonfinite_causes import may_be_infinite

if TYPE_CHECKING:
    import networkx as nx

_ENGINE = "autograd::engine::evaluate_function: "


def derive_suspects(con: duckdb.DuckDBPyConnection) -> None:
    named = con.execute(
        """
        SELECT DISTINCT proc_id, fields ->> 'function' AS function
        FROM log_event
        WHERE class = 'numerics.nan-backward' AND role <> 'noise' AND fields ->> 'function' IS NOT NULL
        ORDER BY proc_id, function
        """
    ).fetchall()
    for proc_id, function in named:
        found = [*_in_traces(con, proc_id, function), *_in_nodes(con, proc_id, function)]
        for row in found:
            values = (proc_id, text_id(function), *row)
            con.execute(f"INSERT INTO suspect VALUES ({', '.join('?' * len(values))})", values)


def _in_traces(con: duckdb.DuckDBPyConnection, proc_id: int | None, function: str) -> list[tuple[Any, ...]]:
    """The function in the last step of a profiler's trace that has it; of traces of this process, or of none known."""
    return con.execute(
        """
        WITH called AS (
            SELECT s.artifact_id, s.row, s.step, s.ts_ns, f.name_id AS forward_op_id, f.stack_id
            FROM slice AS s
            JOIN string AS n ON n.id = s.name_id
            LEFT JOIN slice AS f ON f.artifact_id = s.artifact_id AND f.row = s.forward_row
            WHERE n.text = ? AND (s.proc_id IS NOT DISTINCT FROM ? OR s.proc_id IS NULL)
        )
        SELECT 'trace', artifact_id, min_by(row, (ts_ns, row)), step, count(*),
            CASE WHEN count(DISTINCT forward_op_id) = 1 THEN max(forward_op_id) END,
            CASE WHEN count(*) = 1 THEN max(stack_id) END, NULL, NULL, NULL
        FROM called
        GROUP BY artifact_id, step
        QUALIFY row_number() OVER (PARTITION BY artifact_id ORDER BY step DESC NULLS LAST) = 1
        ORDER BY artifact_id
        """,
        [_ENGINE + function, proc_id],
    ).fetchall()


def _in_nodes(con: duckdb.DuckDBPyConnection, proc_id: int | None, function: str) -> list[tuple[Any, ...]]:
    """The function in execution traces and DOT graphs, which know no values; recordings with values give births."""
    graphs = con.execute(
        """
        SELECT n.artifact_id, n.graph_id, max(n.step), min(n.row), count(*), list(n.node_id ORDER BY n.row),
            max(a.format) = 'autograd_dot'
        FROM node AS n
        JOIN string AS o ON o.id = n.op_id
        JOIN artifact AS a ON a.id = n.artifact_id
        WHERE o.text IN (?, ?) AND (n.proc_id IS NOT DISTINCT FROM ? OR n.proc_id IS NULL)
          AND NOT EXISTS (SELECT 1 FROM tensor AS t WHERE t.artifact_id = n.artifact_id AND t.n_nan IS NOT NULL)
        -- The engine's own frame encloses the function: where both are on record they are one run.
        GROUP BY n.artifact_id, n.graph_id, o.text
        QUALIFY row_number() OVER (PARTITION BY n.artifact_id, n.graph_id ORDER BY length(o.text)) = 1
        ORDER BY n.artifact_id, n.graph_id
        """,
        [function, _ENGINE + function, proc_id],
    ).fetchall()
    found: list[tuple[Any, ...]] = []
    known: tuple[int | None, ...]
    for artifact_id, graph_id, step, row, count, nodes, is_dot in graphs:
        if is_dot:
            backward = _backward(con, artifact_id, graph_id)
            behind = _parameters_behind(con, artifact_id, backward, nodes)
            infinite = _infinite_before(con, artifact_id, graph_id, backward, nodes)
            known = (None, None, len(behind), text_id(behind[0]) if behind else None, infinite)
        else:
            known = (*_forward_of(con, artifact_id, graph_id, nodes), None, None, None)
        found.append(("graph" if is_dot else "execution", artifact_id, row, step, count, *known))
    return found


def _forward_of(
    con: duckdb.DuckDBPyConnection, artifact_id: int, graph_id: int, nodes: list[int]
) -> tuple[int | None, int | None]:
    """Name and stack of the forward operator of `nodes`, where it is one: the last with that sequence number."""
    found = con.execute(
        """
        SELECT f.op_id, f.stack_id
        FROM node AS b
        JOIN node AS f ON f.artifact_id = b.artifact_id AND f.graph_id = b.graph_id AND f.sequence = b.sequence
            AND f.phase = 'forward' AND f.op_id IS NOT NULL
        WHERE b.artifact_id = ? AND b.graph_id = ? AND list_contains(?, b.node_id)
        QUALIFY row_number() OVER (PARTITION BY b.node_id ORDER BY f.row DESC) = 1
        ORDER BY b.row
        """,
        [artifact_id, graph_id, nodes],
    ).fetchall()
    if len(found) < len(nodes) or len({op_id for op_id, _ in found}) != 1:
        return None, None
    return found[0][0], found[0][1] if len(found) == 1 else None


def _backward(con: duckdb.DuckDBPyConnection, artifact_id: int, graph_id: int) -> nx.DiGraph:
    """The graph in the order of the backward, from the loss to the parameters."""
    import networkx as nx

    edges = con.execute(
        "SELECT to_node, from_node FROM edge WHERE artifact_id = ? AND graph_id = ? AND kind = 'data'",
        [artifact_id, graph_id],
    ).fetchall()
    return nx.DiGraph(edges)


def _distances(backward: nx.DiGraph, nodes: list[int]) -> dict[int, int]:
    import networkx as nx

    starts = [node for node in nodes if node in backward]
    return dict(nx.multi_source_dijkstra_path_length(backward, starts)) if starts else {}


def _infinite_before(
    con: duckdb.DuckDBPyConnection, artifact_id: int, graph_id: int, backward: nx.DiGraph, nodes: list[int]
) -> int | None:
    """Name of the nearest function that runs before one of `nodes` and whose derivative can be infinite."""
    distance = _distances(backward.reverse(copy=False), nodes)
    rows = con.execute(
        "SELECT n.node_id, o.text, n.op_id FROM node AS n JOIN string AS o ON o.id = n.op_id"
        " WHERE n.artifact_id = ? AND n.graph_id = ?",
        [artifact_id, graph_id],
    ).fetchall()
    near = [(distance[node], name, op_id) for node, name, op_id in rows if distance.get(node) and may_be_infinite(name)]
    return min(near)[2] if near else None


def _parameters_behind(
    con: duckdb.DuckDBPyConnection, artifact_id: int, backward: nx.DiGraph, nodes: list[int]
) -> list[str]:
    """Names of the parameters whose gradients come through one of `nodes`, the nearest first."""
    distance = _distances(backward, nodes)
    rows = con.execute(
        "SELECT t.node_id, n.text FROM tensor AS t JOIN string AS n ON n.id = t.name_id"
        " WHERE t.artifact_id = ? AND t.role = 'parameter' AND t.node_id IS NOT NULL",
        [artifact_id],
    ).fetchall()
    return [name for node, name in sorted(rows, key=lambda r: (distance.get(r[0], 0), r[1])) if node in distance]
