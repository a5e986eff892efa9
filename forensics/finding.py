"""Findings and verdicts as plain data: what rules claim, and what diagnosis makes of it."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# What the confidence of a root cause is measured by, and what that says of it.
GRADES = {
    "own": "nothing else is known to bring it about",
    "open": "another fault can lie behind it, and none was found",
}


@dataclass(frozen=True)
class Evidence:
    """One place in an artifact that a claim rests on: `line`, `byte` or `row` says where."""

    artifact_id: int
    artifact: str
    line: int | None = None
    byte: int | None = None
    row: int | None = None
    text: str = ""
    note: str = ""

    def position(self) -> dict[str, Any]:
        """The form in which report.json names it."""
        where = {"line": self.line, "byte": self.byte, "row": self.row}
        known = {key: value for key, value in where.items() if value is not None}
        place: dict[str, Any] = {"artifact": self.artifact, **(known or {"row": 0})}
        if self.text:
            place["text"] = self.text
        if self.note:
            place["note"] = self.note
        return place

    def label(self) -> str:
        if self.line is not None:
            return f"{self.artifact}:{self.line}"
        if self.byte is not None:
            return f"{self.artifact} byte {self.byte}"
        return f"{self.artifact} row {self.row or 0}"


@dataclass(frozen=True)
class Moment:
    """A time on one timeline of the case, right within `error_ns` to either side."""

    ns: int
    timeline: str | None = None
    error_ns: int | None = None

    def is_after(self, other: Moment) -> bool:
        """Whether it is later by more than both clocks may err; never told of different timelines."""
        if self.error_ns is None or other.error_ns is None or self.timeline != other.timeline:
            return False
        return self.ns - other.ns > self.error_ns + max(other.error_ns, other._cut_off_ns)

    @property
    def _cut_off_ns(self) -> int:
        """How much later it may have been: launchers write whole seconds into logs that are finer."""
        return 0 if self.ns % 1_000_000_000 else 1_000_000_000


@dataclass
class Finding:
    """A claim of one rule about one spot, with the rows that it rests on."""

    id: int
    rule: str
    title: str
    variant: str
    severity: str
    strength: str
    role: str  # cause | symptom | performance
    message: str
    fix: str
    causes: Sequence[Mapping[str, str]]
    requires: Sequence[Mapping[str, str]]
    proves: str = ""
    cannot_prove: str = ""
    attempt: int | None = None
    proc_id: int | None = None
    rank: int | None = None
    host: str | None = None
    device: int | None = None
    step: int | None = None
    ts_ns: int | None = None
    clock_error_ns: int | None = None
    timeline: str | None = None
    confidence: float | None = None
    explained_by: int | None = None
    explained_how: str = ""
    evidence: list[Evidence] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""

    @property
    def grade(self) -> str | None:
        """One of GRADES; None where another finding explains it."""
        if self.explained_by is not None:
            return None
        return "open" if self.requires else "own"

    def is_after(self, other: Finding) -> bool:
        """Whether it happened after another finding; what one writer wrote into one file is in order there."""
        if self.ts_ns is None or other.ts_ns is None:
            return False
        if self._is_by_the_writer_of(other):
            return self.ts_ns > other.ts_ns
        mine = Moment(self.ts_ns, self.timeline, self.clock_error_ns)
        return mine.is_after(Moment(other.ts_ns, other.timeline, other.clock_error_ns))

    def _is_by_the_writer_of(self, other: Finding) -> bool:
        if not self.evidence or not other.evidence or self.evidence[0].artifact_id != other.evidence[0].artifact_id:
            return False
        return self.host is None or other.host is None or self.host == other.host


@dataclass(frozen=True)
class RuledOut:
    """A rule that found nothing in evidence which could have shown its fault.

    `evidence`: rows that speak against the fault, of which `reason` tells. Without one the evidence only has no sign
    of it.
    """

    rule: str
    title: str
    variant: str
    reason: str
    evidence: Sequence[Evidence] = ()


@dataclass(frozen=True)
class NotChecked:
    rule: str
    title: str
    missing: str
    meaning: str
    capture: str


@dataclass(frozen=True)
class Anomaly:
    """The earliest sign of trouble that the evidence holds, whether or not a rule knows it.

    `not_told_apart`: others that may be as early, by what the clocks can tell. `weak`: nothing tells that it is wrong.
    """

    message: str
    rank: int | None
    ts_ns: int | None
    evidence: Evidence
    not_told_apart: Sequence[Anomaly] = ()
    weak: bool = False


@dataclass(frozen=True)
class Link:
    """One edge of the causal graph: finding `cause` explains finding `effect` through states."""

    cause: int
    effect: int
    states: Sequence[str]
    how: str


@dataclass(frozen=True)
class Verdict:
    """`status`: root-cause | independent | not-established | healthy.

    `ruled_out`: alternatives that rows speak against; `no_sign`: those of which nothing is in what was read.
    """

    status: str
    sentence: str
    root_causes: Sequence[Finding] = ()
    consequences: Sequence[Finding] = ()
    others: Sequence[Finding] = ()
    links: Sequence[Link] = ()
    ruled_out: Sequence[RuledOut] = ()
    no_sign: Sequence[RuledOut] = ()
    not_checked: Sequence[NotChecked] = ()
    earliest: Anomaly | None = None
    reasons: Sequence[str] = ()


def format_bytes(count: float) -> str:
    """Binary units with two decimals, as allocators print them: 1.50 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError


def format_duration(nanoseconds: float) -> str:
    seconds = nanoseconds / 1e9
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if abs(seconds) < limit:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds / 60:.1f} min"


class _MessageFormatter(string.Formatter):
    """`{x:bytes}`, `{x:duration}`, `{x:percent}` and `{n:# step was|# steps were}` beside the usual formats.

    Of the last, the first text is for one and the second for any other count, which takes the place of `#`. NULL reads
    "unknown".
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return kwargs[str(key)]

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.get_value(field_name, args, kwargs), field_name  # plain names only: no attributes, no items

    def format_field(self, value: Any, format_spec: str) -> str:
        one, bar, many = format_spec.partition("|")
        if bar:
            return (one if value == 1 else many).replace("#", "unknown" if value is None else f"{value}")
        if value is None:
            return "unknown"
        if format_spec == "bytes":
            return format_bytes(value)
        if format_spec == "duration":
            return format_duration(value)
        if format_spec == "percent":
            return f"{100 * value:.0f} %"
        return str(super().format_field(value, format_spec))


_FORMATTER = _MessageFormatter()


def format_message(template: str, values: Mapping[str, Any]) -> str:
    """Fills a rule's message. Raises KeyError for a name that the row does not have."""
    return " ".join(_FORMATTER.vformat(template, (), values).split())
