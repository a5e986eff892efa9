"""Draws the segments of a device to one scale: what is live, what is free, and which blocks keep the free apart."""

from __future__ import annotations

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Block, Segment, SegmentMap
from forensics.report.svg import clip, coordinate, element, escaped, shape, text_width
from forensics.report.text import size

_WIDTH, _LEFT, _RIGHT = 1100.0, 150.0, 96.0
_ROW, _BAR, _TOP = 17.0, 11.0, 58.0
_FONT_PX = 11.5
_LEAST_PX = 0.7  # narrower neighbours of one state are drawn as one
_MAX_PINS = 80  # marked, of a map: those that keep most apart
_STATES = {"active_allocated": "live", "active_pending_free": "awaiting", "inactive": "free"}
_KEY = {
    "live": "live",
    "awaiting": "freed, waits for a stream",
    "free": "free",
    "pinning": "live, and parts free memory",
}
ABOUT = ("memory-fragmentation", "memory-cache-hoard", "memory-private-pool", "memory-whatif")


def segments_exhibit(view: SegmentMap, index: int = 0) -> Exhibit | None:
    """None without segments."""
    if not view.segments:
        return None
    whose = f" of {view.process}" if view.process else ""
    pins = sorted(
        ((s, b) for s in view.segments for b in s.blocks if b.joined_bytes),
        key=lambda p: (-p[1].joined_bytes, p[1].row),
    )
    rows = [
        [f"row {b.row}", size(b.size_bytes), size(b.joined_bytes), f"{size(s.total_bytes)}, {s.size_class}", b.place]
        for s, b in pins
    ]
    notes = []
    if view.n_hidden:
        notes.append(f"{view.n_hidden:,} smaller segments are not drawn.")
    if not rows:
        rows = [
            [
                f"segment {s.row}",
                size(sum(b.size_bytes for b in s.blocks if b.state != "inactive")),
                _longest(s),
                size(s.total_bytes),
                "",
            ]
            for s in view.segments
        ]
    headers = ["Pinning block", "Its size", "Free bytes it parts", "Segment", "Allocated in"]
    if not pins:
        headers = ["Segment", "Live", "Longest free run", "Size", ""]
    return Exhibit(
        id=f"segments-{index}",
        title=f"Segments{whose}, device {view.device}",
        lead=_lead(view, bool(pins)),
        svg=_svg(view, index),
        twin=twin(headers, rows, (1, 2)),
        notes=notes,
        about=ABOUT,
    )


def _longest(segment: Segment) -> str:
    return size(max((b.size_bytes for b in segment.blocks if b.state == "inactive"), default=0))


def _lead(view: SegmentMap, pinned: bool) -> str:
    free, longest = size(view.free_bytes), size(view.longest_free_bytes)
    said = f"{free} of {size(view.reserved_bytes)} are free, the longest run {longest}"
    if view.requested_bytes is not None:
        fits = view.longest_free_bytes >= view.requested_bytes
        word = "and a run of that length is free, in some pool or stream" if fits else "longer than any free run"
        said += f"; {size(view.requested_bytes)} were asked for, {word}"
    if pinned and view.pinned_by and view.unlocked_bytes:
        said += f". Blocks of {view.pinned_by} keep {size(view.unlocked_bytes)} of it apart"
    return said + "."


def _svg(view: SegmentMap, index: int) -> str:
    longest = max(s.total_bytes for s in view.segments)
    widest = max(longest, view.requested_bytes or 0)
    scale = (_WIDTH - _LEFT - _RIGHT) / widest
    parts, y, group = [_key(view), _request(view, scale)], _TOP, ""
    joined = sorted((b.joined_bytes for s in view.segments for b in s.blocks if b.joined_bytes), reverse=True)
    least_pin = joined[:_MAX_PINS][-1] if joined else 0
    for segment in view.segments:
        name = _group(segment)
        if name != group:
            y += 8 if group else 0
            group = name
            parts.append(element("text", escaped(clip(name, _LEFT - 12, _FONT_PX)), x=0, y=y + 9, class_="lane-name"))
        parts.append(_bar(segment, y, scale, least_pin))
        label = size(segment.total_bytes)
        parts.append(element("text", escaped(label), x=_LEFT + segment.total_bytes * scale + 8, y=y + 9, class_="tick"))
        y += _ROW
    ident = f"segments-{index}-title"
    return element(
        "svg",
        element("title", escaped(f"Segments of device {view.device}"), id=ident) + "".join(parts),
        class_="plot segments",
        viewBox=f"0 0 {_WIDTH:g} {coordinate(y + 8)}",
        role="img",
        aria_labelledby=ident,
    )


def _group(segment: Segment) -> str:
    pool = "" if segment.pool == "0.0" else f", pool {segment.pool}"
    stream = f", stream {segment.stream}" if segment.stream else ""
    return f"{segment.size_class}{pool}{stream}" + (", expandable" if segment.expandable else "")


def _bar(segment: Segment, y: float, scale: float, least_pin: int) -> str:
    """`least_pin`: bytes that a block must keep apart to be marked; its colour it has anyway."""
    parts = [element("rect", x=_LEFT, y=y, width=segment.total_bytes * scale, height=_BAR, class_="segment")]
    for start, end, state, blocks in _runs(segment, scale):
        title = _title(blocks, state, end - start)
        rect = element(
            "rect",
            x=_LEFT + start * scale,
            y=y,
            width=max((end - start) * scale - (0.4 if state != "free" else 0), 0.4),
            height=_BAR,
            class_=f"block {state}",
        )
        pin = "".join(
            shape("diamond", _LEFT + (b.offset_bytes + b.size_bytes / 2) * scale, y + _BAR / 2, 4.6, "pin")
            for b in blocks
            if b.joined_bytes and b.joined_bytes >= least_pin
        )
        parts.append(element("g", element("title", escaped(title, 300)) + rect + pin))
    return "".join(parts)


def _runs(segment: Segment, scale: float) -> list[tuple[int, int, str, list[Block]]]:
    """Blocks as (start, end, state, blocks), where neighbours of one state too narrow to be told apart are joined."""
    runs: list[tuple[int, int, str, list[Block]]] = []
    for block in segment.blocks:
        state = _state(block)
        start, end = block.offset_bytes, block.offset_bytes + block.size_bytes
        if runs and runs[-1][2] == state and runs[-1][1] == start and (end - start) * scale < _LEAST_PX:
            first, _, _, members = runs[-1]
            runs[-1] = (first, end, state, [*members, block])
        else:
            runs.append((start, end, state, [block]))
    return runs


def _state(block: Block) -> str:
    return "pinning" if block.joined_bytes else _STATES.get(block.state, "live")


def _title(blocks: list[Block], state: str, n_bytes: int) -> str:
    which = f"row {blocks[0].row}" if len(blocks) == 1 else f"{len(blocks)} blocks from row {blocks[0].row}"
    said = f"{which}: {size(n_bytes)} {_KEY[state]}"
    if blocks[0].joined_bytes:
        said += f"; freeing it joins {size(blocks[0].joined_bytes)}"
    return said + (f"; {blocks[0].place}" if blocks[0].place else "")


def _request(view: SegmentMap, scale: float) -> str:
    if view.requested_bytes is None:
        return ""
    y, label = 32.0, clip(f"{size(view.requested_bytes)} asked for", _LEFT - 8, _FONT_PX, bold=True)
    return element("text", escaped(label), x=0, y=y + 9, class_="lane-name lost-note") + element(
        "rect", x=_LEFT, y=y, width=view.requested_bytes * scale, height=_BAR, class_="request"
    )


def _key(view: SegmentMap) -> str:
    seen = {_state(block) for segment in view.segments for block in segment.blocks}
    parts, at = [], _LEFT
    for state, label in _KEY.items():
        if state not in seen:
            continue
        parts.append(element("rect", x=at, y=6, width=18, height=_BAR, class_=f"block {state}"))
        if state == "pinning":
            parts.append(shape("diamond", at + 9, 6 + _BAR / 2, 4.6, "pin"))
        parts.append(element("text", escaped(label), x=at + 24, y=15, class_="tick"))
        at += 44 + text_width(label, _FONT_PX)
    return "".join(parts)
