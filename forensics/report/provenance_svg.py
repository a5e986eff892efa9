"""Draws where a non-finite value was born and what it reached: the operators of one step as static SVG.

Columns follow the data flow, lanes the phases. The birth, its way and what fed it are boxes with their values; what
else was reached is a small square with a tooltip. Columns that do not fit the page are folded, those in the middle of
the way first. Kinds are told apart by form and line as well as by colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Operation, Provenance
from forensics.report.svg import clip, coordinate, element, escaped, shape
from forensics.report.text import plural

MAX_NODES = 300
_BOX, _BOX_HIGH, _GAP, _SMALL, _APART, _MARGIN, _LANE_NAME = 130.0, 46.0, 26.0, 18.0, 10.0, 6.0, 78.0
_PAGE, _FOLD = 1100.0, 58.0
_LABEL_PX = 11.5
_ORDER = {"birth": 0, "path": 1, "victim": 2, "healthy": 3}
_PHASES = ("forward", "backward", "optimizer")
_WORDS = {"birth": "born here", "path": "on the way", "victim": "reached", "healthy": "finite"}
ABOUT = ("numerics-", "gradients-explode", "gradients-adapter-sanity", "distributed-nan-bucket")


@dataclass
class _Place:
    """Where an operator is drawn, or where those of folded columns are counted."""

    x: float
    y: float
    width: float
    height: float
    is_fold: bool = False
    operations: list[Operation] = field(default_factory=list)


@dataclass
class _Slot:
    """A column of the drawing: one of the data flow, or several that are folded."""

    x: float
    width: float
    is_fold: bool


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
    edges: dict[str, int] = {}
    for op in drawn.values():
        for source in op.sources:
            if source in drawn and places[source] is not places[op.id]:
                path, rank = _edge(places[source], places[op.id]), _telling(op, drawn[source])
                edges[path] = max(rank, edges.get(path, 0))
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
        + "".join(
            element("path", d=path, class_=("edge", "edge bad", "edge way")[rank])
            for path, rank in sorted(edges.items(), key=lambda edge: (edge[1], edge[0]))
        )
        + "".join(_mark(place) for place in {id(place): place for place in places.values()}.values()),
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
    boxed = {i for i, op in drawn.items() if _is_boxed(op, fed)}
    column: dict[int, int] = {}
    for op in drawn.values():  # in the order of execution: sources come first
        column[op.id] = max((column[s] + 1 for s in op.sources if s in column), default=0)
    slots = _slots(drawn, column, boxed)
    places: dict[int, _Place] = {}
    lanes, top = [], _MARGIN
    for phase in _PHASES:
        members = [op for op in drawn.values() if (op.phase if op.phase in _PHASES else "forward") == phase]
        if not members:
            continue
        filled: dict[float, float] = {}
        folds: dict[float, _Place] = {}
        for op in sorted(members, key=lambda op: (op.id not in boxed, op.id)):
            slot = slots[column[op.id]]
            place = folds.get(slot.x)
            if place is None:
                wide, high = (_BOX, _BOX_HIGH) if op.id in boxed else (_SMALL, _SMALL)
                y = filled.get(slot.x, top + _APART)
                place = _Place(slot.x, y, slot.width if slot.is_fold else wide, high, slot.is_fold)
                filled[slot.x] = y + high + (_APART if op.id in boxed else 2)
                if slot.is_fold:
                    folds[slot.x] = place
            place.operations.append(op)
            places[op.id] = place
        bottom = max(filled.values())
        lanes.append((phase, (top + bottom) / 2, top))
        top = bottom + _APART
    return places, max(slot.x + slot.width for slot in slots) + _MARGIN + 4, top, lanes


def _slots(drawn: Mapping[int, Operation], column: Mapping[int, int], boxed: set[int]) -> list[_Slot]:
    """For each column of the data flow where it is drawn."""
    n = max(column.values()) + 1
    with_box = {column[i] for i in boxed}
    widths = [_BOX if at in with_box else _SMALL for at in range(n)]
    kept: set[int] = set()
    for at in _by_weight(drawn, column, boxed, n):
        if _LANE_NAME + _width(widths, kept | {at}) + _MARGIN <= _PAGE:
            kept.add(at)
    slots: list[_Slot] = []
    x = _LANE_NAME
    for at in range(n):
        if at not in kept and slots and slots[-1].is_fold:
            slots.append(slots[-1])
            continue
        slots.append(_Slot(x, widths[at] if at in kept else _FOLD, at not in kept))
        x += slots[-1].width + _GAP
    return slots


def _width(widths: Sequence[float], kept: set[int]) -> float:
    """Of the drawing when all but the columns `kept` are folded."""
    folds = sum(at not in kept and (at == 0 or at - 1 in kept) for at in range(len(widths)))
    return sum(widths[at] + _GAP for at in kept) + folds * (_FOLD + _GAP) - _GAP


def _by_weight(drawn: Mapping[int, Operation], column: Mapping[int, int], boxed: set[int], n: int) -> list[int]:
    """Columns, the most telling first: births, what fed them, both ends of the way, then what lies close to a birth."""
    births = sorted({column[i] for i, op in drawn.items() if op.role == "birth"})
    fed = {column[i] for i in boxed if drawn[i].role not in {"birth", "path"}}
    way = sorted({column[i] for i, op in drawn.items() if op.role == "path"} - set(births) - fed)

    def weight(at: int) -> tuple[int, int, int]:
        if at in births:
            return 0, births.index(at), at
        if at in fed:
            return 1, 0, at
        if at in way:
            return 2, min(way.index(at), len(way) - 1 - way.index(at)), at
        return 3, min(abs(at - birth) for birth in births), at

    return sorted(range(n), key=weight)


def _telling(op: Operation, source: Operation) -> int:
    """2 on the way of the first birth, 1 between operators that are not finite, else 0."""
    roles = {op.role, source.role}
    return 2 if roles <= {"birth", "path"} else 1 if "healthy" not in roles else 0


def _edge(a: _Place, b: _Place) -> str:
    if a.x == b.x:  # folded together, in two lanes
        upper, lower = sorted((a, b), key=lambda place: place.y)
        x = upper.x + upper.width / 2
        return f"M{coordinate(x)} {coordinate(upper.y + upper.height)}V{coordinate(lower.y)}"
    x1, y1, x2, y2 = a.x + a.width, a.y + a.height / 2, b.x, b.y + b.height / 2
    bend = max((x2 - x1) / 2, 14)
    return (
        f"M{coordinate(x1)} {coordinate(y1)}C{coordinate(x1 + bend)} {coordinate(y1)} "
        f"{coordinate(x2 - bend)} {coordinate(y2)} {coordinate(x2)} {coordinate(y2)}"
    )


def _mark(place: _Place) -> str:
    if place.is_fold:
        return _fold(place)
    op = place.operations[0]
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


def _fold(place: _Place) -> str:
    n = len(place.operations)
    labels = ", ".join(op.label for op in place.operations[:12])
    role = min((op.role for op in place.operations), key=_ORDER.__getitem__)
    rect = element("rect", x=place.x, y=place.y, width=place.width, height=place.height, rx=5, class_=f"op-box {role}")
    x, y = place.x + place.width / 2, place.y + place.height / 2 + 4
    said = element("text", escaped(f"{n:,} more"), x=x, y=y, text_anchor="middle", class_="sub")
    return element("g", element("title", escaped(f"{plural(n, 'more operator')}: {labels}", 300)) + rect + said)
