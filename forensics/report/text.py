"""Makes texts from artifacts fit to be shown: bounded, with invisible characters visible, numbers with units."""

from __future__ import annotations

import math
import unicodedata
from datetime import UTC, datetime

# Texts are cut before they are escaped, so that the work is bounded as well as the page.
LINE_LIMIT = 600
BLOCK_LIMIT = 6_000
BLOCK_LINES = 60
# Times below this (September 2001) are counted from the start of some clock, not from the epoch.
_EPOCH_NS = 1_000_000_000 * 10**9
# More marks than this on one letter are there to overprint the lines around them.
_MARKS_PER_LETTER = 3


def shorten(text: str, limit: int = LINE_LIMIT) -> tuple[str, int]:
    """The beginning of a text and the number of characters left out; texts slightly too long are kept whole."""
    if len(text) <= limit + limit // 10:
        return text, 0
    return text[:limit], len(text) - limit


def pieces(text: str, *, keep: str = "") -> list[tuple[str, bool]]:
    r"""Splits a text into (part, is an escape), where control, format and unassigned characters become \x1b, \u202e.

    `keep`: characters that stay although they are not printable, such as newline and tab.
    """
    if text.isascii() and text.isprintable():
        return [(text, False)] if text else []
    parts: list[tuple[str, bool]] = []
    plain: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.category(char) in {"Mn", "Me"} else 0
        shown = char.isprintable() or char in keep or unicodedata.category(char) == "Zs"
        if shown and marks <= _MARKS_PER_LETTER:
            plain.append(char)
            continue
        if plain:
            parts.append(("".join(plain), False))
            plain = []
        parts.append((escape_of(char), True))
    if plain:
        parts.append(("".join(plain), False))
    return parts


def escape_of(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def visible(text: str, *, keep: str = "") -> str:
    """The text with every invisible character written as an escape."""
    return "".join(part for part, _ in pieces(text, keep=keep))


def one_line(text: str, limit: int = LINE_LIMIT) -> str:
    """One line of visible characters; says how much it leaves out."""
    head, left_out = shorten(text, limit)
    return visible(" ".join(head.split())) + left_out_note(left_out)


def block(text: str, limit: int = BLOCK_LIMIT, lines: int = BLOCK_LINES) -> str:
    """Several lines of visible characters, tabs kept; says how much it leaves out."""
    body, note = cut_block(text, limit, lines)
    return visible(body, keep="\n\t") + (f"\n{note}" if note else "")


def cut_block(text: str, limit: int = BLOCK_LIMIT, lines: int = BLOCK_LINES) -> tuple[str, str]:
    """The first lines of a text and a note on what is left out ("" when nothing is)."""
    head, left_out = shorten(text, limit)
    head = head.replace("\r\n", "\n").rstrip()
    rows = head.split("\n")
    if len(rows) > lines:
        kept = "\n".join(rows[:lines])
        return kept, left_out_note(len(text) - len(kept)).strip()
    return head, left_out_note(left_out).strip()


def left_out_note(n: int) -> str:
    return f" … ({n:,} more characters)" if n else ""


def percent(ratio: float | None) -> str:
    """A probability for people; never 0 % or 100 % unless it is exactly that. "" when there is none."""
    if ratio is None or not math.isfinite(ratio):
        return ""
    if 0.99 < ratio < 1:
        return "> 99 %"
    if 0 < ratio < 0.01:
        return "< 1 %"
    return f"{min(max(ratio, 0.0), 1.0) * 100:.0f} %"


def percent_range(bounds: tuple[float, float] | None) -> str:
    """Both ends of an interval of probabilities: "74 to 99 %". "" when there is none."""
    if bounds is None:
        return ""
    low, high = (min(max(end, 0.0), 1.0) * 100 for end in bounds)
    return f"{low:.0f} to {min(round(high), 99) if high < 100 else 100} %"


def size(n_bytes: int) -> str:
    """Bytes with a binary unit, three significant digits."""
    value = float(n_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{n_bytes:,} B" if unit == "B" else f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def number(value: float) -> str:
    """A measured value in at most five significant digits."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    if value == int(value) and abs(value) < 1e6:
        return f"{int(value):,}"
    return f"{value:.5g}"


def has_epoch(ts_ns: int) -> bool:
    return ts_ns >= _EPOCH_NS


def moment(ts_ns: int | None, *, date: bool = True) -> str:
    """A time in UTC to the millisecond, or seconds since the start of its clock. "" when there is none."""
    if ts_ns is None:
        return ""
    if not has_epoch(ts_ns):
        return f"+{ts_ns / 1e9:,.3f} s"
    seconds, rest = divmod(ts_ns, 10**9)
    try:
        day = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):  # a damaged time far beyond the calendar
        return f"{ts_ns} ns"
    clock = f"{day:%H:%M:%S}.{rest // 10**6:03d}"
    return f"{day:%Y-%m-%d} {clock} UTC" if date else clock


def day_of(ts_ns: int) -> str:
    """The calendar day in UTC; "" for a clock without epoch."""
    return moment(ts_ns)[:10] if has_epoch(ts_ns) and moment(ts_ns).endswith("UTC") else ""


def plural(n: int, word: str, words: str | None = None) -> str:
    return f"{n:,} {word if n == 1 else words or word + 's'}"


def place(kind: str, position: int | None) -> str:
    """Where in an artifact: "line 12", "byte 4096", "row 7"; "" for the artifact as a whole. Fit to be pasted."""
    return f"{one_line(kind, 40)} {position}" if kind and position is not None else ""
