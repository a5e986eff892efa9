"""Draws where a non-finite value was born and what it reached: the operators of one step as static SVG.

Columns follow the data flow, forward first and backward behind it. Births, the way to the loss and victims are told
apart by their form as well as by class; only births and the way are labelled, the rest has a tooltip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.report.svg import clip, coordinate, element, escaped, shape

_ROW, _COLUMN, _LABEL_PX, _MARGIN = 14.0, 26.0, 11.0, 12.0
_MAX_ROWS = 60  # operators of one column before the next column takes them
_SHAPES = {"birth": ("diamond", 6.0), "path": ("disc", 4.5), "victim": ("square", 3.5), "healthy": ("ring", 2.5)}
MAX_NODES = 3000


@dataclass(frozen=True)
class GraphNode:
    """`role`: birth | path | victim | healthy. `sources`: ids of the operators whose output it read."""

    id: int
    label: str
    role: str
    sources: Sequence[int] = ()


def provenance(nodes: Sequence[GraphNode]) -> str | None:
    """The drawing; None when there is no birth. Beyond 3000 operators those that stayed finite are left out."""
    if not any(node.role == "birth" for node in nodes):
        return None
    drawn = _chosen(nodes)
    places = _places(drawn)
    edges = [
        _edge(node, drawn, places, source) for node in drawn.values() for source in node.sources if source in drawn
    ]
    edges.sort()  # quiet ones below those on the way
    marks = [_mark(node, *places[node.id]) for node in drawn.values()]
    width = max(x for x, _ in places.values()) + 2 * _MARGIN + 160
    height = max(y for _, y in places.values()) + 2 * _MARGIN
    counts = {role: sum(node.role == role for node in nodes) for role in _SHAPES}
    left_out = len(nodes) - len(drawn)
    words = f"{counts['birth']} births, {counts['path']} operators on the way, {counts['victim']} others reached"
    words += f", {counts['healthy']} that stayed finite" + (f", {left_out} not drawn" if left_out else "")
    return element(
        "svg",
        element("title", "Where the first non-finite value was born")
        + element("desc", escaped(words))
        + "".join(line for _, line in edges)
        + "".join(marks),
        class_="provenance",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=width,
        height=height,
        role="img",
    )


def _chosen(nodes: Sequence[GraphNode]) -> dict[int, GraphNode]:
    order = {"birth": 0, "path": 1, "victim": 2, "healthy": 3}
    kept = sorted(nodes, key=lambda node: (order[node.role], node.id))[:MAX_NODES]
    return {node.id: node for node in sorted(kept, key=lambda node: node.id)}


def _places(nodes: Mapping[int, GraphNode]) -> dict[int, tuple[float, float]]:
    """Each operator one column behind the last of its sources; ids are in the order of execution."""
    column: dict[int, int] = {}
    filled: dict[int, int] = {}
    places: dict[int, tuple[float, float]] = {}
    for node in nodes.values():
        at = max((column[source] + 1 for source in node.sources if source in column), default=0)
        while filled.get(at, 0) >= _MAX_ROWS:
            at += 1
        column[node.id] = at
        row = filled.get(at, 0)
        filled[at] = row + 1
        places[node.id] = (_MARGIN + at * _COLUMN, _MARGIN + row * _ROW)
    return places


def _edge(
    node: GraphNode, nodes: Mapping[int, GraphNode], places: Mapping[int, tuple[float, float]], source: int
) -> tuple[int, str]:
    (x1, y1), (x2, y2) = places[source], places[node.id]
    roles = {node.role, nodes[source].role}
    rank = 2 if roles <= {"birth", "path"} else 1 if "healthy" not in roles else 0
    path = f"M{coordinate(x1)} {coordinate(y1)}L{coordinate(x2)} {coordinate(y2)}"
    return rank, element("path", d=path, class_=("edge", "edge bad", "edge way")[rank])


def _mark(node: GraphNode, x: float, y: float) -> str:
    kind, radius = _SHAPES[node.role]
    content = element("title", escaped(node.label)) + shape(kind, x, y, radius, node.role)
    if node.role in {"birth", "path"}:
        text = clip(node.label, 150, _LABEL_PX, bold=node.role == "birth")
        content += element("text", escaped(text), x=x + 8, y=y + 4, class_=f"label {node.role}")
    return element("g", content)
