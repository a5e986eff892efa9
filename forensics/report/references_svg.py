"""Draws who keeps tensors alive: from the tensors on the left, holder by holder, to what lives by itself."""

from __future__ import annotations

from collections.abc import Sequence

from forensics.report.exhibit import Exhibit, twin
from forensics.report.pictures import Keeper, ReferenceChains
from forensics.report.svg import element, escaped, wrap
from forensics.report.text import plural, size

_WIDTH, _LEFT = 1100.0, 210.0
_ROW, _BOX_HEIGHT = 74.0, 52.0
_GAP = 26.0
_FONT_PX = 11.5
MAX_BOXES = 5  # of one chain; what lies between the first and the last two is counted


def references_exhibit(view: ReferenceChains, index: int = 0) -> Exhibit | None:
    """None without a chain."""
    if not view.keepers:
        return None
    rows = [[size(k.n_bytes), f"{k.n_tensors:,}", k.example, " ← ".join(k.links)] for k in view.keepers]
    most = view.keepers[0]
    held = f"{plural(most.n_tensors, 'tensor')} of {size(most.n_bytes)} together"
    hidden = f"{plural(view.n_hidden, 'more way')} not drawn." if view.n_hidden else ""
    return Exhibit(
        id=f"references-{index}",
        title="Who keeps the largest tensors alive" + (f", {view.process}" if view.process else ""),
        lead=f"The most is kept by {most.links[-1]}: {held}. The recorder looked at the largest tensors only.",
        svg=_svg(view.keepers, index),
        twin=twin(["Bytes", "Tensors", "Like", "From the tensor to what keeps it"], rows, (0, 1)),
        notes=[hidden] if hidden else [],
        about=("memory-",),
    )


def _svg(keepers: Sequence[Keeper], index: int) -> str:
    parts = []
    for i, keeper in enumerate(keepers):
        y = i * _ROW
        parts.append(element("text", escaped(size(keeper.n_bytes)), x=0, y=y + 24, class_="label"))
        said = f"{plural(keeper.n_tensors, 'tensor')} {keeper.example}"
        for n, line in enumerate(wrap(said, _LEFT - 40, _FONT_PX, 2)):
            parts.append(element("text", escaped(line), x=0, y=y + 39 + 13 * n, class_="sub"))
        parts += _chain(_shown(keeper.links), y)
    ident = f"references-{index}-title"
    return element(
        "svg",
        element("title", "Holders of the largest tensors", id=ident) + "".join(parts),
        class_="plot references",
        viewBox=f"0 0 {_WIDTH:g} {len(keepers) * _ROW + 4:g}",
        role="img",
        aria_labelledby=ident,
    )


def _shown(links: Sequence[str]) -> list[str]:
    if len(links) <= MAX_BOXES:
        return list(links)
    return [*links[:2], f"{len(links) - 4:,} more", *links[-2:]]


def _chain(links: Sequence[str], y: float) -> list[str]:
    width = min((_WIDTH - _LEFT - _GAP * len(links)) / len(links), 270.0)
    middle, parts = y + 6 + _BOX_HEIGHT / 2, []
    for n, link in enumerate(links):
        x = _LEFT + n * (width + _GAP)
        parts.append(element("path", d=f"M{x - _GAP:.1f} {middle:.1f}H{x - 1:.1f}", class_="edge"))
        role = "birth" if n == len(links) - 1 else ""
        box = element("rect", x=x, y=y + 6, width=width, height=_BOX_HEIGHT, rx=5, class_=f"op-box {role}".strip())
        parts.append(element("g", element("title", escaped(link, 300)) + box))
        lines = wrap(link, width - 16, _FONT_PX, 3)
        top = middle + 4 - 7 * (len(lines) - 1)
        for i, line in enumerate(lines):
            parts.append(element("text", escaped(line), x=x + 8, y=top + 14 * i, class_="lane-name"))
    return parts
