"""Draws where a non-finite value was born and what it reached: the operators of one step as static SVG.

Columns follow the data flow, lanes the phases. The birth, its way and what fed it are boxes with their values; what
else was reached is a small square with a tooltip. Kinds are told apart by form and line as well as by colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Operation, Provenance
from forensics.report.svg import clip, coordinate, element, escaped, shape
from forensics.report.text import plural

MAX_NODES = 300
_BOX, _BOX_HIGH, _GAP, _SMALL, _APART, _MARGIN, _LANE_NAME = 138.0, 46.0, 34.0, 18.0, 10.0, 6.0, 78.0
_LABEL_PX = 11.5
_ORDER = {"birth": 0, "path": 1, "victim": 2, "healthy": 3}
_PHASES = ("forward", "backward", "optimizer")
_WORDS = {"birth": "born here", "path": "on the way", "victim": "reached", "healthy": "finite"}
ABOUT = ("numerics-", "gradients-explode", "gradients-adapter-sanity", "distributed-nan-bucket")


@dataclass
class _Place:
    x: float
    y: float
    width: float
    height: float


def provenance_exhibit(view: Provenance, index: int = 0) -> Exhibit | None:
    """None where no operator is a birth."""
    svg = provenance(view.operations, index)
    if svg is None:
        return None
    whose = f", {view.process}" if view.process else ""
    notes = []
    if view.n_hidden:
        notes.append(f"{plural(view.n_hidden, 'more operator')} of this step stayed apart from it and are not drawn.")
    if view.inferred:
        notes.append("The recording holds no edges: the arrows are told by equal shapes and counts.")
    rows = [[op.label, op.module, op.phase, op.values, _WORDS[op.role]] for op in view.operations]
    step = "" if view.step is None else f" at step {view.step:,}"
    return Exhibit(
        id=f"provenance-{index}",
        title=f"Where the first non-finite value came from{whose}",
        lead=_lead(view, step),
        svg=svg,
        twin=twin(["Operator", "Module", "Phase", "Output", "What it is"], rows),
        notes=notes,
        about=ABOUT,
    )


def _lead(view: Provenance, step: str) -> str:
    birth = next(op for op in view.operations if op.role == "birth")
    reached = sum(op.role in {"path", "victim"} for op in view.operations)
    end = "the loss" if view.reaches_loss else f"the gradient of {view.parameter}" if view.parameter else ""
    said = (
        f"{birth.label} gave the first non-finite value{step}: {view.why}. {plural(reached, 'more operator')} read it"
    )
    return f"{said}{f', and it reached {end}' if end else ''}."


def provenance(operations: Sequence[Operation], index: int = 0) -> str | None:
    """The drawing; None when there is no birth. Beyond 300 operators those that stayed finite are left out first."""
    if not any(op.role == "birth" for op in operations):
        return None
    chosen = sorted(sorted(operations, key=lambda op: (_ORDER[op.role], op.id))[:MAX_NODES], key=lambda op: op.id)
    drawn = {op.id: op for op in chosen}
    places, width, height, lanes = _places(drawn)
    edges = sorted(
        _edge(op, drawn, places, source) for op in drawn.values() for source in op.sources if source in drawn
    )
    counts = {role: sum(op.role == role for op in operations) for role in _ORDER}
    words = f"{counts['birth']} births, {counts['path']} operators on the way, {counts['victim']} others reached"
    words += f", {counts['healthy']} that stayed finite"
    words += f", {len(operations) - len(drawn)} not drawn" if len(operations) > len(drawn) else ""
    ident = f"provenance-{index}"
    names = "".join(
        element("text", escaped(phase), x=0, y=y + 4, class_="lane-name")
        + element("path", d=f"M0 {coordinate(top)}H{coordinate(width)}", class_="grid")
        for phase, y, top in lanes
    )
    return element(
        "svg",
        element("title", "Where the first non-finite value was born", id=f"{ident}-title")
        + element("desc", escaped(words), id=f"{ident}-desc")
        + names
        + "".join(line for _, line in edges)
        + "".join(_mark(op, places[op.id]) for op in drawn.values()),
        class_="plot provenance natural",
        viewBox=f"0 0 {coordinate(width)} {coordinate(height)}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{ident}-title",
        aria_describedby=f"{ident}-desc",
    )


def _is_boxed(op: Operation, fed: set[int]) -> bool:
    return op.role in {"birth", "path"} or op.id in fed


def _places(
    drawn: Mapping[int, Operation],
) -> tuple[dict[int, _Place], float, float, list[tuple[str, float, float]]]:
    """Each operator one column behind the last of its sources, in the lane of its phase; then the lanes."""
    fed = {source for op in drawn.values() if op.role == "birth" for source in op.sources}
    column: dict[int, int] = {}
    for op in drawn.values():  # in the order of execution: sources come first
        column[op.id] = max((column[s] + 1 for s in op.sources if s in column), default=0)
    boxed = {i for i, op in drawn.items() if _is_boxed(op, fed)}
    widths = [
        _BOX if any(column[i] == at and i in boxed for i in drawn) else _SMALL for at in range(max(column.values()) + 1)
    ]
    left = [_LANE_NAME + sum(w + _GAP for w in widths[:at]) for at in range(len(widths))]
    places: dict[int, _Place] = {}
    lanes, top = [], _MARGIN
    for phase in _PHASES:
        members = [op for op in drawn.values() if (op.phase if op.phase in _PHASES else "forward") == phase]
        if not members:
            continue
        filled = dict.fromkeys(range(len(widths)), top + _APART)
        for op in sorted(members, key=lambda op: (op.id not in boxed, op.id)):
            at = column[op.id]
            wide, high = (_BOX, _BOX_HIGH) if op.id in boxed else (_SMALL, _SMALL)
            places[op.id] = _Place(left[at], filled[at], wide, high)
            filled[at] += high + (_APART if op.id in boxed else 2)
        bottom = max(filled.values())
        lanes.append((phase, (top + bottom) / 2, top))
        top = bottom + _APART
    return places, left[-1] + widths[-1] + _MARGIN + 4, top, lanes


def _edge(op: Operation, drawn: Mapping[int, Operation], places: Mapping[int, _Place], source: int) -> tuple[int, str]:
    a, b = places[source], places[op.id]
    x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
    bend = max((x2 - x1) / 2, 14)
    path = (
        f"M{coordinate(x1)} {coordinate(y1)}C{coordinate(x1 + bend)} {coordinate(y1)} "
        f"{coordinate(x2 - bend)} {coordinate(y2)} {coordinate(x2)} {coordinate(y2)}"
    )
    roles = {op.role, drawn[source].role}
    rank = 2 if roles <= {"birth", "path"} else 1 if "healthy" not in roles else 0
    return rank, element("path", d=path, class_=("edge", "edge bad", "edge way")[rank])


def _mark(op: Operation, place: _Place) -> str:
    words = f"{op.label}{f' in {op.module}' if op.module else ''}, {op.phase}: {op.values or 'no statistics'}"
    title = element("title", escaped(f"{words}; {_WORDS[op.role]}", 300))
    if place.width == _SMALL:
        kind, radius = ("square", 5.0) if op.role == "victim" else ("ring", 4.0)
        middle = place.x + place.width / 2, place.y + place.height / 2
        return element("g", title + shape(kind, *middle, radius, op.role))
    box = element(
        "rect", x=place.x, y=place.y, width=place.width, height=place.height, rx=5, class_=f"op-box {op.role}"
    )
    room, x = place.width - 18, place.x + 9
    head = x
    mark = ""
    if op.role == "birth":
        mark = shape("diamond", place.x + 13, place.y + 17, 5.5, "born")
        head, room = x + 12, room - 12
    label = element("text", escaped(clip(op.label, room, 12, bold=True)), x=head, y=place.y + 21, class_="label")
    below = op.values or op.module
    sub = element("text", escaped(clip(below, place.width - 18, _LABEL_PX)), x=x, y=place.y + 36, class_="sub")
    return element("g", title + box + mark + label + sub)
