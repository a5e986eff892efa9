"""Draws live and reserved memory over allocator events: steps, failed requests, what could be had, what would fit."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.report.byte_axis import byte_ticks
from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Failure, Level, MemoryTimeline
from forensics.report.scale import Scale, fit
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width
from forensics.report.text import size

_WIDTH, _HEIGHT = 1100.0, 300.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 16.0, 30.0, 40.0
_FONT_PX = 11.5
ABOUT = ("memory-", "environment-config")


def memory_exhibit(view: MemoryTimeline, index: int = 0) -> Exhibit | None:
    """None without events to draw."""
    if len(view.points) < 2:
        return None
    whose = f" of {view.process}" if view.process else ""
    notes = []
    if view.n_events > len(view.points):
        notes.append(
            f"Drawn from {view.n_events:,} events by the lowest and highest of each of about"
            f" {len(view.points) // 4:,} stretches, {len(view.points):,} points in all: no peak is lost."
        )
    rows = [[owner.category, owner.place, f"{owner.n_blocks:,}", size(owner.n_bytes)] for owner in view.owners]
    return Exhibit(
        id=f"memory-{index}",
        title=f"Memory{whose}, device {view.device}",
        lead=_lead(view),
        svg=_svg(view, index),
        twin=twin(
            [f"Live at the {view.owned_at or 'end'}", "Allocated in", "Blocks", "Bytes"],
            rows or _plain_rows(view),
            (2, 3),
        ),
        notes=notes,
        about=ABOUT,
    )


def _lead(view: MemoryTimeline) -> str:
    live, reserved = max(p[1] for p in view.points), max(p[2] for p in view.points)
    said = f"At its peak {size(live)} were live and {size(reserved)} reserved"
    if not view.failures:
        return f"{said}; no allocation failed in this record."
    last = view.failures[-1]
    _, at_live, at_reserved = next(p for p in reversed(view.points) if p[0] <= last.event)
    n = len(view.failures)
    which = "An allocation failed: it" if n == 1 else f"{n:,} allocations failed; the last"
    return (
        f"{which} asked for {size(last.requested_bytes)} at event"
        f" {last.event:,}, when {size(at_live)} were live and {size(at_reserved - at_live)} more lay in the cache."
    )


def _plain_rows(view: MemoryTimeline) -> list[list[str]]:
    first, last = view.points[0], view.points[-1]
    peak = max(view.points, key=lambda p: p[1])
    return [[f"event {p[0]:,}", "", "", size(p[1])] for p in (first, peak, last)]


def _svg(view: MemoryTimeline, index: int) -> str:
    x = fit(view.points[0][0], view.points[-1][0], _LEFT, _WIDTH - _RIGHT)
    tallest = [max(p[1], p[2]) for p in view.points] + [level.n_bytes for level in view.levels]
    tallest += [_wanted(view, failure.event, failure.requested_bytes) for failure in view.failures]
    y = Scale(0.0, max(max(tallest) * 1.06, 1.0), _HEIGHT - _BOTTOM, _TOP)
    ident = f"memory-{index}-title"
    height = _HEIGHT + 18 * -(-len(view.levels) // 2)
    body = [
        _grid(x, y),
        _area([(p[0], p[2]) for p in view.points], x, y, "reserved"),
        _area([(p[0], p[1]) for p in view.points], x, y, "live"),
        _line([(p[0], p[2]) for p in view.points], x, y, "reserved"),
        _line([(p[0], p[1]) for p in view.points], x, y, "live"),
        _step_marks(view, x, y),
        _levels(view.levels[:8], y),
        _failures(view, x, y),
        _key(),
    ]
    return element(
        "svg",
        element("title", escaped(f"Memory of device {view.device} by allocator event"), id=ident) + "".join(body),
        class_="plot series memory",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=ident,
        data_x=f"{x.low!r} {x.high!r} {_LEFT:g} {_WIDTH - _RIGHT:g}",
        data_y=f"{y.low!r} {y.high!r} {_HEIGHT - _BOTTOM:g} {_TOP:g}",
        data_axis="event",
        data_unit="bytes",
    )


def _wanted(view: MemoryTimeline, event: int, requested: int) -> int:
    before = [p for p in view.points if p[0] <= event] or [view.points[0]]
    return before[-1][2] + requested


def _grid(x: Scale, y: Scale) -> str:
    parts = []
    for value, label in byte_ticks(y.high):
        at = coordinate(y(value))
        parts.append(element("path", d=f"M{_LEFT:g} {at}H{_WIDTH - _RIGHT:g}", class_="grid" if value else "axis"))
        parts.append(element("text", escaped(label), x=_LEFT - 8, y=y(value) + 4, text_anchor="end", class_="tick"))
    base = _HEIGHT - _BOTTOM
    for value, label in x.ticks(8):
        parts.append(element("text", escaped(label), x=x(value), y=base + 16, text_anchor="middle", class_="tick"))
    parts.append(
        element(
            "text",
            "allocator event (row of the snapshot)",
            x=_WIDTH - _RIGHT,
            y=base + 32,
            text_anchor="end",
            class_="tick",
        )
    )
    return "".join(parts)


def _stairs(points: Sequence[tuple[int, int]], x: Scale, y: Scale) -> str:
    """Memory changes at an event and stays until the next."""
    at_x, at_y = coordinate(x(points[0][0])), coordinate(y(points[0][1]))
    parts = [f"M{at_x} {at_y}"]
    for event, value in points[1:]:
        next_x, next_y = coordinate(x(event)), coordinate(y(value))
        if next_x != at_x:
            parts.append(f"H{next_x}")
        if next_y != at_y:
            parts.append(f"V{next_y}")
        at_x, at_y = next_x, next_y
    return "".join(parts)


def _area(points: Sequence[tuple[int, int]], x: Scale, y: Scale, name: str) -> str:
    base = coordinate(y(0))
    closed = f"{_stairs(points, x, y)}V{base}H{coordinate(x(points[0][0]))}Z"
    return element("path", d=closed, class_=f"area {name}")


def _line(points: Sequence[tuple[int, int]], x: Scale, y: Scale, name: str) -> str:
    return element("path", d=_stairs(points, x, y), class_=f"stairs {name}", data_rank=name)


def _step_marks(view: MemoryTimeline, x: Scale, y: Scale) -> str:
    """Where steps begin; one whose number would lie on another's, or on what is said of the failure, has none."""
    parts, free_from = [], _LEFT
    taken = _failure_span(view, x, y)
    for event, step in view.steps:
        at = x(event)
        parts.append(element("path", d=f"M{coordinate(at)} {_TOP:g}V{_HEIGHT - _BOTTOM:g}", class_="at"))
        label = f"{step:,}" if parts[1:] else f"step {step:,}"
        end = at + 8 + text_width(label, _FONT_PX)
        if at >= free_from and end < _WIDTH - _RIGHT and not (at < taken[1] and taken[0] < end):
            parts.append(element("text", escaped(label), x=at + 4, y=_TOP + 10, class_="note at-note"))
            free_from = at + text_width(label, _FONT_PX) + 14
    return "".join(parts)


def _levels(levels: Sequence[Level], y: Scale) -> str:
    """Lines across, lettered; the letters are explained below the drawing, where they cannot cross a line."""
    parts = []
    for i, level in enumerate(levels):
        at, letter, x = coordinate(y(level.n_bytes)), "ABCDEFGH"[i], _LEFT + 10 + 22 * i
        parts.append(element("path", d=f"M{_LEFT:g} {at}H{_WIDTH - _RIGHT:g}", class_=f"level {level.kind}"))
        mark = element("circle", cx=x, cy=y(level.n_bytes), r=8, class_=f"letter {level.kind}")
        text = element("text", letter, x=x, y=y(level.n_bytes) + 4, text_anchor="middle", class_=f"note {level.kind}")
        label = f"{letter}: {level.label} ({size(level.n_bytes)})"
        below, left = _HEIGHT + 12 + 18 * (i // 2), _LEFT + (i % 2) * (_WIDTH - _LEFT) / 2
        parts += [mark, text, element("path", d=f"M{left:g} {below - 4:g}h22", class_=f"level {level.kind}")]
        said = clip(label, (_WIDTH - _LEFT) / 2 - 40, _FONT_PX)
        parts.append(element("text", escaped(said), x=left + 28, y=below, class_=f"note {level.kind}"))
    return "".join(parts)


def _failures(view: MemoryTimeline, x: Scale, y: Scale) -> str:
    parts = []
    for failure in view.failures:
        at = x(failure.event)
        top, reserved = (
            y(_wanted(view, failure.event, failure.requested_bytes)),
            y(_wanted(view, failure.event, failure.requested_bytes) - failure.requested_bytes),
        )
        where = f" in {failure.place}" if failure.place else ""
        title = f"event {failure.event:,}: a request for {size(failure.requested_bytes)} failed{where}"
        parts.append(
            element(
                "g",
                element("title", escaped(title, 400))
                + element("path", d=f"M{coordinate(at)} {coordinate(reserved)}V{coordinate(top)}", class_="lost")
                + shape("cross", at, top, 6, "lost"),
            )
        )
    if view.failures:
        last = view.failures[-1]
        at, top = x(last.event), y(_wanted(view, last.event, last.requested_bytes))
        anchor, at_text = ("end", at - 10) if at > _WIDTH / 2 else ("start", at + 10)
        parts.append(
            element("text", escaped(_failure(last)), x=at_text, y=top + 4, text_anchor=anchor, class_="note lost-note")
        )
    return "".join(parts)


def _failure(last: Failure) -> str:
    return f"asked for {size(last.requested_bytes)}: failed"


def _failure_span(view: MemoryTimeline, x: Scale, y: Scale) -> tuple[float, float]:
    """From where to where the last failure is told in the line that the numbers of steps stand in; else nowhere."""
    if not view.failures:
        return 0.0, 0.0
    last = view.failures[-1]
    at, width = x(last.event), text_width(_failure(last), _FONT_PX, bold=True) + 14
    if y(_wanted(view, last.event, last.requested_bytes)) > _TOP + 22:
        return 0.0, 0.0
    return (at - width, at) if at > _WIDTH / 2 else (at, at + width)


def _key() -> str:
    parts, at = [], _LEFT
    for name, label in (("live", "live: held by the job"), ("reserved", "reserved: obtained from the driver")):
        parts.append(element("rect", x=at, y=8, width=18, height=10, class_=f"area {name}"))
        parts.append(element("path", d=f"M{at:g} 8H{at + 18:g}", class_=f"stairs {name}"))
        parts.append(element("text", escaped(label), x=at + 24, y=17, class_="tick"))
        at += 40 + text_width(label, _FONT_PX)
    return "".join(parts)
