"""What every picture of a report comes with: a heading, a sentence to read it by, the drawing, and its table twin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_ROWS = 60  # of a table twin


@dataclass(frozen=True)
class Twin:
    """The picture as a table. `numeric`: columns that are set flush right."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_hidden: int = 0
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Exhibit:
    """One picture of the page. `about`: beginnings of the ids of rules whose findings it shows."""

    id: str
    title: str
    lead: str
    svg: str  # "" where the table is the picture
    twin: Twin
    notes: Sequence[str] = ()
    about: Sequence[str] = ()

    def shows(self, rule: str) -> bool:
        return any(rule.startswith(beginning) for beginning in self.about)


def twin(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[int] = (),
    n_more: int = 0,
    limit: int = MAX_ROWS,
) -> Twin:
    """A table of at most `limit` rows; `n_more`: rows that did not even come here."""
    return Twin(headers, rows[:limit], max(0, len(rows) - limit) + n_more, frozenset(numeric))
