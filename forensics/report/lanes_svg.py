"""Draws who lived when and what happened where: one lane a rank, numbered like the rows of the timeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from forensics.report import text
from forensics.report.scale import Scale, fit
from forensics.report.svg import coordinate, element, escaped, text_width
from forensics.report.view import Moment, ProcessView

MAX_LANES = 12
_WIDTH, _LANE, _LEFT, _RIGHT, _TOP = 1100.0, 30.0, 74.0, 24.0, 8.0
_FONT_PX = 11.5


@dataclass(frozen=True)
class Lanes:
    svg: str
    n_hidden: int  # ranks without a lane


def lanes(timeline: Sequence[Moment], processes: Sequence[ProcessView]) -> Lanes | None:
    """None when there are not two moments of one clock to compare."""
    epoch = any(text.has_epoch(m.ts_ns) for m in timeline)
    numbered = [(i, m) for i, m in enumerate(timeline, 1) if text.has_epoch(m.ts_ns) == epoch]
    times = [m.ts_ns for _, m in numbered]
    if len(set(times)) < 2:
        return None
    eventful = sorted({m.rank for _, m in numbered if m.rank is not None})
    quiet = sorted({p.rank for p in processes if p.rank is not None} - set(eventful))
    shown: list[int | None] = [None] if any(m.rank is None for _, m in numbered) else []
    shown += (eventful + quiet)[: MAX_LANES - len(shown)]
    shown.sort(key=lambda rank: -1 if rank is None else rank)
    begin = min(times)
    scale = fit(0, max(times) - begin, _LEFT, _WIDTH - _RIGHT, pad=0.04)
    height = _TOP + _LANE * len(shown) + 24
    parts = [_axis(scale, height)]

    def place(ts_ns: int) -> float:
        # Doubles of ns since 1970 are 256 ns apart.
        return scale(ts_ns - begin)

    for row, rank in enumerate(shown):
        y = _TOP + _LANE * (row + 0.5)
        bars = [p for p in processes if p.rank == rank and rank is not None]
        parts.append(_lane(rank, y, bars, place, epoch))
        parts.append(_chips([(n, m) for n, m in numbered if m.rank == rank], y, place))
    svg = element(
        "svg",
        element("title", "Ranks over time", id="lanes-title") + "".join(parts),
        class_="lanes",
        viewBox=f"0 0 {_WIDTH:g} {height:g}",
        role="img",
        aria_labelledby="lanes-title",
    )
    return Lanes(svg, len(eventful) + len(quiet) - len([rank for rank in shown if rank is not None]))


def _axis(scale: Scale, height: float) -> str:
    base = height - 20
    parts = [element("path", d=f"M{_LEFT:g} {coordinate(base)}H{_WIDTH - _RIGHT:g}", class_="axis")]
    span = scale.high - scale.low
    unit, factor = ("s", 1e9) if span > 2e9 else ("ms", 1e6) if span > 2e6 else ("µs", 1e3)
    if span > 600e9:
        unit, factor = "min", 60e9
    shown = Scale(scale.low / factor, scale.high / factor, scale.start, scale.end)
    for value, label in shown.ticks(7):
        x = shown(value)
        parts.append(element("path", d=f"M{coordinate(x)} {_TOP:g}V{coordinate(base)}", class_="grid"))
        sign = "+" if value > 0 else ""
        tick = f"{sign}{label} {unit}"
        parts.append(element("text", escaped(tick), x=x, y=base + 15, text_anchor="middle", class_="tick"))
    return "".join(parts)


def _lane(rank: int | None, y: float, bars: list[ProcessView], place: Callable[[int], float], epoch: bool) -> str:
    name = "job" if rank is None else f"rank {rank}"
    parts = [element("text", escaped(name), x=_LEFT - 12, y=y + 4, text_anchor="end", class_="lane-name")]
    for bar in bars[:20]:
        first, last = bar.first_seen_ns, bar.last_seen_ns
        if first is None or last is None or text.has_epoch(first) != epoch or text.has_epoch(last) != epoch:
            continue
        start, end = max(place(first), _LEFT), min(place(last), _WIDTH - _RIGHT)
        if end < start:
            continue
        label = f"{name}: {bar.outcome}, seen {text.moment(first)} to {text.moment(last)}"
        rect = element("rect", x=start, y=y - 3, width=max(end - start, 2), height=6, rx=3, class_="life")
        parts.append(element("g", element("title", escaped(label, 400)) + rect))
    return "".join(parts)


@dataclass(frozen=True)
class _Chip:
    """A number on a lane, or those of neighbours that would lie on each other."""

    moments: list[tuple[int, Moment]]
    at: float  # where the first of them lies

    @property
    def label(self) -> str:
        first, last = self.moments[0][0], self.moments[-1][0]
        if first == last:
            return str(first)
        return f"{first}–{last}" if last - first == len(self.moments) - 1 else f"{first}…{last}"

    @property
    def width(self) -> float:
        return max(20.0, text_width(self.label, _FONT_PX, bold=True) + 10)

    @property
    def middle(self) -> float:
        return min(self.at, _WIDTH - self.width / 2 - 1)


def _chips(moments: list[tuple[int, Moment]], y: float, place: Callable[[int], float]) -> str:
    chips: list[_Chip] = []
    for n, moment in moments:
        chips.append(_Chip([(n, moment)], place(moment.ts_ns)))
        while len(chips) > 1 and chips[-1].middle - chips[-2].middle < (chips[-1].width + chips[-2].width) / 2 + 2:
            late = chips.pop()
            chips[-1] = _Chip(chips[-1].moments + late.moments, chips[-1].at)
    return "".join(_drawn(chip, y) for chip in chips)


def _drawn(chip: _Chip, y: float) -> str:
    title = "; ".join(f"{n}: {m.label}" for n, m in chip.moments[:4])
    width, x = chip.width, chip.middle
    return element(
        "g",
        element("title", escaped(title, 400))
        + element("rect", x=x - width / 2, y=y - 10, width=width, height=20, rx=10, class_="chip")
        + element("text", escaped(chip.label), x=x, y=y + 4, text_anchor="middle", class_="chip-label"),
    )
