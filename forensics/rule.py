"""What a rule is. Python rules import `rule`, `Row` and `Question` from here and nothing else of the package.

A rule file is TOML front matter and one SELECT per variant (SQL), or one decorated function (Python). Its id is
FOLDER-NAME. Rows that a variant returns are findings; the columns `artifact_id, row, proc_id, rank, step, ts_ns` say
where, `line` or `byte` override the position, `severity` and `fix` the front matter, and every other column can be
used in `message`. An optional column `evidence` holds further places: a list of structs with
`artifact_id` and `row`, `line` or `byte`, and `note`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from forensics.errors import RuleError

Row = Mapping[str, Any]


class Question(Protocol):
    """What a Python rule may ask: SELECTs over the case, its thresholds by name."""

    thresholds: Mapping[str, float]

    def rows(self, sql: str, **parameters: Any) -> list[dict[str, Any]]:
        """Rows of one SELECT as dicts."""


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def alternatives(need: str) -> list[str]:
    """The capabilities of which a need asks for one; "a:b" is "a" restricted to events of kind b."""
    return [name.partition(":")[0] for name in need.split("|")]


@dataclass(frozen=True)
class Threshold:
    name: str
    value: float
    unit: str
    why: str
    measured: str = ""  # what a finding holds against it: "column", "column / column" or "column / number"

    def measure(self, facts: Mapping[str, Any]) -> float | None:
        """The value that was held against it, out of a finding's columns; None where they do not tell."""
        over, _, under = self.measured.partition(" / ")
        value, by = _number(facts.get(over)), _number(facts.get(under, under)) if under else 1.0
        return value / by if value is not None and by else None


@dataclass(frozen=True)
class Variant:
    """One way to prove a rule: the capabilities that it needs and how strong its proof is.

    `proves`: what this way shows, where the ways of a rule show different things; else what the rule says.
    `against`: asked where `sql` found nothing: the rows that speak against the fault.
    """

    name: str
    needs: Sequence[str]
    strength: str
    proves: str
    says: str = ""
    sql: str | None = None
    function: Callable[[Question], Iterable[Row]] | None = None
    against: str | None = None


@dataclass(frozen=True)
class Rule:
    id: str
    path: str
    title: str
    severity: str
    role: str
    scope: str  # process: judged for each process by its own evidence; job: by the evidence of all
    proves: str
    cannot_prove: str
    message: str
    fix: str
    causes: Sequence[Mapping[str, str]]
    requires: Sequence[Mapping[str, str]]
    references: Sequence[str]
    thresholds: Mapping[str, Threshold]
    variants: Sequence[Variant]


@dataclass(frozen=True)
class PythonRule:
    """What `@rule` leaves on a function: front matter as keywords, one function for all variants it names."""

    front: Mapping[str, Any]
    functions: Mapping[str, Callable[[Question], Iterable[Row]]] = field(default_factory=dict)


def rule(**front: Any) -> Callable[[Callable[[Question], Iterable[Row]]], PythonRule]:
    """Declares a Python rule. Keywords are the front matter of SQL rules (see rules/README.md), one variant."""

    def declare(function: Callable[[Question], Iterable[Row]]) -> PythonRule:
        variants = front.get("variant", {})
        if len(variants) != 1:
            raise RuleError(f"{function.__module__}: found {len(variants)} variants; a Python rule has exactly one")
        return PythonRule(front, dict.fromkeys(variants, function))

    return declare
