"""Draws rows by steps as a heat map in five steps of grey to ink; what is not finite is a cross, not a colour."""

from __future__ import annotations

import math

from forensics.finding import format_duration
from forensics.report.exhibit import Exhibit, Twin, twin
from forensics.report.pictures import GridView
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width
from forensics.report.text import number, plural

_WIDTH, _TOP = 1100.0, 30.0
_FONT_PX = 11.5
N_SHADES = 6
MAX_TITLES = 4000  # cells that say their value when pointed at
ABOUT = {
    "rank": ("distributed-straggler", "distributed-", "host-", "efficiency-", "hardware-throttle"),
    "parameter": ("gradients-", "numerics-"),
}


def grid_exhibit(view: GridView, index: int = 0) -> Exhibit | None:
    """None where nothing was recorded."""
    values = [v for row in view.cells for v in row if v is not None and math.isfinite(v)]
    if not values:
        return None
    notes = []
    if view.per_column > 1:
        notes.append(f"Each column is {view.per_column} recorded steps and shows the largest value of them.")
    if view.n_rows_hidden:
        notes.append(f"{plural(view.n_rows_hidden, f'more {view.row_word}')} not drawn.")
    return Exhibit(
        id=f"grid-{index}",
        title=f"{view.name} by {view.row_word} and step" if view.row_word == "rank" else view.name,
        lead=_lead(view, values),
        svg=_svg(view, values, index),
        twin=_twin(view),
        notes=notes,
        about=ABOUT.get(view.row_word, ()),
    )


def _shown(view: GridView, value: float) -> str:
    if not math.isfinite(value):
        return "not finite"
    return format_duration(value * 1e9) if view.unit == "seconds" else number(value)


def _lead(view: GridView, values: list[float]) -> str:
    most, i, j = max(
        (
            (v, i, j)
            for i, row in enumerate(view.cells)
            for j, v in enumerate(row)
            if v is not None and math.isfinite(v)
        ),
        key=lambda c: (c[0], -c[1], -c[2]),
    )
    middle = sorted(values)[len(values) // 2]
    said = f"Mostly {_shown(view, middle)}; most {_shown(view, most)}, {view.rows[i]}, step {view.columns[j]:,}"
    lost = [
        (j, i) for i, row in enumerate(view.cells) for j, v in enumerate(row) if v is not None and not math.isfinite(v)
    ]
    if lost:
        j, i = min(lost)
        said += f". Not finite from step {view.columns[j]:,} on, first {view.rows[i]}"
    return f"{said}.{' Times are taken ' + view.how + '.' if view.how else ''}"


def _scale(view: GridView, values: list[float]) -> tuple[float, float, bool]:
    positive = [v for v in values if v > 0]
    log = view.log and bool(positive) and max(positive) > 20 * min(positive)
    if log:
        return math.log10(min(positive)), math.log10(max(positive)), True
    return min(values), max(values), False


def _shade(value: float, low: float, high: float, log: bool) -> int:
    if log:
        if value <= 0:
            return 0
        value = math.log10(value)
    ratio = (value - low) / (high - low) if high > low else 0.0
    return min(int(ratio * N_SHADES), N_SHADES - 1)


def _svg(view: GridView, values: list[float], index: int) -> str:
    left = min(max(text_width(row[:80], _FONT_PX) for row in view.rows) + 14, 330.0)
    width = min((_WIDTH - left - 8) / max(1, len(view.columns)), 46.0)
    height = 20.0 if len(view.rows) <= 16 else 13.0
    low, high, log = _scale(view, values)
    titled = len(view.rows) * len(view.columns) <= MAX_TITLES
    parts = [_key(view, low, high, log, left)]
    for i, row in enumerate(view.rows):
        y = _TOP + i * height
        parts.append(
            element(
                "text",
                escaped(clip(row, left - 12, _FONT_PX)),
                x=left - 8,
                y=y + height / 2 + 4,
                text_anchor="end",
                class_="lane-name",
            )
        )
        for j, value in enumerate(view.cells[i]):
            if value is None:
                continue
            x = left + j * width
            title = element("title", escaped(f"{row}, step {view.columns[j]}: {_shown(view, value)}")) if titled else ""
            if math.isfinite(value):
                shade = _shade(value, low, high, log)
                cell = element("rect", x=x, y=y, width=max(width - 1, 0.6), height=height - 1, class_=f"h{shade}")
            else:
                cell = element("rect", x=x, y=y, width=max(width - 1, 0.6), height=height - 1, class_="h-lost")
                cell += shape("cross", x + (width - 1) / 2, y + (height - 1) / 2, min(width, height) / 3.2, "lost")
            parts.append(element("g", title + cell) if title else cell)
    base = _TOP + len(view.rows) * height
    parts.append(_steps(view, left, width, base))
    ident = f"grid-{index}-title"
    return element(
        "svg",
        element("title", escaped(view.name), id=ident) + "".join(parts),
        class_="plot heat",
        viewBox=f"0 0 {_WIDTH:g} {coordinate(base + 22)}",
        role="img",
        aria_labelledby=ident,
    )


def _steps(view: GridView, left: float, width: float, base: float) -> str:
    parts, free_from = [], left - 1
    for j, step in enumerate(view.columns):
        label, x = f"{step:,}", left + (j + 0.5) * width
        room = text_width(label, _FONT_PX) + 16
        if x - room / 2 >= free_from - room / 2 and x >= free_from:
            parts.append(element("text", escaped(label), x=x, y=base + 15, text_anchor="middle", class_="tick"))
            free_from = x + room
    parts.append(element("text", "step", x=left - 8, y=base + 15, text_anchor="end", class_="tick"))
    return "".join(parts)


def _key(view: GridView, low: float, high: float, log: bool, left: float) -> str:
    least, most = (10**low, 10**high) if log else (low, high)
    parts = [element("text", escaped(_shown(view, least)), x=left, y=17, class_="tick")]
    at = left + text_width(_shown(view, least), _FONT_PX) + 8
    for shade in range(N_SHADES):
        parts.append(element("rect", x=at + shade * 19, y=8, width=18, height=10, class_=f"h{shade}"))
    at += N_SHADES * 19 + 6
    label = _shown(view, most) + (", logarithmic" if log else "")
    parts.append(element("text", escaped(label), x=at, y=17, class_="tick"))
    return "".join(parts)


def _twin(view: GridView) -> Twin:
    rows = []
    for i, name in enumerate(view.rows):
        known = [(j, v) for j, v in enumerate(view.cells[i]) if v is not None]
        finite = [(v, j) for j, v in known if math.isfinite(v)]
        lost = [j for j, v in known if not math.isfinite(v)]
        most = max(finite, key=lambda c: (c[0], -c[1])) if finite else None
        rows.append(
            [
                name,
                f"{len(known):,}",
                _shown(view, sorted(v for v, _ in finite)[len(finite) // 2]) if finite else "",
                f"{_shown(view, most[0])} at step {view.columns[most[1]]:,}" if most else "",
                _shown(view, known[-1][1]) if known else "",
                f"from step {view.columns[lost[0]]:,}" if lost else "none",
            ]
        )
    return twin([view.row_word.capitalize(), "Columns", "Middle", "Largest", "Last", "Not finite"], rows, (1,))
