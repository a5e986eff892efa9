"""Lines of the Prometheus text format and of OpenMetrics: samples with labels, and what stands between scrapes.

Prometheus stamps are ms since the epoch, those of OpenMetrics are seconds; both are told by their magnitude.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from forensics.formats._quantities import epoch_ns, parse_time

MAX_LABELS = 64
_MAX_VALUE = 300  # characters of a label's value that are kept

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:.]{0,299}")
_LABEL = re.compile(r'\s{0,20}([a-zA-Z_][a-zA-Z0-9_.]{0,200})\s{0,20}=\s{0,20}"((?:[^"\\]|\\.){0,4000})"\s{0,20}(,?)')
_NUMBER = re.compile(
    r"\s{1,20}([-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[Ii]nf(?:inity)?|NaN|nan))"
    r"(?=\s|$)"
)
_STAMP = re.compile(r"\s{1,20}([-+]?\d{1,19}(?:\.\d{1,9})?)\s*$")
_COMMENT = re.compile(r"#\s{0,4}(HELP|TYPE|UNIT|EOF)(?:\s{1,20}([^\s]{1,300}))?(?:\s{1,20}(\S{1,40}))?")
_EPOCH = re.compile(r"(?<![\w.])(1[0-9]{9}(?:\.[0-9]{1,9}|[0-9]{3}(?![0-9]))?)(?![\w.])")
_WRITTEN = re.compile(
    r"[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T _][0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?"
    r"(?: ?(?:Z|UTC|[+-][0-9]{2}:?[0-9]{2}))?"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2}(?: UTC)? [0-9]{4}"
)
_HTTP_DATE = re.compile(r"(?:[A-Z][a-z]{2}, )?([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9:]{8}) GMT")
_UNESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


class Reading(NamedTuple):
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    ts_ns: int | None


class Comment(NamedTuple):
    kind: str  # HELP | TYPE | UNIT | EOF
    name: str | None
    word: str | None


class Stamp(NamedTuple):
    """A time that stands for itself, or behind the words of a comment: when the scrape below it was made."""

    ns: int
    zoned: bool


def read_line(text: str) -> Reading | Comment | Stamp | None:
    """What a line is; None for what is none of these."""
    line = text.strip()
    if not line:
        return None
    if line.startswith("#"):
        known = _COMMENT.match(line)
        if known:
            return Comment(known[1], known[2], known[3])
        return stamp_of(line)
    return _reading(line) or stamp_of(line)


def _reading(line: str) -> Reading | None:
    name = _NAME.match(line)
    if not name:
        return None
    at = name.end()
    labels: list[tuple[str, str]] = []
    if line[at : at + 1] == "{":
        at += 1
        while (label := _LABEL.match(line, at)) and len(labels) < MAX_LABELS:
            labels.append((label[1], _unescaped(label[2])[:_MAX_VALUE]))
            at = label.end()
            if not label[3]:
                break
        at += len(line[at:]) - len(line[at:].lstrip())
        if line[at : at + 1] != "}":
            return None
        at += 1
        if line[at : at + 1] not in {" ", "\t"}:
            return None
    number = _NUMBER.match(line, at)
    if not number:
        return None
    rest = line[number.end() :].partition(" # ")[0]  # an exemplar of OpenMetrics
    if rest.strip() and not _STAMP.fullmatch(rest):
        return None
    value = float(number[1].replace("_", ""))
    return Reading(name[0], tuple(labels), value, epoch_ns(rest.strip()) if rest.strip() else None)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda m: _UNESCAPED.get(m[0], m[0]), text) if "\\" in text else text


def stamp_of(line: str) -> Stamp | None:
    """The time that a separating line, a comment or a Date header tells."""
    short = line[:200]
    header = _HTTP_DATE.search(short)
    if header:
        moment = parse_time(f"{header[2]} {header[1]} {header[4]} UTC {header[3]}")
        return Stamp(moment.ns, True) if moment else None
    written = _WRITTEN.search(short)
    if written:
        moment = parse_time(written[0])
        return Stamp(moment.ns, moment.zoned) if moment else None
    number = _EPOCH.search(short)
    ns = epoch_ns(number[1]) if number else None
    return Stamp(ns, True) if ns is not None else None


def entity_of(labels: tuple[tuple[str, str], ...]) -> str | None:
    """The labels as one text, in the order of their names."""
    if not labels:
        return None
    return ",".join(f'{name}="{value}"' for name, value in sorted(labels))[:1000]


def unit_of(name: str, kind: str | None) -> str | None:
    """The unit that a metric's name ends in; counts and buckets have none."""
    if name.endswith(("_bucket", "_count")) and kind in {"histogram", "summary", "gaugehistogram", None}:
        return None
    stem = name.removesuffix("_total").removesuffix("_sum")
    return next((unit for suffix, unit in _UNITS.items() if stem.endswith(suffix)), None)


_UNITS = {"_seconds": "s", "_bytes": "bytes", "_milliseconds": "ms", "_ms": "ms", "_us": "us", "_ratio": "ratio"}
