"""Draws measured values beside their thresholds, each on a scale of its own that begins at zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Gauge, ThresholdBoard
from forensics.report.svg import clip, element, escaped, shape, text_width
from forensics.report.text import number, plural

_WIDTH = 1100.0
_TRACK, _TRACK_END = 430.0, 830.0
_ROW, _HEAD = 36.0, 30.0
_FONT_PX = 11.5
_LEAST_TIMES = 0.01


def board_exhibit(view: ThresholdBoard, index: int = 0) -> Exhibit | None:
    """None where nothing was measured."""
    if not view.gauges:
        return None
    rows = [[g.subject, g.quantity, number(g.value), _marks(g), g.how, g.why] for g in view.gauges]
    return Exhibit(
        id=f"board-{index}",
        title="Measured against thresholds",
        lead=_lead(view.gauges),
        svg=_svg(view.gauges, index),
        twin=twin(["Of", "Quantity", "Measured", "Held against", "Of what", "Why this threshold"], rows, (2,)),
        notes=[f"{plural(view.n_hidden, 'more value')} not drawn."] if view.n_hidden else [],
    )


def _lead(gauges: Sequence[Gauge]) -> str:
    beyond = [g for g in gauges if _standing(g) == "bad"]
    said = "What rules measured, beside the threshold that they hold it against; each bar has its own scale from zero"
    if beyond:
        worst = "; ".join(f"{g.quantity} {number(g.value)}" for g in beyond[:3])
        said += f". Beyond the bad limit: {worst}"
    return said + "."


def _marks(gauge: Gauge) -> str:
    return ", ".join(f"{label} {number(value)}" for label, value in gauge.marks)


def _standing(gauge: Gauge) -> str:
    """healthy | between | bad against two limits; "" against the threshold of a rule."""
    limits = dict(gauge.marks)
    if "healthy" not in limits or "bad" not in limits:
        return ""
    sign = 1 if limits["bad"] > limits["healthy"] else -1
    if sign * gauge.value >= sign * limits["bad"]:
        return "bad"
    return "healthy" if sign * gauge.value <= sign * limits["healthy"] else "between"


def _svg(gauges: Sequence[Gauge], index: int) -> str:
    parts, y = [], 0.0
    for subject, members in groupby(gauges, key=lambda gauge: gauge.subject):
        parts.append(element("text", escaped(clip(subject, 1000, 12.5)), x=0, y=y + 20, class_="label"))
        y += _HEAD
        for gauge in members:
            parts.append(element("g", "".join(_row(gauge, y))))
            y += _ROW
        y += 8
    ident = f"board-{index}-title"
    return element(
        "svg",
        element("title", "Measured values against thresholds", id=ident) + "".join(parts),
        class_="plot board",
        viewBox=f"0 0 {_WIDTH:g} {y:g}",
        role="img",
        aria_labelledby=ident,
    )


def _row(gauge: Gauge, y: float) -> Iterator[str]:
    most = max(abs(gauge.value), *(abs(value) for _, value in gauge.marks)) * 1.12 or 1.0

    def x(value: float) -> float:
        return _TRACK + max(value, 0.0) / most * (_TRACK_END - _TRACK)

    standing = _standing(gauge)
    told = f"{gauge.quantity}: {number(gauge.value)}, {_marks(gauge)}" + (f" ({gauge.how})" if gauge.how else "")
    yield element("title", escaped(told, 300))
    room = _TRACK - 20
    yield element("text", escaped(clip(gauge.quantity, room, _FONT_PX)), x=0, y=y + 12, class_="lane-name")
    yield element("text", escaped(clip(gauge.how, room, _FONT_PX)), x=0, y=y + 26, class_="sub")
    yield element("rect", x=_TRACK, y=y + 5, width=_TRACK_END - _TRACK, height=12, class_="track")
    yield element(
        "rect", x=_TRACK, y=y + 5, width=max(x(gauge.value) - _TRACK, 1), height=12, class_=f"measure {standing}"
    )
    if standing == "bad":
        yield shape("diamond", x(gauge.value), y + 11, 6, "mark critical")
    free_from = 0.0
    for label, value in sorted(gauge.marks, key=lambda mark: mark[1]):
        at = x(value)
        yield element("path", d=f"M{at:.1f} {y + 1:g}V{y + 21:g}", class_="limit-mark")
        shown = f"{label} {number(value)}"
        half = text_width(shown, 11) / 2 + 4
        middle = max(min(at, _TRACK_END - half), _TRACK + half, free_from + half)
        free_from = middle + half
        yield element("text", escaped(shown), x=middle, y=y + 31, text_anchor="middle", class_="tick")
    yield element("text", escaped(_beside(gauge)), x=_TRACK_END + 16, y=y + 15, class_="label")


def _beside(gauge: Gauge) -> str:
    standing = _standing(gauge)
    if standing:
        said = {"bad": "beyond the bad limit", "healthy": "healthy", "between": "between healthy and bad"}[standing]
        return f"{number(gauge.value)}: {said}"
    limit = gauge.marks[0][1]
    times = gauge.value / limit if limit > 0 else 0.0
    if 0.95 < times < 1.05:
        return f"{number(gauge.value)}, {'at' if gauge.value == limit else 'about'} the threshold"
    # Beyond these bounds a factor says less than the two numbers.
    told = f", {number(float(f'{times:.2g}'))} times the threshold" if _LEAST_TIMES <= times <= 1 / _LEAST_TIMES else ""
    return f"{number(gauge.value)}{told}"
