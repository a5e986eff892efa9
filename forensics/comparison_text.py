"""A comparison of two cases as text for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from dataclasses import asdict

import orjson

from forensics.comparison import Comparison, Difference, Section
from forensics.redact import mask, masked_value

_NONE = "(none)"
_SIDES = {"good", "failed"}


def to_json(comparison: Comparison) -> str:
    return orjson.dumps(_masked(asdict(comparison)), option=orjson.OPT_INDENT_2).decode()


def _value(item: Difference, text: str | None) -> str:
    """A side of a difference, masked by its name too: `variable HF_TOKEN` is a secret whatever it looks like."""
    return _NONE if text is None else _plain(masked_value(item.what.split(" ")[-1], text))


def to_text(comparison: Comparison) -> str:
    lines = [f"good    {comparison.good}", f"failed  {comparison.failed}", ""]
    lines += ["FIRST DIVERGENCE", *(f"  {line}" for line in _first(comparison))]
    for section in comparison.sections:
        if section.differences:
            lines += ["", _heading(section).upper()]
            for item in section.differences:
                lines += [
                    f"  {_where(item)}",
                    f"    good    {_value(item, item.good)}",
                    f"    failed  {_value(item, item.failed)}",
                ]
    return "\n".join([*lines, *_silent(comparison)])


def to_markdown(comparison: Comparison) -> str:
    lines = ["## First divergence", "", *(f"{_cell(line)}  " for line in _first(comparison))]
    for section in comparison.sections:
        if section.differences:
            lines += ["", f"## {_heading(section)}", "", "| what | good | failed |", "|---|---|---|"]
            for item in section.differences:
                lines.append(
                    f"| {_cell(_where(item))} | {_cell(_value(item, item.good))} | {_cell(_value(item, item.failed))} |"
                )
    return "\n".join([*lines, *_silent(comparison)])


def _first(comparison: Comparison) -> list[str]:
    first = comparison.first
    if first is None:
        return ["None: what both runs recorded is alike."]
    whose = "" if first.rank is not None else "; of which rank is not recorded"
    return [
        f"{_where(first)} ({comparison.first_in}{whose})",
        f"good: {_value(first, first.good)}",
        f"failed: {_value(first, first.failed)}",
    ]


def _silent(comparison: Comparison) -> list[str]:
    alike = [s.name for s in comparison.sections if s.is_compared and not s.n_all]
    absent = [s.name for s in comparison.sections if not s.is_compared]
    lines = [""] if alike or absent else []
    lines += [f"alike: {', '.join(alike)}"] if alike else []
    return lines + ([f"not recorded by both: {', '.join(absent)}"] if absent else [])


def _heading(section: Section) -> str:
    n_shown = len(section.differences)
    return section.name if n_shown == section.n_all else f"{section.name} (first {n_shown} of {section.n_all:,})"


def _where(item: Difference) -> str:
    rank = "" if item.rank is None else f"rank {item.rank}, "
    step = "" if item.step is None else f"step {item.step}: "
    return _plain(f"{rank}{step}{item.what}")


def _plain(text: str) -> str:
    """On one line, with secrets masked; what would steer the terminal is spelt out."""
    return "".join(c if c.isprintable() else " " if c == "\n" else ascii(c)[1:-1] for c in mask(text))


def _cell(text: str) -> str:
    escaped = text.replace("\\", "\\\\")
    for character in "|`*_<>[]":
        escaped = escaped.replace(character, f"\\{character}")
    return escaped


def _masked(value: object) -> object:
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, dict):
        name = str(value.get("what", "")).split(" ")[-1]
        return {
            key: masked_value(name, item) if key in _SIDES and isinstance(item, str) and name else _masked(item)
            for key, item in value.items()
        }
    return [_masked(item) for item in value] if isinstance(value, list | tuple) else value
