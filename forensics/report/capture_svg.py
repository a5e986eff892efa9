"""Draws the capture of a CUDA graph: one lane a thread and stream, the calls in it, and the one that broke it."""

from __future__ import annotations

from forensics.finding import format_duration
from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Call, CaptureWindow
from forensics.report.scale import Scale, fit
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE = 1100.0, 150.0, 20.0, 34.0, 30.0
_FONT_PX = 11.5
MAX_LANES = 16
ABOUT = ("capture-",)


def capture_exhibit(view: CaptureWindow, index: int = 0) -> Exhibit | None:
    """None where no call was recorded."""
    if not view.calls:
        return None
    telling = [c for c in view.calls if c.kind != "call"] + [c for c in view.calls if c.kind == "call" and c.code]
    shown = sorted({c.row: c for c in telling}.values(), key=lambda c: (c.start_ns, c.row)) or list(view.calls)
    rows = [
        [
            f"row {c.row}",
            f"+{format_duration(c.start_ns)}",
            c.lane,
            c.name,
            "" if c.code is None else str(c.code),
            _word(c),
        ]
        for c in shown
    ]
    notes = []
    if view.n_calls > len(view.calls):
        notes.append(f"The first {len(view.calls):,} of {view.n_calls:,} calls are drawn.")
    whose = f" of {view.process}" if view.process else ""
    return Exhibit(
        id=f"capture-{index}",
        title=f"Capture of a CUDA graph{whose}",
        lead=_lead(view),
        svg=_svg(view, index),
        twin=twin(["Row", "Time", "Where", "Call", "Result", "What it is"], rows, (1, 4), len(view.calls) - len(shown)),
        notes=notes,
        about=ABOUT,
    )


def _word(call: Call) -> str:
    return {"begin": "begins the capture", "end": "ends it", "offence": "breaks it", "work": "on the device"}.get(
        call.kind, ""
    )


def _lead(view: CaptureWindow) -> str:
    length = f" after {format_duration(view.length_ns)}" if view.length_ns is not None else ", its end is not on record"
    offender = next((c for c in view.calls if c.kind == "offence"), None)
    if offender:
        where = f", below {view.place}" if view.place else ""
        said = f" {view.offence[:1].upper()}{view.offence[1:]}." if view.offence else ""
        when = f"{format_duration(offender.start_ns)} after its begin"
        return f"{offender.name} on {offender.lane} broke the capture {when}{where}.{said}"
    return f"The capture {'became a graph' if view.became_graph else 'gave no graph'}{length}; no call in it broke it."


def _svg(view: CaptureWindow, index: int) -> str:
    lanes = sorted({c.lane for c in view.calls}, key=lambda lane: (not lane.startswith("thread"), lane))
    offender = next((c for c in view.calls if c.kind == "offence"), None)
    if offender and lanes.index(offender.lane) >= MAX_LANES:
        lanes.insert(0, lanes.pop(lanes.index(offender.lane)))
    lanes = lanes[:MAX_LANES]
    first = min(0, *(c.start_ns for c in view.calls)) if len(view.calls) > 1 else 0
    last = max([c.start_ns + c.dur_ns for c in view.calls] + [view.length_ns or 0])
    scale = fit(first, max(last, first + 1), _LEFT, _WIDTH - _RIGHT, pad=0.02)
    height = _TOP + _LANE * len(lanes) + 24
    parts = [_axis(scale, height), _window(view, scale, height)]
    for i, lane in enumerate(lanes):
        y = _TOP + _LANE * (i + 0.5)
        parts.append(
            element(
                "text",
                escaped(clip(lane, _LEFT - 16, _FONT_PX)),
                x=_LEFT - 10,
                y=y + 4,
                text_anchor="end",
                class_="lane-name",
            )
        )
        parts.append(element("path", d=f"M{_LEFT:g} {coordinate(y)}H{_WIDTH - _RIGHT:g}", class_="grid"))
        parts += [_call(call, y, scale) for call in view.calls if call.lane == lane]
    ident = f"capture-{index}-title"
    return element(
        "svg",
        element("title", "Calls during the capture, by thread and stream", id=ident) + "".join(parts),
        class_="plot capture",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=ident,
    )


def _axis(scale: Scale, height: float) -> str:
    base = height - 18
    span = scale.high - scale.low
    unit, factor = ("s", 1e9) if span > 2e9 else ("ms", 1e6) if span > 2e6 else ("µs", 1e3)
    shown = Scale(scale.low / factor, scale.high / factor, scale.start, scale.end)
    parts = [element("path", d=f"M{_LEFT:g} {coordinate(base)}H{_WIDTH - _RIGHT:g}", class_="axis")]
    for value, label in shown.ticks(8):
        parts.append(
            element(
                "text", escaped(f"{label} {unit}"), x=shown(value), y=base + 14, text_anchor="middle", class_="tick"
            )
        )
    return "".join(parts)


def _window(view: CaptureWindow, scale: Scale, height: float) -> str:
    start, end = scale(0), scale(view.length_ns) if view.length_ns is not None else _WIDTH - _RIGHT
    label = "capture" if view.length_ns is not None else "capture, end not on record"
    return element(
        "rect", x=start, y=_TOP - 12, width=max(end - start, 2), height=height - _TOP - 4, class_="window"
    ) + element("text", escaped(label), x=start + 4, y=_TOP - 17, class_="tick")


def _call(call: Call, y: float, scale: Scale) -> str:
    x, width = scale(call.start_ns), max(scale(call.start_ns + call.dur_ns) - scale(call.start_ns), 1.2)
    result = "" if call.code is None else f", result {call.code}"
    title = f"row {call.row}: {call.name}, {format_duration(call.dur_ns)}{result}"
    parts = [
        element("title", escaped(title, 300)),
        element("rect", x=x, y=y - 7, width=width, height=14, class_=f"call {call.kind}"),
    ]
    if call.kind in {"offence", "begin", "end"}:
        mark = {"offence": "cross", "begin": "triangle", "end": "square"}[call.kind]
        parts.append(shape(mark, x + width / 2, y - 12, 5.5, "lost" if call.kind == "offence" else "edge-mark"))
    if call.kind == "offence":
        label = clip(call.name, 320, _FONT_PX, bold=True)
        left = x + text_width(label, _FONT_PX, bold=True) > _WIDTH - _RIGHT - 10
        parts.append(
            element(
                "text",
                escaped(label),
                x=x - 9 if left else x + width / 2 + 9,
                y=y - 9,
                text_anchor="end" if left else "start",
                class_="note lost-note",
            )
        )
    return element("g", "".join(parts))
