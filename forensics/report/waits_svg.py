"""Draws process groups and their ranks: how far each rank came in its collectives, who waits, and for whom."""

from __future__ import annotations

import math
from collections.abc import Callable

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import WaitGraph, WaitGroup, WaitMember
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width
from forensics.report.text import plural

_WIDTH, _LEFT, _RIGHT, _ROW, _FONT_PX = 1100.0, 92.0, 300.0, 26.0, 11.5
ABOUT = ("distributed-",)
REASONS = {
    "absent": "never made the call that its peers made",
    "behind": "did not finish what its peers finished",
    "not-started": "its device had not begun the call",
    "no-dump": "left no dump: nothing is known of it",
    "mismatch": "called something else",
    "alone": "called what no peer called",
    "cycle": "waits in one group while another waits for it",
}


def waits_exhibit(view: WaitGraph, index: int = 0) -> Exhibit | None:
    """None without a group."""
    if not view.groups:
        return None
    culprits = [(g, m) for g in view.groups for m in g.members if m.culprit]
    if culprits:
        group, member = culprits[0]
        said = f"rank {member.rank} in {group.name}, which {REASONS.get(member.culprit, member.culprit)}"
        lead = f"{plural(view.n_waiting, 'rank waits', 'ranks wait')}, in the end for {said}."
    else:
        lead = f"{plural(view.n_waiting, 'rank waits', 'ranks wait')}; the dumps do not tell for whom."
    rows = [
        [g.name, f"rank {m.rank}", _number(m.last_called), _number(m.waits_at), m.operation, _said(m)]
        for g in view.groups
        for m in g.members
    ]
    notes = [f"{plural(g.n_hidden, 'more rank')} of {g.name} not drawn." for g in view.groups if g.n_hidden]
    if view.n_hidden:
        notes.append(f"{plural(view.n_hidden, 'more group')} not drawn.")
    return Exhibit(
        id=f"waits-{index}",
        title="Who waits for whom",
        lead=lead,
        svg=_svg(view, index),
        twin=twin(["Group", "Rank", "Last call", "Waits in", "Operation", "What it means"], rows, (2, 3)),
        notes=notes,
        about=ABOUT,
    )


def _number(value: int | None) -> str:
    return "" if value is None else f"#{value:,}"


def _said(member: WaitMember) -> str:
    if member.culprit:
        return REASONS.get(member.culprit, member.culprit)
    if not member.has_dump:
        return "no dump"
    return "waits" if member.waits_at is not None else "waits for nothing here"


def _svg(view: WaitGraph, index: int) -> str:
    parts, y = [], 4.0
    for group in view.groups:
        drawn, height = _group(group, y)
        parts.append(drawn)
        y += height + 18
    ident = f"waits-{index}-title"
    return element(
        "svg",
        element("title", "Who waits for whom", id=ident) + "".join(parts),
        class_="plot waits",
        viewBox=f"0 0 {_WIDTH:g} {coordinate(y)}",
        role="img",
        aria_labelledby=ident,
    )


def _group(group: WaitGroup, top: float) -> tuple[str, float]:
    """A lane a rank, from the last call that all made to the furthest; the gap to it is what the others wait for."""
    known = [n for m in group.members for n in (m.last_called, m.waits_at) if n is not None]
    low, high = (min(known), max(known)) if known else (0, 0)
    first = max(0, min(low, high - 1) - 1)
    column = (_WIDTH - _LEFT - _RIGHT) / max(high - first, 1)

    def place(n: int) -> float:
        return _LEFT + (n - first) * column

    heading = f"{group.name}{f' ({group.backend})' if group.backend else ''}"
    parts = [element("text", escaped(clip(heading, 460, 13, bold=True)), x=0, y=top + 12, class_="label")]
    every = max(1, math.ceil((text_width(f"#{high:,}", _FONT_PX) + 12) / column))
    y0, bottom = top + 24.0, top + 24.0 + _ROW * len(group.members)
    for n in range(first, high + 1, every):
        parts.append(element("path", d=f"M{coordinate(place(n))} {coordinate(y0)}V{coordinate(bottom)}", class_="grid"))
        parts.append(element("text", f"#{n:,}", x=place(n), y=bottom + 14, text_anchor="middle", class_="tick"))
    for i, member in enumerate(group.members):
        parts.append(_lane(member, y0 + _ROW * (i + 0.5), place, first, high))
    return element("g", "".join(parts)), bottom - top + 20


def _lane(member: WaitMember, y: float, place: Callable[[int], float], first: int, high: int) -> str:
    kind = "culprit" if member.culprit else "waiting" if member.waits_at is not None else "quiet"
    parts = [
        element("text", f"rank {member.rank}", x=_LEFT - 14, y=y + 4, text_anchor="end", class_=f"lane-name {kind}")
    ]
    reached = member.last_called
    if reached is None:
        parts.append(
            element("path", d=f"M{coordinate(_LEFT)} {coordinate(y)}H{coordinate(place(high))}", class_="wait unknown")
        )
    else:
        parts.append(
            element(
                "path",
                d=f"M{coordinate(_LEFT)} {coordinate(y)}H{coordinate(place(max(reached, first)))}",
                class_=f"reach {kind}",
            )
        )
        if reached < high:
            parts.append(
                element(
                    "path",
                    d=f"M{coordinate(place(max(reached, first)))} {coordinate(y)}H{coordinate(place(high))}",
                    class_="wait missing",
                )
            )
        parts.append(
            shape("square" if kind == "waiting" else "disc", place(max(reached, first)), y, 5, f"reached {kind}")
        )
    if member.culprit:
        parts.append(shape("cross", place(high), y, 6, "lost"))
    label = _said(member)
    if kind == "waiting":
        label = f"waits in {member.operation or 'a call'} #{member.waits_at:,}"
    title = element("title", escaped(f"rank {member.rank}: {label}"))
    x = place(high) + 16
    note = "note lost-note" if member.culprit else "note tick"
    parts.append(element("text", escaped(clip(label, _WIDTH - x - 4, _FONT_PX)), x=x, y=y + 4, class_=note))
    return element("g", title + "".join(parts))
