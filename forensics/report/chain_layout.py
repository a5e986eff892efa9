"""Places the nodes of a causal chain in layers, causes before consequences: positions in px, no drawing.

Layers run from left to right where they fit the page, else downwards. What is too much for a picture is folded into
nodes "n more". Layering by longest path, order by barycentres (Sugiyama, Tagawa, Toda 1981).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from forensics.report.svg import wrap
from forensics.report.view import ChainEdge, ChainNode

PAGE = 1100.0
MAX_NODES = 400
MAX_LAYERS = 12
MAX_IN_LAYER = 5
LABEL_PX = 12.0  # of a wire's label, and of the second line in a box
LABEL_LINES = 4
_GAP, _APART = 38.0, 18.0
_NAME_PX, _STATE_PX = 13.5, 12.5
# Widths of (a finding, a state, a labelled gap), roomiest first: the first that fits the page is taken.
_MEASURES = ((220.0, 150.0, 172.0), (204.0, 140.0, 138.0), (184.0, 124.0, 116.0))


@dataclass
class Box:
    node: ChainNode
    width: float
    height: float
    lines: list[str] = field(default_factory=list)
    sub_lines: list[str] = field(default_factory=list)
    x: float = 0.0  # of the upper left corner
    y: float = 0.0
    bend: bool = False  # only a point where a wire passes a layer


@dataclass(frozen=True)
class Wire:
    boxes: tuple[Box, ...]  # start, bends, end
    label: str


@dataclass(frozen=True)
class Layout:
    width: float
    height: float
    downwards: bool
    boxes: list[Box]
    wires: list[Wire]
    n_left_out: int  # nodes beyond MAX_NODES, not even folded


def lay_out(nodes: Sequence[ChainNode], edges: Sequence[ChainEdge]) -> Layout:
    n_left_out = max(0, len(nodes) - MAX_NODES)
    known, links = _clean(nodes[:MAX_NODES], edges[: 2 * MAX_NODES])
    layers = _fold(_layers(known, links))
    place = {member: box for layer in layers for box, members in layer for member in members}
    wires = _dedupe((place[a], place[b], label) for a, b, label in links)
    columns = [[box for box, _ in layer] for layer in layers]
    labelled = [_is_labelled(column, wires) for column in columns[:-1]]
    fitting = [m for m in _MEASURES if _total(columns, labelled, m) <= PAGE]
    downwards = not fitting
    measure = fitting[0] if fitting else _MEASURES[0]
    gaps = [measure[2] if has_label and not downwards else _GAP for has_label in labelled]
    for column in columns:
        _size(column, measure, downwards)
    routed = [Wire(tuple(_route(columns, a, b)), label) for a, b, label in wires]
    _order(columns, routed)
    width, height = _coordinates(columns, routed, gaps, downwards)
    boxes = [box for column in columns for box in column if not box.bend]
    return Layout(width, height, downwards, boxes, routed, n_left_out)


def _clean(
    nodes: Sequence[ChainNode], edges: Sequence[ChainEdge]
) -> tuple[dict[str, ChainNode], list[tuple[str, str, str]]]:
    """Nodes by id, and the edges between known nodes without those that would close a cycle."""
    known: dict[str, ChainNode] = {}
    for node in nodes:
        known.setdefault(node.id, node)
    after: dict[str, list[str]] = defaultdict(list)
    kept: list[tuple[str, str, str]] = []
    for edge in edges:
        fits = edge.start in known and edge.end in known and edge.start != edge.end
        if fits and edge.end not in after[edge.start] and not _reaches(after, edge.end, edge.start):
            after[edge.start].append(edge.end)
            kept.append((edge.start, edge.end, edge.label))
    return known, kept


def _reaches(after: dict[str, list[str]], start: str, goal: str) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        if node == goal:
            return True
        for other in after.get(node, ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return False


def _layers(known: dict[str, ChainNode], wires: list[tuple[str, str, str]]) -> list[list[ChainNode]]:
    depth = dict.fromkeys(known, 0)
    n_before = dict.fromkeys(known, 0)
    after: dict[str, list[str]] = defaultdict(list)
    for a, b, _ in wires:
        n_before[b] += 1
        after[a].append(b)
    ready = [name for name in known if not n_before[name]]
    for name in ready:  # grows while it is walked
        for other in after[name]:
            depth[other] = max(depth[other], depth[name] + 1)
            n_before[other] -= 1
            if not n_before[other]:
                ready.append(other)
    layers: list[list[ChainNode]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name, node in known.items():
        layers[depth[name]].append(node)
    return layers


def _fold(layers: list[list[ChainNode]]) -> list[list[tuple[Box, list[str]]]]:
    """Boxes with the ids of the nodes that they stand for; what is beyond the bounds shares one box."""
    if len(layers) > MAX_LAYERS:
        rest = [node for layer in layers[MAX_LAYERS - 1 :] for node in layer]
        layers = [*layers[: MAX_LAYERS - 1], rest]
    folded = []
    for index, layer in enumerate(layers):
        last = index == MAX_LAYERS - 1
        room = 0 if last and len(layer) > 1 else MAX_IN_LAYER if len(layer) <= MAX_IN_LAYER else MAX_IN_LAYER - 1
        boxes = [(Box(node, 0, 0), [node.id]) for node in layer[:room]]
        if len(layer) > room:
            more = ChainNode(f"more-{index}", f"{len(layer) - room:,} more", kind="more")
            boxes.append((Box(more, 0, 0), [node.id for node in layer[room:]]))
        folded.append(boxes)
    return folded


def _dedupe(wires: Iterable[tuple[Box, Box, str]]) -> list[tuple[Box, Box, str]]:
    kept: dict[tuple[int, int], tuple[Box, Box, str]] = {}
    for a, b, label in wires:
        if a is not b:
            kept.setdefault((id(a), id(b)), (a, b, label))
    return list(kept.values())


def _is_labelled(column: list[Box], wires: list[tuple[Box, Box, str]]) -> bool:
    return any(label and any(start is box for box in column) for start, _, label in wires)


def _total(columns: list[list[Box]], labelled: list[bool], measure: tuple[float, float, float]) -> float:
    return sum(_width(column, measure) for column in columns) + sum(measure[2] if is_ else _GAP for is_ in labelled)


def _width(column: list[Box], measure: tuple[float, float, float]) -> float:
    return measure[0] if any(box.node.kind == "finding" for box in column) else measure[1]


def _size(column: list[Box], measure: tuple[float, float, float], downwards: bool) -> None:
    """Wraps the texts of a layer's boxes and gives each box its size."""
    across = (PAGE - _APART * (len(column) - 1)) / len(column)
    for box in column:
        finding = box.node.kind == "finding"
        box.width = min(across, 430.0 if finding else 260.0) if downwards else _width(column, measure)
        room = box.width - (42 if finding else 28)
        px = _NAME_PX if finding else _STATE_PX
        box.lines = wrap(box.node.label, room, px, 2 if downwards else 4, bold=finding)
        box.sub_lines = wrap(box.node.sub, room, LABEL_PX, 1 if downwards else 3) if box.node.sub else []
        box.height = (20 if finding else 14) + 17.0 * len(box.lines) + 15.5 * len(box.sub_lines)


def _route(columns: list[list[Box]], start: Box, end: Box) -> list[Box]:
    """The boxes that a wire runs through; adds a bend to every layer that it passes."""
    first = next(i for i, column in enumerate(columns) if any(box is start for box in column))
    last = next(i for i, column in enumerate(columns) if any(box is end for box in column))
    bends = []
    for column in columns[first + 1 : last]:
        bend = Box(start.node, 4.0, 4.0, bend=True)
        column.append(bend)
        bends.append(bend)
    return [start, *bends, end]


def _order(columns: list[list[Box]], wires: list[Wire]) -> None:
    """Sorts each layer by the mean place of its neighbours, forth and back, so that wires cross less."""
    before, after = _neighbours(wires)
    for sweep in range(6):
        near, walk = (before, columns) if sweep % 2 == 0 else (after, columns[::-1])
        for fixed, column in pairwise(walk):
            rank = {id(box): float(i) for i, box in enumerate(fixed)}
            centre = {}
            for i, box in enumerate(column):
                seen = [rank[id(other)] for other in near[id(box)]]
                centre[id(box)] = sum(seen) / len(seen) if seen else float(i)
            column.sort(key=lambda box, centre=centre: centre[id(box)])  # type: ignore[misc]


def _neighbours(wires: list[Wire]) -> tuple[dict[int, list[Box]], dict[int, list[Box]]]:
    before: dict[int, list[Box]] = defaultdict(list)
    after: dict[int, list[Box]] = defaultdict(list)
    for wire in wires:
        for a, b in pairwise(wire.boxes):
            after[id(a)].append(b)
            before[id(b)].append(a)
    return before, after


def _coordinates(
    columns: list[list[Box]], wires: list[Wire], gaps: list[float], downwards: bool
) -> tuple[float, float]:
    """Sets x and y of every box; width and height of the whole."""
    centres = _across(columns, wires, downwards)
    every = [box for column in columns for box in column]
    low = min((centres[id(box)] - _extent(box, downwards) / 2 for box in every), default=0.0)
    along = 0.0
    for column, gap in zip(columns, [*gaps, 0.0], strict=True):
        deepest = max(box.height if downwards else box.width for box in column)
        for box in column:
            start = centres[id(box)] - _extent(box, downwards) / 2 - low
            inner = along + (deepest - (box.height if downwards else box.width)) / 2
            box.x, box.y = (start, inner) if downwards else (inner, start)
        along += deepest + gap
    across = max((centres[id(box)] + _extent(box, downwards) / 2 - low for box in every), default=0.0)
    return (across, along) if downwards else (along, across)


def _extent(box: Box, downwards: bool) -> float:
    return box.width if downwards else box.height


def _across(columns: list[list[Box]], wires: list[Wire], downwards: bool) -> dict[int, float]:
    """Centre of each box across the layers: near its neighbours, at least `_APART` from the next box."""
    centres: dict[int, float] = {}
    for column in columns:
        _spread(column, dict.fromkeys(map(id, column), 0.0), centres, downwards)
    before, after = _neighbours(wires)
    for sweep in range(8):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            wanted = {}
            for box in column:
                near = (before if forward else after)[id(box)] or [box]
                wanted[id(box)] = sum(centres[id(other)] for other in near) / len(near)
            _spread(column, wanted, centres, downwards)
    return centres


def _spread(column: list[Box], wanted: dict[int, float], centres: dict[int, float], downwards: bool) -> None:
    at: list[float] = []
    for index, box in enumerate(column):
        goal = wanted[id(box)]
        if index:
            goal = max(goal, at[-1] + (_extent(column[index - 1], downwards) + _extent(box, downwards)) / 2 + _APART)
        at.append(goal)
    shift = sum(wanted[id(box)] - place for box, place in zip(column, at, strict=True)) / max(1, len(column))
    for box, place in zip(column, at, strict=True):
        centres[id(box)] = place + shift
