"""Writes SVG as text: escaped elements, and texts fitted by estimated widths, since no font is at hand.

Colours and fonts come from the page's style sheet by class, so that drawings follow dark mode and print; the
content policy forbids style attributes.
"""

from __future__ import annotations

import html
import unicodedata

from forensics.report.text import one_line, visible

_NARROW = frozenset("iljtfrI.,:;'|!()[]{}/\\ -`\"")
_WIDE = frozenset("mwMWOQG@%&")


def element(name: str, content: str = "", /, **attributes: str | float | None) -> str:
    """An element whose `content` is markup already; attribute `class_` is "class", "_" in names stands for "-"."""
    parts = [name]
    for key, value in attributes.items():
        if value is None:
            continue
        shown = coordinate(value) if isinstance(value, int | float) else html.escape(visible(value))
        parts.append(f'{key.rstrip("_").replace("_", "-")}="{shown}"')
    opening = " ".join(parts)
    return f"<{opening}>{content}</{name}>" if content or name in {"text", "title", "desc", "a"} else f"<{opening}/>"


def escaped(text: str, limit: int = 200) -> str:
    return html.escape(one_line(text, limit))


def coordinate(value: float) -> str:
    """A pixel position to a tenth; no trailing zeros, no minus zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def text_width(text: str, font_px: float, *, bold: bool = False) -> float:
    """Estimated width in px of a text in a usual sans-serif font; rather too wide than too narrow."""
    em = 0.0
    for char in text:
        if char in _NARROW:
            em += 0.34
        elif char in _WIDE:
            em += 0.88
        elif char.isupper() or unicodedata.east_asian_width(char) in {"W", "F"}:
            em += 0.7 if char.isascii() else 1.0
        else:
            em += 0.565
    return em * font_px * (1.05 if bold else 1.0)


def clip(text: str, width: float, font_px: float, *, bold: bool = False) -> str:
    """The text cut with an ellipsis where it is wider than `width` px."""
    kept = text[: max(1, int(width / (0.3 * font_px)))]  # no character is narrower
    if kept == text and text_width(text, font_px, bold=bold) <= width:
        return text
    while kept and text_width(kept + "…", font_px, bold=bold) > width:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def wrap(text: str, width: float, font_px: float, lines: int, *, bold: bool = False) -> list[str]:
    """The text in at most `lines` lines of `width` px, cut with an ellipsis; words longer than a line are broken."""
    words = one_line(text, 400).split(" ")
    rows: list[str] = []
    while words and len(rows) < lines:
        row = words.pop(0)
        if text_width(row, font_px, bold=bold) > width:
            head = clip(row, width, font_px, bold=bold).removesuffix("…") or row[:1]
            words.insert(0, row[len(head) :])
            row = head
        else:
            while words and text_width(f"{row} {words[0]}", font_px, bold=bold) <= width:
                row = f"{row} {words.pop(0)}"
        rows.append(row)
    if words:
        rows[-1] = clip(f"{rows[-1]} {' '.join(words)}"[:400], width, font_px, bold=bold)
        if not rows[-1].endswith("…"):
            rows[-1] += "…"
    return [row for row in rows if row]


def shape(kind: str, x: float, y: float, radius: float, class_: str) -> str:
    """A mark told apart by its form, not by its colour: diamond, triangle, disc, ring, cross, square."""
    r = radius
    if kind == "diamond":
        return _polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], class_)
    if kind == "triangle":
        return _polygon([(x, y - r), (x + r, y + r * 0.8), (x - r, y + r * 0.8)], class_)
    if kind == "cross":
        d = r * 0.8
        path = f"M{coordinate(x - d)} {coordinate(y - d)}l{coordinate(2 * d)} {coordinate(2 * d)}"
        return element(
            "path", d=f"{path}m0 {coordinate(-2 * d)}l{coordinate(-2 * d)} {coordinate(2 * d)}", class_=class_
        )
    if kind == "square":
        return element("rect", x=x - r * 0.8, y=y - r * 0.8, width=r * 1.6, height=r * 1.6, class_=class_)
    return element("circle", cx=x, cy=y, r=r * 0.85 if kind == "disc" else r * 0.75, class_=class_)


def _polygon(points: list[tuple[float, float]], class_: str) -> str:
    return element("polygon", points=" ".join(f"{coordinate(a)},{coordinate(b)}" for a, b in points), class_=class_)


SEVERITY_SHAPES = {"critical": "diamond", "high": "triangle", "medium": "disc", "info": "ring"}


def severity_mark(severity: str, x: float, y: float, radius: float = 6) -> str:
    known = severity if severity in SEVERITY_SHAPES else "info"
    return shape(SEVERITY_SHAPES[known], x, y, radius, f"mark {known}")
