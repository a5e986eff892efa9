"""Draws where the modules of a model lay: a lane a device, modules in order, hops, misplacements."""

from __future__ import annotations

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import DeviceMap, Stretch
from forensics.report.svg import clip, coordinate, element, escaped, shape
from forensics.report.text import plural, size

_WIDTH, _LEFT, _RIGHT, _TOP, _LANE, _BAR, _FONT_PX = 1100.0, 92.0, 20.0, 8.0, 40.0, 16.0, 11.5
_LEAST_PX = 6.0
ABOUT = ("distributed-device-map", "environment-device-mismatch", "checkpoint-mismatch", "memory-rank-skew")


def devices_exhibit(view: DeviceMap, index: int = 0) -> Exhibit | None:
    """None without tensors."""
    if not view.stretches:
        return None
    whose = f", {view.process}" if view.process else ""
    rows = [
        [
            s.first,
            s.last,
            f"{s.n_tensors:,}",
            s.device,
            s.declared,
            "" if s.n_bytes is None else size(s.n_bytes),
            _word(s),
        ]
        for s in view.stretches
    ]
    return Exhibit(
        id=f"devices-{index}",
        title=f"Where the model lies{whose}",
        lead=_lead(view),
        svg=_svg(view, index),
        twin=twin(["From", "To", "Tensors", "Device", "Declared", "Bytes", "What it means"], rows, (2, 5)),
        notes=[f"{plural(view.n_hidden, 'more stretch', 'more stretches')} not drawn."] if view.n_hidden else [],
        about=ABOUT,
    )


def _word(stretch: Stretch) -> str:
    return "not as declared" if stretch.misplaced else "as declared" if stretch.declared else ""


def _lead(view: DeviceMap) -> str:
    devices = {s.device for s in view.stretches}
    hops = sum(a.device != b.device for a, b in zip(view.stretches, view.stretches[1:], strict=False))
    said = f"{plural(sum(s.n_tensors for s in view.stretches), 'tensor')} on {plural(len(devices), 'device')}"
    said += f", {plural(hops, 'change')} of device in the order of the modules"
    bad = [s for s in view.stretches if s.misplaced]
    if bad:
        more = sum(s.n_tensors for s in bad) - 1
        said += f"; {bad[0].first} lies on {bad[0].device}, declared {bad[0].declared}"
        said += f", and {plural(more, 'more tensor')} elsewhere than declared" if more else ""
    return f"{said}."


def _svg(view: DeviceMap, index: int) -> str:
    lanes = sorted({s.device for s in view.stretches})
    total = sum(s.n_tensors for s in view.stretches)
    room = _WIDTH - _LEFT - _RIGHT
    widths = [max(s.n_tensors / total * room, _LEAST_PX) for s in view.stretches]
    scale = room / sum(widths)
    parts = []
    for device in lanes:
        y = _middle(lanes, device)
        name = clip(device, _LEFT - 14, _FONT_PX)
        parts.append(element("text", escaped(name), x=_LEFT - 12, y=y + 4, text_anchor="end", class_="lane-name"))
        parts.append(element("path", d=f"M{_LEFT:g} {coordinate(y)}H{_WIDTH - _RIGHT:g}", class_="grid"))
    x, before = _LEFT, None
    for stretch, wide in zip(view.stretches, widths, strict=True):
        y, width = _middle(lanes, stretch.device), wide * scale
        if before is not None and before != y:
            parts.append(element("path", d=f"M{coordinate(x)} {coordinate(before)}V{coordinate(y)}", class_="hop"))
        parts.append(_bar(stretch, x, y, width))
        x, before = x + width, y
    height = _TOP + _LANE * len(lanes) + 22
    order = element(
        "text", "modules in their order →", x=_WIDTH - _RIGHT, y=height - 6, text_anchor="end", class_="tick"
    )
    ident = f"devices-{index}-title"
    return element(
        "svg",
        element("title", "Modules by device", id=ident) + "".join(parts) + order,
        class_="plot devices",
        viewBox=f"0 0 {_WIDTH:g} {coordinate(height)}",
        role="img",
        aria_labelledby=ident,
    )


def _middle(lanes: list[str], device: str) -> float:
    return _TOP + _LANE * (lanes.index(device) + 0.6)


def _bar(stretch: Stretch, x: float, y: float, width: float) -> str:
    to = f" to {stretch.last}" if stretch.last != stretch.first else ""
    wanted = f", declared {stretch.declared}" if stretch.declared else ""
    title = f"{stretch.first}{to}: {plural(stretch.n_tensors, 'tensor')} on {stretch.device}{wanted}"
    kind = "stretch misplaced" if stretch.misplaced else "stretch"
    parts = [
        element("title", escaped(title, 400)),
        element("rect", x=x, y=y - _BAR / 2, width=max(width - 1, 1), height=_BAR, class_=kind),
    ]
    if stretch.misplaced:
        parts.append(element("rect", x=x - 2, y=y - _BAR / 2 - 3, width=width + 3, height=_BAR + 6, class_="declared"))
        parts.append(shape("cross", x + width / 2, y, 5, "pin"))
    label = clip(stretch.first, width - 4, _FONT_PX)
    if width > 60:
        parts.append(element("text", escaped(label), x=x + 2, y=y - _BAR / 2 - 6, class_="tick"))
    return element("g", "".join(parts))
