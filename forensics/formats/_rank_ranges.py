"""Lists of ranks as short text: `0-7`, `0-56:8` (every eighth), `3,5,10-12`; order is kept.

Each of a job's ranks names all members of its groups. As lists that would be ranks times ranks numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

_LEAST_RUN = 3


def ranges_of(ranks: Sequence[int] | None) -> str | None:
    """The text of a list of ranks; None for none, the empty text for an empty list."""
    if ranks is None:
        return None
    parts, at = [], 0
    while at < len(ranks):
        end = _end_of_run(ranks, at)
        step = ranks[at + 1] - ranks[at] if end - at >= _LEAST_RUN else 0
        if step > 0:
            parts.append(f"{ranks[at]}-{ranks[end - 1]}" + (f":{step}" if step > 1 else ""))
            at = end
        else:
            parts.append(str(ranks[at]))
            at += 1
    return ",".join(parts)


def _end_of_run(ranks: Sequence[int], start: int) -> int:
    end = min(start + 2, len(ranks))
    while end < len(ranks) and ranks[end] - ranks[end - 1] == ranks[start + 1] - ranks[start]:
        end += 1
    return end


def ranks_of(text: str) -> list[int]:
    """The ranks that `ranges_of` wrote."""
    return list(chain.from_iterable(map(_run, text.split(",")))) if text else []


def _run(part: str) -> Iterable[int]:
    span, _, step = part.partition(":")
    first, _, last = span.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))
