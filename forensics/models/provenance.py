"""Births of non-finite values: of every recorded step that has some, where they came from and what they reached.

Reads node, edge, tensor, sample and proc; writes birth and spread. A parameter that was not finite when the recorded
step began came so from the optimizer's step, when the gradients before were finite; or from another rank, when that
one has a birth in an earlier step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from forensics.case import text_id
from forensics.models.autograd_graph import RecordedGraph, forward_of, graphs_with_nonfinite_values
from forensics.models.births import Birth, find_births
from forensics.models.nonfinite_causes import CAUSES


def derive_births(con: duckdb.DuckDBPyConnection) -> None:
    recorded = [(graph, birth) for graph in graphs_with_nonfinite_values(con) for birth in find_births(graph)]
    if not recorded:
        return
    recorded.sort(key=lambda pair: _order(*pair))
    recorded = _without_echoes(recorded)
    n_of: dict[int | None, int] = {}
    rows, spread = [], []
    for graph, birth in recorded:
        ordinal = n_of.get(graph.proc_id, 0)
        n_of[graph.proc_id] = ordinal + 1
        rows.append(_row(graph, birth, ordinal))
        reached = birth.reached.items() if ordinal < _MAX_SPREAD else ()
        key = (graph.artifact_id, graph.graph_id, birth.node.node_id)
        spread += [(*key, node, distance, node in birth.path) for node, distance in reached]
    con.executemany(f"INSERT INTO birth VALUES ({', '.join('?' * len(rows[0]))})", rows)
    if spread:
        columns = list(zip(*spread, strict=True))
        con.execute(
            "INSERT INTO spread SELECT unnest(?::INTEGER[]), unnest(?::BIGINT[]), unnest(?::BIGINT[]),"
            " unnest(?::BIGINT[]), unnest(?::INTEGER[]), unnest(?::BOOLEAN[])",
            [list(column) for column in columns],
        )
    _trace_parameters(con)


def _without_echoes(recorded: Sequence[tuple[RecordedGraph, Birth]]) -> list[tuple[RecordedGraph, Birth]]:
    """Leaves out parameters that are not finite after a step of the same process had a harmful birth."""
    first: dict[int | None, int] = {}
    for graph, birth in recorded:
        if birth.is_harmful and graph.step is not None:
            first[graph.proc_id] = min(graph.step, first.get(graph.proc_id, graph.step))
    return [
        (graph, birth)
        for graph, birth in recorded
        if birth.kind != "parameter" or graph.step is None or graph.step <= first.get(graph.proc_id, graph.step)
    ]


_MAX_SPREAD = 8  # births of a process whose ways are kept; the others repeat them


def _order(graph: RecordedGraph, birth: Birth) -> tuple[Any, ...]:
    process = -1 if graph.proc_id is None else graph.proc_id
    step = -1 if graph.step is None else graph.step
    return process, not birth.is_harmful, step, graph.artifact_id, birth.node.node_id, birth.operand.row


def _row(graph: RecordedGraph, birth: Birth, ordinal: int) -> Sequence[Any]:
    node = birth.node
    ranges = [tensor.absmax for tensor in node.inputs if tensor.absmax is not None]
    twin = forward_of(graph, node)
    module = node.module or (twin.module if twin else None)
    return (
        graph.artifact_id,
        birth.operand.row,
        graph.proc_id,
        graph.rank,
        graph.step,
        node.ts_ns,
        graph.graph_id,
        node.node_id,
        ordinal,
        birth.kind,
        node.phase,
        _text_id(node.op),
        _text_id(node.autograd),
        _text_id(module),
        node.stack_id if node.stack_id is not None or twin is None else twin.stack_id,
        _text_id(birth.operand.name if birth.kind == "parameter" else None),
        birth.cause,
        CAUSES[birth.cause],
        birth.operand.n_nan if birth.kind != "operator" else node.n_nan,
        birth.operand.n_inf if birth.kind != "operator" else node.n_inf,
        birth.operand.dtype,
        max(ranges, default=None),
        birth.is_harmful,
        birth.reaches_loss,
        _text_id(birth.parameters[0] if birth.parameters else None),
        len(birth.parameters),
        len(birth.reached),
    )


def _text_id(text: str | None) -> int | None:
    return text_id(text) if text else None


def _trace_parameters(con: duckdb.DuckDBPyConnection) -> None:
    """Says of parameters that were not finite at the start of a step whether the optimizer or a peer made them so."""
    con.execute(
        """
        UPDATE birth SET cause = told.cause, phase = 'optimizer'
        FROM (
            SELECT
                b.artifact_id,
                b.row,
                CASE
                    WHEN EXISTS (
                        SELECT 1 FROM birth AS o JOIN proc AS q ON q.id = o.proc_id
                        WHERE q.attempt = p.attempt AND q.rank <> p.rank AND o.kind <> 'parameter' AND o.is_harmful
                          AND o.step < b.step
                    ) THEN 'from-peer'
                    WHEN coalesce(g.n_bad, m.n_bad) = 0 AND coalesce(m.n_bad, 0) = 0 THEN 'optimizer-step'
                END AS cause
            FROM birth AS b
            LEFT JOIN proc AS p ON p.id = b.proc_id
            LEFT JOIN (
                SELECT proc_id, step, sum(n_nan + n_inf) AS n_bad FROM tensor
                WHERE role = 'gradient'
                GROUP BY proc_id, step
            ) AS g ON g.proc_id = b.proc_id AND g.step = b.step - 1
            LEFT JOIN (
                SELECT s.proc_id, s.step, count(*) FILTER (WHERE NOT isfinite(s.value)) AS n_bad
                FROM sample AS s JOIN string AS n ON n.id = s.name_id
                WHERE n.text IN ('grad_norm', 'loss')
                GROUP BY s.proc_id, s.step
            ) AS m ON m.proc_id = b.proc_id AND m.step = b.step - 1
            WHERE b.kind = 'parameter'
        ) AS told
        WHERE told.artifact_id = birth.artifact_id AND told.row = birth.row AND told.cause IS NOT NULL
        """
    )
    for cause in ("from-peer", "optimizer-step"):
        con.execute("UPDATE birth SET why = ? WHERE cause = ?", [CAUSES[cause], cause])
