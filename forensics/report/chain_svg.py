"""Draws the causal chain as static SVG that works without scripts; colours come from the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from forensics.report.chain_layout import LABEL_LINES, LABEL_PX, Box, Wire, lay_out
from forensics.report.svg import coordinate, element, escaped, severity_mark, wrap
from forensics.report.text import one_line, plural
from forensics.report.view import SIDE_BY_SIDE, ChainEdge, ChainNode

_MARGIN = 3.0
_LINE = 14.5  # px from line to line of a wire's label
_BENT = 30.0  # px between the ends of a wire: more is no straight one
Point = tuple[float, float]


@dataclass(frozen=True)
class Chain:
    svg: str
    n_left_out: int  # nodes that are not in the drawing, not even as "n more"


def chain(nodes: Sequence[ChainNode], edges: Sequence[ChainEdge], linked: frozenset[int] = frozenset()) -> Chain | None:
    """The drawing; None when there is nothing to draw. `linked`: ids of findings that the page has an anchor for."""
    if not nodes:
        return None
    layout = lay_out(nodes, edges)
    led_to = {id(wire.boxes[-1]) for wire in layout.wires}
    labels, top = _labels(layout.wires, layout.downwards)
    drawn = [_wire(wire, layout.downwards) for wire in layout.wires]
    drawn += [_box(box, linked, root=id(box) not in led_to) for box in layout.boxes]
    width, height = layout.width + 2 * _MARGIN, layout.height - top + 2 * _MARGIN
    svg = element(
        "svg",
        element("title", "Causal chain", id="chain-title")
        + element("desc", escaped(_description(nodes, edges), 2000), id="chain-desc")
        + element("g", "".join(drawn) + labels, transform=f"translate({_MARGIN:g} {coordinate(_MARGIN - top)})"),
        class_="chain down" if layout.downwards else "chain",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=width,
        height=height,
        role="group",
        aria_labelledby="chain-title",
        aria_describedby="chain-desc",
    )
    return Chain(svg, layout.n_left_out)


def chain_sentences(nodes: Sequence[ChainNode], edges: Sequence[ChainEdge], limit: int = 40) -> list[str]:
    """The chain in words, one sentence an edge: what a screen reader or a ticket can use."""
    labels = {node.id: one_line(node.label, 160) for node in nodes}
    known = [edge for edge in edges if edge.start in labels and edge.end in labels]
    rows = []
    for edge in known[:limit]:
        via = f" ({one_line(edge.label, 80)})" if edge.label else ""
        rows.append(f"{labels[edge.start]} {'→' if edge.is_directed else '—'} {labels[edge.end]}{via}")
    if len(known) > limit:
        rows.append(f"… {plural(len(known) - limit, 'more link')}")
    return rows


def _description(nodes: Sequence[ChainNode], edges: Sequence[ChainEdge]) -> str:
    return "; ".join(chain_sentences(nodes, edges, 20)) or one_line(nodes[0].label)


def _box(box: Box, linked: frozenset[int], *, root: bool) -> str:
    node = box.node
    kind = node.kind if node.kind in {"finding", "more"} else "state"
    round_ = 7.0 if kind == "finding" else min(box.height / 2, 16.0)
    parts = [element("title", escaped(f"{node.label}. {node.sub}" if node.sub else node.label, 800))]
    parts.append(element("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=round_, class_="box"))
    left, anchor = (box.x + 32, "start") if kind == "finding" else (box.x + box.width / 2, "middle")
    if kind == "finding":
        parts.append(severity_mark(node.severity, box.x + 17, box.y + 22, 6.5))
    y = box.y + (26 if kind == "finding" else 21)
    if kind != "finding":
        y = box.y + (box.height - 17 * len(box.lines) - 15.5 * len(box.sub_lines)) / 2 + 13
    for line in box.lines:
        parts.append(element("text", escaped(line), x=left, y=y, text_anchor=anchor, class_="label"))
        y += 17
    for line in box.sub_lines:
        parts.append(element("text", escaped(line), x=left, y=y - 1, text_anchor=anchor, class_="sub"))
        y += 15.5
    group = element("g", "".join(parts), class_=f"node {kind}{' root' if root and kind == 'finding' else ''}")
    if node.finding is not None and node.finding in linked:
        return element("a", group, href=f"#finding-{node.finding}")
    return group


def _points(wire: Wire, downwards: bool) -> list[Point]:
    points = [_port(wire.boxes[0], downwards, end=True)]
    points += [(bend.x + bend.width / 2, bend.y + bend.height / 2) for bend in wire.boxes[1:-1]]
    return [*points, _port(wire.boxes[-1], downwards, end=False)]


def _wire(wire: Wire, downwards: bool) -> str:
    points = _points(wire, downwards)
    is_directed = not wire.label.startswith(SIDE_BY_SIDE)
    x, y = points[-1]
    if is_directed:
        points[-1] = (x, y - 7) if downwards else (x - 7, y)
    path = [f"M{coordinate(points[0][0])} {coordinate(points[0][1])}"]
    for (x1, y1), (x2, y2) in pairwise(points):
        middle = (y1 + y2) / 2 if downwards else (x1 + x2) / 2
        controls = (x1, middle, x2, middle) if downwards else (middle, y1, middle, y2)
        path.append("C" + " ".join(coordinate(value) for value in (*controls, x2, y2)))
    drawn = element("path", d="".join(path), class_="wire")
    if not is_directed:
        return drawn
    head = [(x, y), (x - 4.5, y - 8), (x + 4.5, y - 8)] if downwards else [(x, y), (x - 8, y - 4.5), (x - 8, y + 4.5)]
    arrow = " ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in head)
    return drawn + element("polygon", points=arrow, class_="head")


def _labels(wires: Sequence[Wire], downwards: bool) -> tuple[str, float]:
    """The labels above their wires (beside them when they run down), and how far they reach above the drawing.

    Wires of one box that say the same are labelled once.
    """
    straightest: dict[tuple[int, str], tuple[float, Wire]] = {}
    for wire in wires:
        (x1, y1), (x2, y2) = _points(wire, downwards)[:2]
        bend = abs(x2 - x1) if downwards else abs(y2 - y1)
        key = (id(wire.boxes[0]), wire.label)
        if wire.label and (key not in straightest or bend < straightest[key][0]):
            straightest[key] = (bend, wire)
    parts, top = [], 0.0
    for _, wire in straightest.values():
        (x1, y1), (x2, y2) = _points(wire, downwards)[:2]
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        lines = wrap(wire.label, 320 if downwards else x2 - x1 - 22, LABEL_PX, 1 if downwards else LABEL_LINES)
        first = y + 4 if downwards else y - 8 - _LINE * (len(lines) - 1)
        at, anchor = (x + 10, "start") if downwards else (x - 3, "middle")
        if not downwards and abs(y2 - y1) > _BENT:  # at its own end, or it would stand between two wires
            at, anchor = x2 - 10, "end"
            first = y2 + 15 if y2 > y1 else y2 - 8 - _LINE * (len(lines) - 1)
        top = min(top, first - 12)
        for i, row in enumerate(lines):
            text = element("text", escaped(row), x=at, y=first + _LINE * i, text_anchor=anchor, class_="wire-label")
            parts.append(text)
    return "".join(parts), top


def _port(box: Box, downwards: bool, *, end: bool) -> tuple[float, float]:
    if downwards:
        return box.x + box.width / 2, box.y + (box.height if end else 0)
    return box.x + (box.width if end else 0), box.y + box.height / 2
