"""Draws loss, gradient norm and the like per rank as static SVG, with the figures beside it as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from forensics.report import sampling, text
from forensics.report.scale import Scale, fit
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width
from forensics.report.text import one_line
from forensics.report.view import SeriesView

MAX_CHARTS = 12
MAX_RANKS = 8  # lines that can be told apart by colour and dash
MAX_POINTS = 2_000  # of one line
PAGE_POINTS = 16_000  # of all lines of a page, about 180 kB
_MAX_MARKS = 12
_WIDTH, _HEIGHT = 540.0, 216.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 62.0, 30.0, 26.0
_FONT_PX = 11.5
_APART = 13.0  # px from label to label


@dataclass(frozen=True)
class Row:
    rank: str
    n_points: str
    first: str
    last: str
    low: str
    high: str
    non_finite: str


@dataclass(frozen=True)
class Chart:
    name: str
    unit: str
    axis: str
    svg: str
    rows: list[Row]
    notes: list[str]


def charts(series: Sequence[SeriesView]) -> tuple[list[Chart], int]:
    """The drawings, in the order of the series, and how many are left out."""
    groups: dict[tuple[str, str, str], list[SeriesView]] = {}
    for one in series:
        groups.setdefault((one.name, one.unit, one.axis), []).append(one)
    shown = list(groups.values())[:MAX_CHARTS]
    n_lines = sum(min(len(group), MAX_RANKS) for group in shown)
    limit = min(MAX_POINTS, max(100, PAGE_POINTS // max(1, n_lines)))
    return [_chart(group, limit, index) for index, group in enumerate(shown)], len(groups) - len(shown)


def _chart(group: list[SeriesView], limit: int, index: int) -> Chart:
    drawn = _chosen(group)
    thinned = [sampling.thin(one.points, limit) for one in drawn]
    name, unit, axis = group[0].name, group[0].unit, group[0].axis
    notes = []
    if len(drawn) < len(group):
        notes.append(f"{text.plural(len(group) - len(drawn), 'more rank')} not drawn.")
    cut = [(one, t) for one, t in zip(drawn, thinned, strict=True) if t.n_points > limit]
    if cut:
        most = max(t.n_points for _, t in cut)
        notes.append(
            f"Drawn from up to {most:,} points a rank by the lowest and highest of each of {limit // 2:,} spans."
        )
    rows = [_row(one, t) for one, t in zip(drawn, thinned, strict=True)]
    return Chart(name, unit, axis, _svg(drawn, thinned, index), rows, notes)


def _chosen(group: list[SeriesView]) -> list[SeriesView]:
    """The ranks to draw: those with marks or non-finite values before the others."""
    if len(group) <= MAX_RANKS:
        return group
    telling = [bool(one.marks) or any(not math.isfinite(value) for _, value in one.points) for one in group]
    order = sorted(range(len(group)), key=lambda i: (not telling[i], i))[:MAX_RANKS]
    return [group[i] for i in sorted(order)]


def _row(one: SeriesView, t: sampling.Thinned) -> Row:
    first = t.non_finite[0] if t.non_finite else None
    n = sum(run.n for run in t.non_finite)
    return Row(
        rank=_rank(one),
        n_points=f"{t.n_points:,}",
        first=text.number(one.points[0][1]) if one.points else "",
        last=text.number(one.points[-1][1]) if one.points else "",
        low=text.number(t.low) if t.pieces else "",
        high=text.number(t.high) if t.pieces else "",
        non_finite=f"{n:,}, first at {_at(first.first, one.axis)}" if first else "none",
    )


def _rank(one: SeriesView) -> str:
    return "job" if one.rank is None else f"rank {one.rank}"


def _at(x: float, axis: str) -> str:
    return text.moment(int(x)) if axis == "ns" else f"step {text.number(x)}"


def _svg(drawn: list[SeriesView], thinned: list[sampling.Thinned], index: int) -> str:
    axis = drawn[0].axis
    xs = [x for one in drawn for x, _ in one.points if math.isfinite(x)]
    x_scale = fit(min(xs, default=0.0), max(xs, default=1.0), _LEFT, _WIDTH - _RIGHT)
    lows = [t.low for t in thinned if t.pieces]
    highs = [t.high for t in thinned if t.pieces]
    low, high = min(lows, default=math.nan), max(highs, default=math.nan)
    y_scale = fit(low, high, _HEIGHT - _BOTTOM, _TOP, may_be_log=True, pad=0.04)
    parts = [_grid(x_scale, y_scale, axis)]
    for i, t in enumerate(thinned):
        parts.append(_line(t, x_scale, y_scale, i, _rank(drawn[i])))
    parts += [_marks(drawn, x_scale), _non_finite(drawn, thinned, x_scale), _labels(drawn, thinned, y_scale)]
    title, ident = f"{drawn[0].name} by {'time' if axis == 'ns' else 'step'}", f"series-{index}"
    return element(
        "svg",
        element("title", escaped(title), id=f"{ident}-title") + "".join(parts),
        class_="series",
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_labelledby=f"{ident}-title",
        data_x=f"{x_scale.low!r} {x_scale.high!r} {_LEFT:g} {_WIDTH - _RIGHT:g}",
        data_y=f"{y_scale.low!r} {y_scale.high!r} {_HEIGHT - _BOTTOM:g} {_TOP:g}",
        data_log="1" if y_scale.log else None,
        data_axis=axis if axis == "ns" else "step",
    )


def _grid(x_scale: Scale, y_scale: Scale, axis: str) -> str:
    parts = []
    for value, label in y_scale.ticks(4):
        y = y_scale(value)
        parts.append(element("path", d=f"M{_LEFT:g} {coordinate(y)}H{_WIDTH - _RIGHT:g}", class_="grid"))
        parts.append(element("text", escaped(label), x=_LEFT - 7, y=y + 4, text_anchor="end", class_="tick"))
    base = _HEIGHT - _BOTTOM
    parts.append(element("path", d=f"M{_LEFT:g} {base:g}H{_WIDTH - _RIGHT:g}", class_="axis"))
    shown = x_scale
    if axis == "ns":  # seconds since the first value: ns do not fit a tick
        shown = Scale(0.0, (x_scale.high - x_scale.low) / 1e9, x_scale.start, x_scale.end)
    for value, label in shown.ticks(5):
        unit = " s" if axis == "ns" else ""
        parts.append(
            element("text", escaped(label + unit), x=shown(value), y=base + 17, text_anchor="middle", class_="tick")
        )
    return "".join(parts)


def _line(t: sampling.Thinned, x_scale: Scale, y_scale: Scale, i: int, rank: str) -> str:
    parts = []
    for piece in t.pieces:
        if len(piece) == 1:
            x, y = piece[0]
            parts.append(element("circle", cx=x_scale(x), cy=y_scale(y), r=2, class_=f"dot s{i}"))
        else:
            points = " ".join(f"{coordinate(x_scale(x))},{coordinate(y_scale(y))}" for x, y in piece)
            parts.append(element("polyline", points=points, class_=f"line s{i}", data_rank=rank))
    return "".join(parts)


def _non_finite(drawn: list[SeriesView], thinned: list[sampling.Thinned], x_scale: Scale) -> str:
    """Crosses on a rail above the plot, one row for all ranks; the first one says what and where it is."""
    parts = []
    runs = [(run, i) for i, t in enumerate(thinned) for run in t.non_finite[:_MAX_MARKS]]
    y = _TOP - 8
    for run, i in runs:
        x, end = x_scale(run.first), x_scale(run.last)
        if end - x > 2:
            parts.append(element("path", d=f"M{coordinate(x)} {y:g}H{coordinate(end)}", class_="lost"))
        mark = shape("cross", x, y, 5, "lost")
        label = f"{run.label} on {_rank(drawn[i])}, {_at(run.first, drawn[i].axis)}, {text.plural(run.n, 'value')}"
        parts.append(element("g", element("title", escaped(label)) + mark))
    if runs:
        run, i = min(runs, key=lambda r: (r[0].first, r[1]))
        x = x_scale(run.first)
        label = f"{run.label} from {_at(run.first, drawn[i].axis)}"
        left = x + text_width(label, _FONT_PX) + 10 > _WIDTH - 4
        anchor, at = ("end", x - 9) if left else ("start", x + 9)
        # Above the rail when the run goes on below the label.
        parts.append(element("text", escaped(label), x=at, y=y - 8, text_anchor=anchor, class_="note lost-note"))
    return "".join(parts)


def _marks(drawn: list[SeriesView], x_scale: Scale) -> str:
    labels: dict[float, list[str]] = {}
    for one in drawn:
        for x, label in one.marks:
            if math.isfinite(x) and label not in labels.setdefault(x, []):
                labels[x].append(label)
    parts, free_from = [], _LEFT
    for x, names in sorted(labels.items())[:_MAX_MARKS]:
        at = x_scale(x)
        line = element("path", d=f"M{coordinate(at)} {_TOP:g}V{_HEIGHT - _BOTTOM:g}", class_="at")
        parts.append(element("g", element("title", escaped("; ".join(names))) + line))
        shown = clip(one_line(names[0], 60), 150, _FONT_PX)
        width = text_width(shown, _FONT_PX) + 8
        left = at + width > _WIDTH - _RIGHT
        start = at - width if left else at
        if start >= free_from:  # a label that would run into the one before is left to the title
            free_from = start + width
            anchor, x_text = ("end", at - 5) if left else ("start", at + 5)
            parts.append(
                element("text", escaped(shown), x=x_text, y=_TOP + 11, text_anchor=anchor, class_="note at-note")
            )
    return "".join(parts)


def _labels(drawn: list[SeriesView], thinned: list[sampling.Thinned], y_scale: Scale) -> str:
    """The rank at the end of its line, pushed apart where lines end together."""
    ends = sorted((y_scale(t.pieces[-1][-1][1]), i) for i, t in enumerate(thinned) if t.pieces)
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + _APART if places else y))
    below = _HEIGHT - 4 + _APART
    for n in reversed(range(len(places))):
        places[n] = below = min(places[n], below - _APART)
    return "".join(
        element("text", escaped(_rank(drawn[i])), x=_WIDTH - _RIGHT + 8, y=at + 4, class_=f"end s{i}")
        for at, (_, i) in zip(places, ends, strict=True)
    )
